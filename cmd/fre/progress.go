package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

type progressFlags struct {
	mode  string
	quiet bool
}

func (p *progressFlags) flags(cmd *cobra.Command, quiet string) {
	f := cmd.Flags()
	f.StringVar(&p.mode, "progress", "auto", "auto (a bar on a terminal), plain or json")
	f.BoolVarP(&p.quiet, "quiet", "q", false, "print only "+quiet)
}

// reporting calls do with what it shows its progress on. An error comes after the
// bar is gone.
func (c *cli) reporting(cmd *cobra.Command, p progressFlags, do func(*client.Client, *progress) error) error {
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
	case "json":
		out.json = true
	case "plain":
	case "auto":
		if f := asTerminal(out.err); f != nil {
			out.width = 80
			if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
				out.width = w
			}
		}
	default:
		return nil, usageError{fmt.Errorf("--progress: %q is not auto, plain or json", p.mode)}
	}
	return out, nil
}

// progress prints build events: on stderr for people, as JSON on stdout.
type progress struct {
	out, err io.Writer
	quiet    bool
	json     bool
	width    int // of the terminal; 0: plain lines
	drawn    bool
	last     string
}

func (p *progress) event(e api.Event) {
	switch {
	case p.json:
		p.line(api.BuildLine{Event: &e})
	case p.quiet:
	case p.width > 0:
		p.draw(e)
	default:
		// A line for each part, not for each step within one.
		line := describe(e)
		if key := e.Step + "\x00" + e.Name + "\x00" + e.Message; key != p.last {
			p.last = key
			fmt.Fprintln(p.err, line)
		}
	}
}

// line prints a line of JSON.
func (p *progress) line(v any) {
	raw, err := json.Marshal(v)
	if err == nil {
		fmt.Fprintf(p.out, "%s\n", raw)
	}
}

func describe(e api.Event) string {
	parts := []string{e.Step}
	for _, s := range []string{e.Name, e.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return printable(strings.Join(parts, " "))
}

// draw shows the event on one line that the next replaces.
func (p *progress) draw(e api.Event) {
	const bar = 20
	text := ""
	if e.Total > 0 {
		n := int(min(max(e.Done, 0), e.Total) * bar / e.Total)
		text = "[" + strings.Repeat("=", n) + strings.Repeat(" ", bar-n) + "] "
	}
	text += describe(e)
	if r := []rune(text); len(r) >= p.width {
		text = string(r[:p.width-1])
	}
	fmt.Fprint(p.err, "\r\x1b[K", text)
	p.drawn = true
}

// end clears the bar.
func (p *progress) end() {
	if p.drawn {
		fmt.Fprint(p.err, "\r\x1b[K")
		p.drawn = false
	}
}

// done prints what was built.
func (p *progress) done(built *client.Built, id, sentence string) {
	p.result(api.BuildLine{Image: &built.Image, Lock: built.Lock, Function: built.Function}, id, sentence)
}

// result prints what came of it: as JSON, in short, or for people.
func (p *progress) result(line any, short, sentence string) {
	p.end()
	switch {
	case p.json:
		p.line(line)
	case p.quiet:
		fmt.Fprintln(p.out, short)
	default:
		fmt.Fprintln(p.out, sentence)
	}
}
