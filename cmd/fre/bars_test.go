package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// screen is a terminal that understands the output of bars. A line longer than the width takes
// several rows.
type screen struct {
	t             *testing.T
	width, height int
	lines         []string // all lines, scrolled ones included; the cursor is below the last line
	lost          bool     // the begin of a frame had scrolled away when the next frame came
}

var (
	escapes  = regexp.MustCompile(`\x1b\[[0-9]*[a-zA-Z]`)
	partLine = regexp.MustCompile(`^packages (part-\d+) .*, \d`)
)

func (s *screen) rows(line string) int {
	return max(1, (len(escapes.ReplaceAllString(line, ""))+s.width-1)/s.width)
}

func (s *screen) Write(p []byte) (int, error) {
	text := string(p)
	if rest, ok := strings.CutPrefix(text, "\x1b["); ok && strings.Contains(rest, "A\r") {
		n, after, _ := strings.Cut(rest, "A")
		up, err := strconv.Atoi(n)
		if err != nil {
			s.t.Fatalf("the frame begins with %.20q", text)
		}
		text, s.lost = after, s.lost || up >= s.height
		for up = min(up, s.height-1); up > 0 && len(s.lines) > 0; { // the cursor stops at the top of the screen
			last := len(s.lines) - 1
			up -= s.rows(s.lines[last])
			s.lines = s.lines[:last]
		}
	}
	text, ok := strings.CutPrefix(text, "\r\x1b[J")
	if !ok {
		s.t.Fatalf("a frame does not clear what is below: %.40q", text)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		s.t.Fatalf("the cursor is left on a line: %q", text)
	}
	for line := range strings.Lines(text) {
		s.lines = append(s.lines, strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

// On windows of all sizes, which change meanwhile, progress bars fit in the window, report each
// complete part once, and leave no rest.
func TestBarsFit(t *testing.T) {
	rnd := fretest.Rand(t)
	whole := 0
	for round := range 60 {
		s := &screen{t: t, width: 4 + rnd.IntN(120), height: 1 + rnd.IntN(40)}
		b := &bars{out: s, size: func() (int, int) { return s.width, s.height }, color: rnd.IntN(2) == 0, stop: make(chan struct{}), told: map[string]int{}}
		now := b.begun
		var want []string
		for i := range 60 {
			now = now.Add(time.Duration(rnd.IntN(300)) * time.Millisecond)
			e := randomEvent(rnd, i)
			b.event(e, now)
			if e.End {
				want = append(want, e.Name)
			}
			if round%2 == 1 && rnd.IntN(8) == 0 {
				s.width, s.height = max(4, s.width+rnd.IntN(30)-15), max(1, s.height+rnd.IntN(10)-5)
			}
			b.draw(now)
			if len(b.frame) > max(1, s.height-1) {
				t.Fatalf("%d lines on a screen of %d", len(b.frame), s.height)
			}
			for _, line := range b.frame {
				if got := escapes.ReplaceAllString(line, ""); len(got) >= s.width {
					t.Fatalf("%q on a screen of %d columns", got, s.width)
				}
			}
		}
		b.end()
		if s.lost {
			continue // lines that scrolled away cannot be erased
		}
		var got []string
		for _, line := range s.lines {
			if name := partLine.FindStringSubmatch(line); name != nil {
				got = append(got, name[1])
			}
		}
		if diff := cmp.Diff(want[:min(len(want), maxTold)], got); diff != "" {
			t.Fatalf("parts told of (-want +got):\n%s\nscreen:\n%s", diff, strings.Join(s.lines, "\n"))
		}
		whole++
		if len(got) != len(s.lines) {
			t.Fatalf("more is left than the parts:\n%s", strings.Join(s.lines, "\n"))
		}
	}
	if whole < 30 {
		t.Errorf("only %d of 60 screens kept their frames", whole)
	}
}

func randomEvent(rnd *rand.Rand, i int) api.Progress {
	e := api.Progress{Step: "packages", Name: fmt.Sprintf("part-%d", i), Message: "m" + strings.Repeat("x", rnd.IntN(40)), Unit: api.UnitBytes}
	switch rnd.IntN(3) {
	case 0:
		e.End = true
	case 1:
		e.Total, e.Done = rnd.Int64N(1e9), rnd.Int64N(2e9)-1e8
	}
	return e
}

func TestBarsSay(t *testing.T) {
	s := &screen{t: t, width: 90, height: 5}
	b := &bars{out: s, size: func() (int, int) { return s.width, s.height }, stop: make(chan struct{}), told: map[string]int{}}
	at := func(d time.Duration) time.Time { return b.begun.Add(d) }
	b.event(api.Progress{Step: "base", Name: "python", Message: "found", End: true}, at(0))
	b.event(api.Progress{Step: "packages", Name: "lxml 5.3.0", Message: "unpack", Total: 9_100_000, Unit: api.UnitBytes}, at(0))
	b.event(api.Progress{Step: "packages", Name: "lxml 5.3.0", Message: "unpack", Done: 4_300_000, Total: 9_100_000, Unit: api.UnitBytes}, at(time.Second))
	b.event(api.Progress{Step: "packages", Message: "resolve\x1b[31m"}, at(time.Second))
	b.event(api.Progress{Step: "packages", Name: "six", Total: 4, Done: 1}, at(time.Second))
	b.event(api.Progress{Step: "packages", Name: "seven"}, at(time.Second))
	b.draw(at(2 * time.Second))
	want := []string{
		"base python found, 0ms",
		"packages lxml 5.3.0 [==============>               ] 4.3MB/9.1MB 2.15MB/s unpack",
		`packages            resolve\x1b[31m`,
		"packages six        [=======>                      ] 1/4",
		"1 part done, 1 more in progress, 2s",
	}
	if diff := cmp.Diff(want, s.lines); diff != "" {
		t.Errorf("a screen of 5 lines (-want +got):\n%s", diff)
	}
	b.event(api.Progress{Step: "packages", Name: "lxml 5.3.0", End: true}, at(3*time.Second))
	b.event(api.Progress{Step: "warning", Name: "dev/x", Message: "device"}, at(3*time.Second))
	b.end()
	want = []string{"base python found, 0ms", "packages lxml 5.3.0, 9.1MB, 3.0s", "warning dev/x device"}
	if diff := cmp.Diff(want, s.lines); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
}

// At a real terminal the bars follow the window's size, and Ctrl-C removes the bars and restores
// the terminal.
func TestBarsAtATerminal(t *testing.T) {
	fretest.RequireRoot(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "fre") // TestMain runs fre under this name
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	template := filepath.Join(dir, "template")
	for _, err := range []error{
		os.Symlink(self, bin), os.Mkdir(template, 0o755),
		os.WriteFile(filepath.Join(template, "fret.yaml"), []byte("id: bars\nbase: python\npackages: {pip: [slow-one]}\n"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	socket := serveForTest(t)
	at := func(rows, columns uint16, env ...string) *daemontest.Terminal {
		cmd := exec.CommandContext(t.Context(), bin, "--socket", socket, "build", template)
		cmd.Env = append(os.Environ(), append([]string{"TERM=xterm"}, env...)...)
		return daemontest.RunAtTerminal(t, cmd, rows, columns)
	}
	u := at(24, 80, "NO_COLOR=")
	u.Sees("base python found, ")
	u.Sees("packages slow-one [\x1b[32m=======>")
	u.Sees("25MB/100MB")
	u.Sees("1 part done, ")
	u.Resize(24, 20)
	u.Sees("slow-on 25MB/100MB \r\n") // no room for a bar
	u.Resize(24, 80)
	u.Sees("[\x1b[32m=======>")
	u.Types("\x03")
	u.Sees("\x1b[2A\r\x1b[Jfre: interrupted")
	u.Leaves(130)

	u = at(24, 80, "NO_COLOR=1")
	u.Sees("packages slow-one [=======>")
	u.Types("\x03")
	u.Leaves(130)
	u = at(24, 80, "TERM=dumb")
	u.Sees("packages slow-one unpack\r\n")
	u.Types("\x03")
	u.Leaves(130)
}
