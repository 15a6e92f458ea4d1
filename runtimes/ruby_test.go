package runtimes_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fre-engine/fre/channel"
)

// A handler that ends its thread ends the event, and another thread takes the next event. The end
// of the main thread is an exit (Thread#kill).
func TestRubyThreadEnds(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "ruby" {
			continue
		}
		for concurrency, want := range map[string]string{"1": "the handler called exit(0)", "2": "the handler ended its thread"} {
			i := l.start(t, "all.ends_thread", "FRE_CONCURRENCY="+concurrency)
			for range 5 {
				_, err := i.invoke(t.Context(), "")
				var f *channel.Failure
				if !errors.As(err, &f) || f.Message != want {
					t.Errorf("%s: got %v", l, err)
				}
			}
			_ = i.Stop()
			<-i.exited
			if code := i.exitCode(); code != 0 {
				t.Errorf("%s: exit status %d", l, code)
			}
		}
	}
}

// RubyGems is loaded on first use.
func TestRubyGems(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "ruby" {
			continue
		}
		got, err := l.start(t, "all.gems").invoke(t.Context(), "")
		if want := `[0,"cannot load such file -- no/such/gem",true,true]`; err != nil || got.Body != want {
			t.Errorf("%s: got %s, %v, want %s", l, got.Body, err, want)
		}
	}
}

// A broken-off stream runs its ensure block.
func TestRubyStreamEnsures(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "ruby" {
			continue
		}
		i := l.start(t, "all.endless")
		finished := make(chan struct{})
		r, err := i.Invoke(t.Context(), &channel.Invocation{Finished: func() { close(finished) }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, r.Body, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := r.Body.Close(); err != nil {
			t.Fatal(err)
		}
		<-finished
		_ = i.Stop()
		<-i.exited
		if !strings.Contains(i.stderr.String(), "put away") {
			t.Errorf("%s: the stream's ensure did not run: %q", l, &i.stderr)
		}
	}
}
