package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWriteInTurn: a source gets its name only with all of its bytes: a part whose
// predecessors are not there, or not all of them, is refused, and changes nothing.
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
	put(8, errMissing) // of somebody who gives it at the same time
	put(4, errMissing)
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte(whole)) {
		t.Errorf("%q, %v", b, err)
	}
	put(0, nil) // given again while it is there
	put(4, nil)
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte(whole)) {
		t.Errorf("%q, %v", b, err)
	}
}
