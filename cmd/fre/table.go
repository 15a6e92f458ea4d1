package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/internal/command"
)

// listing holds the flags of commands that list.
type listing struct {
	format  string
	quiet   bool
	noTrunc bool
}

func (l *listing) flags(cmd *cobra.Command, quiet string) {
	f := cmd.Flags()
	f.StringVar(&l.format, "format", "", "`template` for each line: 'json', or a Go text/template such as '{{json .}}', '{{.Name}}'")
	f.BoolVar(&l.noTrunc, "no-trunc", false, "do not shorten ids and commands")
	if quiet != "" {
		f.BoolVarP(&l.quiet, "quiet", "q", false, "print only "+quiet)
	}
}

// column is one column of a table.
type column[T any] struct {
	title string
	value func(T) string
}

// show prints items as the flags say: a table, ids only (by the function id), or a line for each
// item in the format.
func show[T any](w io.Writer, l listing, items []T, id func(T) string, columns []column[T]) error {
	if l.format != "" {
		return formatEach(w, l.format, items)
	}
	if l.quiet {
		for _, item := range items {
			fmt.Fprintln(w, id(item))
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	var titles []string
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	fmt.Fprintln(t, strings.Join(titles, "\t"))
	for _, item := range items {
		var cells []string
		for _, c := range columns {
			cells = append(cells, command.Printable(c.value(item)))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// formatEach prints each item by a Go template.
func formatEach[T any](w io.Writer, format string, items []T) error {
	if format == "json" {
		format = "{{json .}}"
	}
	t, err := template.New("format").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			raw, err := json.Marshal(v)
			return string(raw), err
		},
		"join": strings.Join, "upper": strings.ToUpper, "lower": strings.ToLower,
	}).Parse(format)
	if err != nil {
		return command.Usage(fmt.Errorf("--format: %w", err))
	}
	for _, item := range items {
		var line strings.Builder
		if err := t.Execute(&line, item); err != nil {
			return command.Usage(fmt.Errorf("--format: %w", err))
		}
		fmt.Fprintln(w, line.String())
	}
	return nil
}

// inspect prints items as an indented JSON array, or each by the format.
func inspect[T any](w io.Writer, format string, items []T) error {
	if format != "" {
		return formatEach(w, format, items)
	}
	raw, err := json.MarshalIndent(items, "", "    ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", raw)
	return err
}

// foreign returns a writer to out for the text of functions. On a terminal it escapes control
// characters; elsewhere the text is unchanged.
func foreign(out io.Writer) io.Writer {
	if asTerminal(out) == nil {
		return out
	}
	return &escaping{to: out}
}

// wholeRunes is the length of text without an incomplete character at the end.
func wholeRunes(text []byte) int {
	end := len(text)
	for i := max(0, end-utf8.UTFMax+1); i < end; i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			return i
		}
	}
	return end
}

// escaping is printableLines for a stream. It keeps an incomplete character for the next Write.
type escaping struct {
	to   io.Writer
	rest []byte
}

func (e *escaping) Write(p []byte) (int, error) {
	text := append(e.rest, p...)
	end := wholeRunes(text)
	e.rest = bytes.Clone(text[end:])
	if _, err := io.WriteString(e.to, command.PrintableLines(string(text[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shortID abbreviates an id or digest for people.
func (l listing) shortID(id string) string {
	if l.noTrunc {
		return id
	}
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 12)]
}

func (l listing) clip(s string, most int) string {
	if r := []rune(s); !l.noTrunc && len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// size formats bytes for people, in powers of 1000 as docker does.
func size(n int64) string {
	v, units := float64(n), []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for ; v >= 999.5 && i < len(units)-1; i++ {
		v /= 1000
	}
	if i == 0 || v >= 99.95 {
		return fmt.Sprintf("%.0f%s", v, units[i])
	}
	return fmt.Sprintf("%.3g%s", v, units[i])
}

// ago formats an age for people.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(now.Sub(t)) + " ago"
}

func span(d time.Duration) string {
	var n int
	var unit string
	switch {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute:
		n, unit = int(d/time.Second), "second"
	case d < 2*time.Hour:
		n, unit = int(d/time.Minute), "minute"
	case d < 48*time.Hour:
		n, unit = int(d/time.Hour), "hour"
	case d < 60*24*time.Hour:
		n, unit = int(d/(24*time.Hour)), "day"
	default:
		n, unit = int(d/(30*24*time.Hour)), "month"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}

// of formats a used amount and its limit.
func of(n, most int64, text func(int64) string) string {
	if most == 0 {
		return text(n)
	}
	return text(n) + "/" + text(most)
}

func count(n int64) string { return strconv.FormatInt(n, 10) }

func cpus(millis int64) string { return strconv.FormatFloat(float64(millis)/1000, 'g', -1, 64) }

// columns is an upper bound for the width of s on a terminal, without colours.
func columns(s string) int {
	n, colour := 0, false
	for _, r := range s {
		switch {
		case r == '\x1b':
			colour = true
		case colour:
			colour = r != 'm'
		case r < 0x300:
			n++
		default:
			n += 2 // many are wide
		}
	}
	return n
}

// clip cuts s to width columns. s has no colours.
func clip(s string, width int) string {
	n := 0
	for i, r := range s {
		if n += columns(string(r)); n > width {
			return s[:i]
		}
	}
	return s
}
