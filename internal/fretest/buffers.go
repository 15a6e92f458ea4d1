package fretest

import (
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/buffer"
)

// Buffers returns a pool of at least the given size. All memory must be back in the pool when the
// test ends: otherwise the test fails with the stacks of the missing allocations.
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

// lost waits for the pool to get all memory back, and returns "" then. After the given time it
// describes the missing memory.
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
