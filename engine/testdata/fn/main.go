// Command fn is the function the engine's tests run: over the channel by
// default, over stdio when FRE_CHANNEL is not set. The event's path says what
// it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/channel"
)

var conn *net.UnixConn

func main() {
	if os.Getenv("FRE_CHANNEL") == "" {
		os.Exit(stdio())
	}
	if os.Getenv("FN_LOAD") == "fail" {
		fmt.Fprintln(os.Stderr, "cannot load")
		os.Exit(3)
	}
	var err error
	conn, err = channel.Inherited()
	if err == nil && os.Getenv("FN_LOAD") == "quit" { // ready, and gone
		ready := `{"protocol":1,"runtime":"go","concurrency":1}`
		_, err = conn.Write(append([]byte{byte(len(ready)), 0, 0, 0, 1, 15: 0}, ready...))
	} else if err == nil {
		err = channel.Serve(context.Background(), conn, channel.Ready{Protocol: 1, Runtime: "go", Concurrency: concurrency()}, handle)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func stdio() int {
	switch path := os.Getenv("FRE_PATH"); {
	case path == "/fail":
		fmt.Fprintln(os.Stderr, "went wrong")
		return 3
	case path == "/hang":
		<-time.After(time.Hour) // select {} would be a deadlock to Go, and end
	case path == "/big": // more than is held back before the status goes out
		fmt.Print(strings.Repeat("x", 3<<20))
	case path == "/bigfail":
		fmt.Print(strings.Repeat("x", 3<<20))
		return 4
	case path == "/whoami": // user, network interfaces, capabilities
		links, err := net.Interfaces()
		if err != nil {
			return 1
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 1
		}
		_, caps, _ := strings.Cut(string(status), "CapEff:")
		caps, _, _ = strings.Cut(caps, "\n")
		fmt.Println(os.Getuid(), len(links), strings.TrimSpace(caps))
	case path == "/env":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	default:
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 1
		}
	}
	return 0
}

func handle(ctx context.Context, ev *channel.Event) (*channel.Answer, error) {
	switch ev.Path {
	case "/fail":
		return nil, errors.New("went wrong")
	case "/hang": // gives up when it is told to
		<-ctx.Done()
		return nil, ctx.Err()
	case "/stuck":
		select {}
	case "/exit":
		os.Exit(7)
	case "/early": // answers before it has read the body
		return &channel.Answer{Status: 200, Body: strings.NewReader("early")}, nil
	case "/slurp": // answers once it has read the body
		body, err := io.ReadAll(ev.Body)
		return &channel.Answer{Status: 200, Body: strings.NewReader(strconv.Itoa(len(body)))}, err
	case "/log":
		return nil, ev.Log("info", strings.Repeat("\x01", 300<<10))
	case "/status": // status, header line and body as the query says
		return respond(ev)
	case "/slow":
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the function's own work
	case "/print":
		fmt.Println("hello log")
	case "/flood":
		line := strings.Repeat("y", 1000) + "\n"
		for range 64 << 10 {
			if _, err := os.Stdout.WriteString(line); err != nil {
				return nil, err
			}
		}
	case "/pid":
		host, err := os.Hostname()
		return &channel.Answer{Status: 200, Body: strings.NewReader(fmt.Sprint(host, os.Getpid()))}, err
	case "/garbage":
		if _, err := conn.Write([]byte("this is no frame at all, whatever it looks like")); err != nil {
			return nil, err
		}
		select {}
	}
	return &channel.Answer{Status: 200, Body: ev.Body}, nil
}

// respond answers what the query says: status=204&header=Name:value&body=text;
// with fail=1 the body breaks off, with endless=1 it goes on until cancelled.
func respond(ev *channel.Event) (*channel.Answer, error) {
	q, err := url.ParseQuery(ev.Query)
	if err != nil {
		return nil, err
	}
	a := &channel.Answer{Body: strings.NewReader(q.Get("body"))}
	if a.Status, err = strconv.Atoi(q.Get("status")); err != nil {
		return nil, err
	}
	for _, h := range q["header"] {
		name, value, _ := strings.Cut(h, ":")
		a.Headers = append(a.Headers, [2]string{name, value})
	}
	filler := strings.NewReader(strings.Repeat("x", 256<<10))
	switch {
	case q.Has("fail"):
		a.Body = io.MultiReader(filler, failing{})
	case q.Has("endless"):
		a.Body = endless{}
	}
	return a, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broke off") }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func concurrency() int {
	n, err := strconv.Atoi(os.Getenv("FRE_CONCURRENCY"))
	if err != nil {
		return 1
	}
	return n
}
