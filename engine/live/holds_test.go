package live

import (
	"errors"
	"testing"

	"github.com/fre-engine/fre/store"
)

// TestHoldsCounted: a removal, refused or not, leaves no count behind.
func TestHoldsCounted(t *testing.T) {
	h := NewHolds(nil)
	users := map[store.Digest]string{"sha256:a": "function f"}
	all := func() map[store.Digest]string { return users }
	if err := h.WhileUnused("a", "sha256:a", all, func() error { t.Error("removed"); return nil }); !errors.Is(err, store.ErrInUse) {
		t.Errorf("remove an image in use: %v, want ErrInUse", err)
	}
	removed := false
	if err := h.WhileUnused("b", "sha256:b", all, func() error { removed = true; return nil }); err != nil || !removed {
		t.Errorf("remove an unused image: %v, removed %t", err, removed)
	}
	if len(h.leaving)+len(h.making) != 0 {
		t.Errorf("left: %v, %v", h.leaving, h.making)
	}
}
