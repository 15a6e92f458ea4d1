package linux

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSharedUint64: a value stored through one mapping is read through another. A word outside of
// the memory is refused.
func TestSharedUint64(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	var maps [2][]byte
	for i := range maps {
		if maps[i], err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(maps[i]) }()
	}
	SharedUint64(maps[0], 4088).Store(1<<63 | 5)
	if got := SharedUint64(maps[1], 4088).Load(); got != 1<<63|5 {
		t.Errorf("got %#x", got)
	}
	if got := binary.NativeEndian.Uint64(maps[1][4088:]); got != 1<<63|5 {
		t.Errorf("its bytes: %#x", got)
	}
	for _, offset := range []int{-8, -1, 1, 4, 4089, 4096, 1 << 62} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a word at %d", offset)
				}
			}()
			SharedUint64(maps[0], offset)
		}()
	}
}
