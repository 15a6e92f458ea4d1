package runtimes_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fre-engine/fre/channel"
)

// A fatal error of PHP, including exit, ends the instance, and the events in flight get its
// message.
func TestPHPFatal(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "php" {
			continue
		}
		for handler, want := range map[string]struct {
			typ, message string
			status       int
		}{
			"all.exits":     {"Exit", "the handler called exit", 3},
			"all.memory":    {"FatalError", "Allowed memory size of 33554432 bytes exhausted", 255},
			"all.recursion": {"FatalError", "Allowed memory size of 33554432 bytes exhausted", 255},
			"all.fatal":     {"FatalError", "Class C contains 1 abstract method", 255},
		} {
			i := l.start(t, handler, "FRE_MEMORY_BYTES=67108864")
			_, err := i.invoke(t.Context(), "")
			var f *channel.Failure
			if !errors.As(err, &f) || f.Type != want.typ || !strings.Contains(f.Message, want.message) {
				t.Errorf("%s %s: got %v, want %s: …%s…", l, handler, err, want.typ, want.message)
			}
			<-i.exited
			if code := i.exitCode(); code != want.status {
				t.Errorf("%s %s: exit status %d, want %d", l, handler, code, want.status)
			}
			if !strings.Contains(i.stderr.String(), want.message) {
				t.Errorf("%s %s: stderr does not tell: %q", l, handler, &i.stderr)
			}
		}
	}
}

// A handler that forks and returns in both processes gives one answer: the parent's.
func TestForkingHandler(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "php" && l.name != "ruby" {
			continue
		}
		for _, concurrency := range []string{"1", "4"} {
			i := l.start(t, "all.forks", "FRE_CONCURRENCY="+concurrency)
			for range 2 {
				got, err := i.invoke(t.Context(), "")
				if err != nil || got.Body != "parent" {
					t.Errorf("%s: got %q, %v", l, got.Body, err)
				}
			}
		}
	}
}
