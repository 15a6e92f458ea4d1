package live

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLongLogLine: no message of a function's logger makes its log unreadable.
func TestLongLogLine(t *testing.T) {
	l, err := OpenLog(filepath.Join(t.TempDir(), "f"), "f", 8<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text := strings.Repeat("\x01ü", 100<<10)
	l.Append(LogLine{Time: time.Now(), Stream: "log", Level: strings.Repeat("l", 1<<20), Text: text}, LogLine{Time: time.Now(), Text: "next"})
	for tail, want := range map[int]string{-1: text + "next", 1: "next", 1000: text + "next"} {
		var got strings.Builder
		err := l.Read(t.Context(), nil, LogOptions{Tail: tail}, func(line LogLine) error { got.WriteString(line.Text); return nil })
		if err != nil || got.String() != want {
			t.Errorf("tail %d: %d bytes, %v; want %d", tail, got.Len(), err, len(want))
		}
	}
}

// TestLongLines: a printed line of any length is one record, for readers of the whole log, of the
// tail and of new lines. All characters stay whole, even if pieces of other lines lie between.
func TestLongLines(t *testing.T) {
	l, err := OpenLog(filepath.Join(t.TempDir(), "f"), "f", 8<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	long := map[string]string{
		"a": strings.Repeat("x", 2*maxLogLine-1) + strings.Repeat("ü€😀", maxLogLine),
		"b": strings.Repeat("y", maxLogLine-1), // with CR LF across the end of a piece
		"c": strings.Repeat("z", 3*maxLogLine), // not ended by its program
	}
	ctx, stop := context.WithCancel(t.Context())
	following := make(chan error)
	var followed []LogLine
	go func() {
		following <- l.Read(ctx, nil, LogOptions{Tail: -1, Follow: true}, func(line LogLine) error {
			if followed = append(followed, line); line.Sandbox == "d" { // the last line
				stop()
			}
			return nil
		})
	}()
	for followers := 0; followers == 0; runtime.Gosched() {
		l.mu.Lock()
		followers = len(l.followers)
		l.mu.Unlock()
	}
	var copies sync.WaitGroup
	for sandbox, end := range map[string]string{"a": "\nnext\n", "b": "\r\nnext\n", "c": ""} {
		copies.Go(func() {
			text := "first\n" + long[sandbox] + end
			l.CopyLines(io.MultiReader(strings.NewReader(text[:100]), strings.NewReader(text[100:])), LogLine{Sandbox: sandbox, Stream: "stdout"})
		})
	}
	copies.Wait()
	l.Append(LogLine{Time: time.Now(), Sandbox: "d", Text: "last"})
	<-following
	check := func(how string, lines []LogLine) {
		t.Helper()
		got := map[string][]string{}
		for _, line := range lines {
			got[line.Sandbox] = append(got[line.Sandbox], line.Text)
			if line.More || line.Rest || line.Partial != (line.Sandbox == "c" && line.Text != "first") {
				t.Errorf("%s: sandbox %s, %d bytes: partial %t, more %t, rest %t", how, line.Sandbox, len(line.Text), line.Partial, line.More, line.Rest)
			}
		}
		for sandbox, text := range long {
			want := []string{"first", text, "next"}
			if sandbox == "c" {
				want = want[:2]
			}
			if !slices.Equal(got[sandbox], want) {
				t.Errorf("%s: sandbox %s: %d lines, want %d; or they differ", how, sandbox, len(got[sandbox]), len(want))
			}
		}
	}
	all := func(o LogOptions) (lines []LogLine) {
		if err := l.Read(t.Context(), nil, o, func(line LogLine) error { lines = append(lines, line); return nil }); err != nil {
			t.Fatal(err)
		}
		return lines
	}
	check("all", all(LogOptions{Tail: -1}))
	check("tail", all(LogOptions{Tail: 9}))
	check("follow", followed)
	if tail := all(LogOptions{Tail: 2, Sandbox: "a"}); len(tail) != 2 || tail[0].Text != long["a"] {
		t.Errorf("the last two lines of a: %d, the first of %d bytes, want %d", len(tail), len(tail[0].Text), len(long["a"]))
	}
}

// TestLostPieces: if the end of a line was dropped, the next line does not take its place. If the
// program was killed, the log shows the received part of the line.
func TestLostPieces(t *testing.T) {
	var got []string
	j := joiner{most: 20, emit: func(line LogLine) error {
		got = append(got, fmt.Sprintf("%s:%s:%t", line.Sandbox, line.Text, line.Partial))
		return nil
	}}
	for i, line := range []LogLine{
		{Sandbox: "a", Text: "lost", Partial: true, More: true},
		{Sandbox: "b", Text: "b1", Partial: true, More: true},
		{Sandbox: "a", Text: "next"},
		{Sandbox: "a", Text: "end", Rest: true}, // its beginning was rotated away
		{Sandbox: "b", Text: "b2", Partial: true, More: true, Rest: true},
		{Sandbox: "c", Text: "more than the limit", Partial: true, More: true},
		{Sandbox: "c", Text: "and on", Rest: true},
		{Sandbox: "a", Text: "killed", Partial: true, More: true},
	} {
		line.Time = time.Unix(int64(i), 0)
		if err := j.add(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.flush(); err != nil || j.bytes != 0 {
		t.Errorf("%v, %d bytes are left", err, j.bytes)
	}
	want := []string{"a:lost:false", "a:next:false", "a:end:false", "c:more than the limit:true", "c:and on:false", "b:b1b2:true", "a:killed:true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestFollowerLags: a follower that lags learns the number of missed lines.
func TestFollowerLags(t *testing.T) {
	f := &follower{lines: make(chan LogLine, 2)}
	for _, text := range []string{"a", "b", "c", "d"} {
		f.send(LogLine{Text: text})
	}
	<-f.lines
	<-f.lines
	f.send(LogLine{Text: "e"})
	if told, last := <-f.lines, <-f.lines; !strings.HasPrefix(told.Text, "2 lines left out") || last.Text != "e" {
		t.Errorf("%q, %q", told.Text, last.Text)
	}
}

// TestLogReopens: a log that could not be opened once works later.
func TestLogReopens(t *testing.T) {
	l, err := OpenLog(filepath.Join(t.TempDir(), "f"), "f", 8<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	l.file = nil // as after a rotation without a free descriptor
	l.Append(LogLine{Time: time.Now(), Text: "again"})
	n := 0
	if err := l.Read(t.Context(), nil, LogOptions{Tail: -1}, func(LogLine) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("%d lines, %v", n, err)
	}
}

// TestLogPace: the engine reads a flood no faster than the limit for dropped output. The first line
// of a later second is whole.
func TestLogPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := OpenLog(filepath.Join(t.TempDir(), "f"), "f", 8<<20, 3)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		r, w := io.Pipe()
		copied := make(chan struct{})
		go func() {
			defer close(copied)
			l.CopyLines(r, LogLine{Sandbox: "s", Stream: "stdout"})
		}()
		write := func(text string) {
			t.Helper()
			if _, err := io.WriteString(w, text); err != nil {
				t.Fatal(err)
			}
		}
		const seconds = 3
		began := time.Now()
		block := strings.Repeat(strings.Repeat("y", 1023)+"\n", 1<<10)
		for range seconds * DrainBytes / len(block) {
			write(block)
		}
		if took := time.Since(began); took < (seconds-1)*time.Second {
			t.Errorf("%d bytes were read in %v", seconds*DrainBytes, took)
		}
		write("cut off")
		time.Sleep(2 * time.Second) //nolint:forbidigo // of the bubble
		write(" here\nwhole\n")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		<-copied
		var last LogLine
		told := 0
		err = l.Read(t.Context(), nil, LogOptions{Tail: -1}, func(line LogLine) error {
			if strings.Contains(line.Text, "bytes of output dropped") {
				told++
			}
			last = line
			return nil
		})
		if err != nil || last.Text != "whole" || told < seconds {
			t.Errorf("last line %q, %d seconds' drops told, %v; want the whole last line, and each second's drops", last.Text, told, err)
		}
	})
}
