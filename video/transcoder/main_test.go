package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/linux"
)

// TestWriteInTurn: a source gets its name only with all of its bytes. A part whose predecessors are
// missing or incomplete is refused, and changes nothing.
func TestWriteInTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sources", "a")
	const whole = "0123456789ab"
	put := func(offset int, want error) {
		t.Helper()
		end, err := write(path, int64(offset), int64(len(whole)), strings.NewReader(whole[offset:offset+4]))
		if !errors.Is(err, want) || err == nil && end != int64(offset)+4 {
			t.Errorf("at %d: %d, %v, want %v", offset, end, err, want)
		}
	}
	put(4, errMissing)
	put(8, errMissing)
	put(0, nil)
	put(8, errMissing)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it has its name: %v", err)
	}
	put(4, nil)
	put(8, nil)
	put(8, errMissing) // from a second client at the same time
	put(4, errMissing)
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte(whole)) {
		t.Errorf("%q, %v", b, err)
	}
	put(0, nil) // sent again although present
	put(4, nil)
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte(whole)) {
		t.Errorf("%q, %v", b, err)
	}
}

// TestWriteLeavesRoom: a source is written only while the disk keeps its reserve, and the writing
// continues once there is room.
func TestWriteLeavesRoom(t *testing.T) {
	fretest.RequireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("fre-video-test", disk, "tmpfs", 0, "size=20m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	filler, path := filepath.Join(disk, "filler"), filepath.Join(disk, "sources", "a")
	if err := os.WriteFile(filler, make([]byte, 10<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	end, err := write(path, 0, int64(len(whole)), bytes.NewReader(whole))
	if !errors.Is(err, unix.ENOSPC) || end == 0 || end == int64(len(whole)) {
		t.Fatalf("%d bytes, %v", end, err)
	}
	if err := linux.HasRoom(disk, 0); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if end, err = write(path, end, int64(len(whole)), bytes.NewReader(whole[end:])); err != nil || end != int64(len(whole)) {
		t.Errorf("%d bytes, %v", end, err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, whole) {
		t.Errorf("%d bytes are there, %v", len(b), err)
	}
}
