package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/client/functest"
	"github.com/fre-engine/fre/internal/command"
)

type progressFlags struct {
	mode  string
	quiet bool
}

// progressJSON is the mode with JSON alone on standard output.
const progressJSON = "json"

func (p *progressFlags) flags(cmd *cobra.Command, quiet string) {
	f := cmd.Flags()
	f.StringVar(&p.mode, "progress", "auto", "form of the progress report: auto (bars on a terminal, lines elsewhere), plain or json")
	f.BoolVarP(&p.quiet, "quiet", "q", false, "print only "+quiet)
}

// reporting calls do with a progress report, and removes the bars before an error is printed.
func reporting(c *cli, cmd *cobra.Command, p progressFlags, do func(*client.Client, *progress) error) error {
	report, err := p.start(cmd)
	if err != nil {
		return err
	}
	defer report.end()
	cl := c.client()
	defer cl.Close()
	return do(cl, report)
}

func (p *progressFlags) start(cmd *cobra.Command) (*progress, error) {
	out := &progress{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), quiet: p.quiet}
	switch p.mode {
	case progressJSON:
		out.json = true
	case "plain":
	case "auto":
		f := asTerminal(out.err)
		if f == nil || os.Getenv("TERM") == "dumb" || out.quiet {
			break
		}
		out.bars = newBars(f, func() (width, height int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 || height <= 0 { // a serial line, or a terminal that is gone
				return 80, 24
			}
			return width, height
		}, os.Getenv("NO_COLOR") == "")
	default:
		return nil, command.Usage(fmt.Errorf("--progress: %q is not auto, plain or json", p.mode))
	}
	return out, nil
}

// progress prints events: on stderr for people, as JSON on stdout.
type progress struct {
	out, err io.Writer
	quiet    bool
	json     bool
	plain    tally
	warnings []string // repeated at the end

	mu   sync.Mutex // held while bars goes, and while other goroutines print
	bars *bars      // nil: plain lines
}

func (p *progress) event(e api.Progress) {
	if e.Step == stepWarning {
		line := strings.TrimRight("warning "+command.Printable(e.Name)+", "+command.Printable(e.Message), " ,")
		if !slices.Contains(p.warnings, line) {
			p.warnings = append(p.warnings, line)
		}
	}
	switch {
	case p.json:
		p.line(api.BuildLine{Progress: &e})
	case p.quiet:
	case p.bars != nil:
		p.bars.event(e, time.Now())
	default:
		p.log(e, time.Now())
	}
}

// log prints a line when a part begins, when it ends, and when its message changes. A log shows no
// percentages.
func (p *progress) log(e api.Progress, now time.Time) {
	part, begun, news := p.plain.add(e, now)
	switch {
	case e.End, e.Step == stepWarning:
		fmt.Fprintln(p.err, part.ended(now))
	case begun, news && e.Total == 0:
		fmt.Fprintln(p.err, strings.TrimRight(part.label()+" "+command.Printable(e.Message), " "))
	}
}

// line prints a line of JSON.
func (p *progress) line(v any) {
	raw, err := json.Marshal(v)
	if err == nil {
		fmt.Fprintf(p.out, "%s\n", raw)
	}
}

// above prints a line for people above the bars, and reports whether there are bars. It is safe for
// use by several goroutines.
func (p *progress) above(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bars == nil {
		return false
	}
	p.bars.mu.Lock()
	defer p.bars.mu.Unlock()
	p.bars.scroll = append(p.bars.scroll, strings.Split(line, "\n")...)
	return true
}

// end removes the bars.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bars != nil {
		p.bars.end()
		p.bars = nil
	}
}

// built prints the build's result.
func (p *progress) built(built *client.Built, id, sentence string) {
	p.result(api.BuildLine{Image: &built.Image, Lock: built.Lock, Function: built.Function}, id, sentence)
}

// result prints a result: as JSON, in short, or for people.
func (p *progress) result(line any, short, sentence string) {
	p.end()
	switch {
	case p.json:
		p.line(line)
	case p.quiet:
		fmt.Fprintln(p.out, short)
	default:
		if len(p.warnings) > 0 {
			fmt.Fprintln(p.err, "warnings again:")
			for _, w := range p.warnings {
				fmt.Fprintln(p.err, "  "+w)
			}
		}
		fmt.Fprintln(p.out, sentence)
	}
}

// test prints a test's result.
func (p *progress) test(r functest.Result) {
	switch {
	case p.json:
		p.line(testLine{Test: &r})
		return
	case p.quiet:
		return
	}
	verdict := "ok  "
	if !r.Passed {
		verdict = "FAIL"
	}
	fmt.Fprintf(p.out, "%s %s %.1fms\n", verdict, command.Printable(r.Name), r.Millis)
	for _, d := range r.Differences {
		fmt.Fprintf(p.out, "     %s\n", strings.ReplaceAll(command.PrintableLines(d), "\n", "\n     "))
	}
	if len(r.Logs) > 0 {
		fmt.Fprintln(p.out, "     its log:")
	}
	for _, l := range r.Logs {
		fmt.Fprintf(p.out, "       %s\n", strings.ReplaceAll(command.PrintableLines(l), "\n", "\n       "))
	}
}

// images prints the received images.
func (p *progress) images(verb string, images ...api.Image) {
	p.end()
	if p.json {
		p.line(api.TravelLine{Images: images})
		return
	}
	for _, img := range images {
		what := listing{}.shortID(img.Digest)
		if len(img.Names) > 0 {
			what = strings.Join(img.Names, ", ") + " " + what
		}
		p.result(nil, img.Digest, fmt.Sprintf("%s %s, %d files, %s", verb, what, img.Files, size(img.Size)))
	}
}

// testLine is a line of fre test --progress json, besides the build's lines.
type testLine struct {
	Test  *functest.Result `json:"test,omitempty"`
	Suite *functest.Suite  `json:"suite,omitempty"` // the last line
}
