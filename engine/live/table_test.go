package live

import (
	"strconv"
	"testing"
	"time"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// newTable returns a table without a host.
func newTable() *Table { return NewTable(NewLife(), nil, store.NewChanges(1)) }

// add enters a box without a sandbox; lists show no process for it.
func (r *Table) add(b *Box) *Box {
	b.created, b.gone, b.State = time.Now(), make(chan struct{}), func() State { return StateExited }
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(b)
	return b
}

// TestEndedKept: lists keep the last ended sandboxes, newest start first, beside a live one.
func TestEndedKept(t *testing.T) {
	table := newTable()
	table.add(&Box{ID: "lives"})
	for i := range endedKept + 10 {
		b := table.add(&Box{ID: strconv.Itoa(i)})
		table.mu.Lock()
		table.endLocked(b, sandbox.ExitStatus{Code: i})
		table.mu.Unlock()
	}
	all := NewList(table).Sandboxes(true)
	if len(all) != endedKept+1 || all[endedKept].ID != "lives" {
		t.Fatalf("%d sandboxes, the last %+v, want %d, the last lives", len(all), all[len(all)-1], endedKept+1)
	}
	for i, s := range all[:endedKept] {
		if want := strconv.Itoa(endedKept + 9 - i); s.ID != want {
			t.Fatalf("sandbox %d is %s, want %s", i, s.ID, want)
		}
	}
}
