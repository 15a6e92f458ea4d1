package engine

import (
	"errors"
	"testing"

	"github.com/fre-engine/fre/channel"
)

// TestHeldAnswers: what a function's answers hold is bounded by bytes and by
// number; a file that several hold counts once.
func TestHeldAnswers(t *testing.T) {
	h := heldAnswers{bytes: 100}
	take := func(ino uint64, bytes int64) func() {
		t.Helper()
		release, err := h.hold(channel.Held{Dev: 1, Ino: ino, Bytes: bytes})
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	refuse := func(ino uint64, bytes int64) {
		t.Helper()
		if _, err := h.hold(channel.Held{Dev: 1, Ino: ino, Bytes: bytes}); !errors.Is(err, ErrOverloaded) {
			t.Errorf("file %d of %d bytes: got %v, want ErrOverloaded", ino, bytes, err)
		}
	}
	refuse(1, 101)
	first, again := take(1, 60), take(1, 60)
	second := take(2, 40)
	refuse(3, 1)
	onDisk := take(4, 0)
	first()
	refuse(3, 1)
	again()
	third := take(3, 60)
	refuse(5, 1)
	second()
	third()
	onDisk()
	if h.count != 0 || h.sum != 0 || len(h.files) != 0 {
		t.Errorf("%d answers, %d bytes, %d files are left", h.count, h.sum, len(h.files))
	}

	var all []func()
	for range maxHeldAnswers {
		all = append(all, take(1, 0))
	}
	refuse(1, 0)
	for _, release := range all {
		release()
	}
	take(1, 100)()
}
