package fretest

import (
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/buffer"
)

// Buffers returns a pool of at least so many bytes that must have got everything
// back when the test ends: otherwise the test fails, with the stacks that took what
// is missing.
func Buffers(t testing.TB, bytes int64) *buffer.Pool {
	t.Helper()
	p, err := buffer.New(buffer.Config{Bytes: bytes, Stacks: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if lost := lost(p, leaksWithin); lost != "" {
			t.Error(lost)
		} else if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// lost says what a pool does not get back within a time, "" for nothing.
func lost(p *buffer.Pool, within time.Duration) string {
	deadline := time.Now().Add(within)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s := p.Stats()
		if s.Held == 0 {
			return ""
		}
		if time.Now().After(deadline) {
			var stacks strings.Builder
			_ = pprof.Lookup("fre_buffers").WriteTo(&stacks, 1)
			return fmt.Sprintf("%d bytes of buffers were not released; of all pools:\n%s", s.Held, &stacks)
		}
		<-tick.C
	}
}
