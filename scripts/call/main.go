// Command call invokes the functions of templates over HTTP, each with the event of the template's
// first test. It prints the answers and a table of start times, and fails unless every answer
// matches the test. scripts/demo.sh runs it.
//
//	call ADDR TEMPLATE-DIR...
//
// The command calls each function twice: a new sandbox answers the first event, and a warm sandbox,
// if the function keeps one, answers the second.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: call ADDR TEMPLATE-DIR...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// times holds the durations of a call.
type times struct {
	start string // start time of the instance, or "warm"
	whole time.Duration
}

func run(ctx context.Context, addr string, dirs []string) error {
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...string) { _, _ = fmt.Fprintln(table, strings.Join(cells, "\t")+"\t") } // writes to memory
	row("function", "first: start", "answered", "second: start", "answered")
	var errs []error
	for _, dir := range dirs {
		name := filepath.Base(dir)
		c, err := testdaemon.LoadCase(dir, name)
		if err != nil {
			return err
		}
		cells := []string{name}
		for turn := range 2 {
			a, t, err := call(ctx, client, addr, name, c)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				break
			}
			if turn == 0 {
				show(c.Event, addr, name, a)
			}
			cells = append(cells, t.start, milliseconds(t.whole))
		}
		if len(cells) == 5 {
			row(cells...)
		}
	}
	fmt.Println("\nMilliseconds: until the function could take the event, and until its answer was here:")
	return errors.Join(append(errs, table.Flush())...)
}

func call(ctx context.Context, client *http.Client, addr, name string, c *testdaemon.Case) (*testdaemon.Answer, times, error) {
	begin := time.Now()
	a, err := c.Event.Call(ctx, client, addr, name)
	if err != nil {
		return nil, times{}, err
	}
	t := times{start: "warm", whole: time.Since(begin)}
	if err := c.Check(a); err != nil {
		return nil, t, err
	}
	if a.Header.Get("X-Fre-Cold") == "1" {
		us, err := strconv.ParseInt(a.Header.Get("X-Fre-Start-Us"), 10, 64)
		if err != nil {
			return nil, t, fmt.Errorf("header X-Fre-Start-Us: %w", err)
		}
		t.start = milliseconds(time.Duration(us) * time.Microsecond)
	}
	return a, t, nil
}

// show prints the equivalent curl command and the answer.
func show(e testdaemon.Event, addr, name string, a *testdaemon.Answer) {
	command := []string{"curl", "-X", e.Method}
	for k, v := range e.Headers {
		command = append(command, "-H", quote(k+": "+v))
	}
	if e.Body != "" {
		command = append(command, "-d", quote(e.Body))
	}
	command = append(command, quote("http://"+addr+"/function/"+name+e.Path))
	fmt.Printf("\n$ %s\n%s\n", strings.Join(command, " "), strings.TrimRight(string(a.Body), "\n"))
}

// quote quotes s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
