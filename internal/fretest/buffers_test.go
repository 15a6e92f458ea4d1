package fretest

import (
	"strings"
	"testing"
	"time"
)

// TestBuffersLost: an unreleased buffer is reported with its holder.
func TestBuffersLost(t *testing.T) {
	p := Buffers(t, 1)
	b, err := p.TryAcquire(1)
	if err != nil {
		t.Fatal(err)
	}
	if got := lost(p, time.Millisecond); !strings.Contains(got, "4096 bytes") || !strings.Contains(got, "TestBuffersLost") {
		t.Errorf("got %q", got)
	}
	b.Release()
	if got := lost(p, time.Millisecond); got != "" {
		t.Errorf("got %q", got)
	}
}
