package intake_test

import (
	"testing"

	"github.com/fre-engine/fre/server/intake"
)

// A limited number may enter at a time, and fewer from a single sender, unless the sender is
// shared. Each entry frees a slot exactly once.
func TestSlots(t *testing.T) {
	p := intake.Slots[string]{All: 3, Of: 2, Shared: func(from string) bool { return from == "a proxy" }}
	enter := func(from string, want bool) func() {
		t.Helper()
		leave, ok := p.Enter(from)
		if ok != want {
			t.Errorf("%s comes: %t, want %t", from, ok, want)
		}
		return leave
	}
	first, second := enter("a", true), enter("a", true)
	enter("a", false)
	third := enter("b", true)
	enter("c", false)
	first()
	first()
	enter("c", true)()
	again := enter("a", true)
	enter("a", false)
	for _, leave := range []func(){second, third, again} {
		leave()
	}
	for range 3 {
		enter("a proxy", true)
	}
	enter("b", false)
}
