package fretest

import (
	"strings"
	"testing"
	"time"
)

// TestBuffersLost: what is not released is told, with who took it.
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
