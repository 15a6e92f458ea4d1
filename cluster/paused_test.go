package cluster

import (
	"log/slog"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/linux"
)

// TestPaused: after a pause of the node itself, the node knows that its lease has expired. The node
// takes a silent peer for lost only after listening again for a while.
func TestPaused(t *testing.T) {
	const ttl = time.Second
	ago := linux.Boottime() - 10*ttl
	heard, silent := &member{seen: ago, lost: make(chan struct{})}, &member{seen: ago, lost: make(chan struct{})}
	n := &Node{
		cfg: Config{Name: "a", TTL: ttl, Log: slog.New(slog.DiscardHandler)}, joined: true, beaten: ago,
		view: map[string]*member{"b": heard, "c": silent},
	}
	if !n.partitioned() {
		t.Error("a lease renewed 10 TTL ago is taken for one that lasts")
	}
	for range beats - 1 {
		n.loseSilent(linux.Boottime())
	}
	if heard.gone || silent.gone {
		t.Errorf("lost at once: %v, %v", heard.gone, silent.gone)
	}
	n.see(Info{Name: "b"})
	n.loseSilent(linux.Boottime())
	if heard.gone || !silent.gone {
		t.Errorf("lost: of whom something was heard %v, the silent one %v", heard.gone, silent.gone)
	}
}
