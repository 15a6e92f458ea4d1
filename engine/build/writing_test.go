package build

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWritingLeavesRoom: whoever writes ends with ENOSPC, whatever its own error says, where the
// disk has too little room left; with room it goes on.
func TestWritingLeavesRoom(t *testing.T) {
	dir := t.TempDir()
	ran := false
	err := WritingTo(t.Context(), dir, func(ctx context.Context) error {
		ran = ctx.Err() == nil
		return nil
	})
	if err != nil || !ran {
		t.Fatalf("ran %v, %v", ran, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(unix.ENOSPC)
	err = WritingTo(ctx, dir, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
}

// TestWhileRoom: a writer goes on until there is too little room, and says that then.
func TestWhileRoom(t *testing.T) {
	var got bytes.Buffer
	ctx, cancel := context.WithCancelCause(t.Context())
	w := WhileRoom(ctx, &got)
	if _, err := w.Write([]byte("before")); err != nil {
		t.Fatal(err)
	}
	cancel(unix.ENOSPC)
	if _, err := w.Write([]byte("after")); !errors.Is(err, unix.ENOSPC) || got.String() != "before" {
		t.Errorf("wrote %q, %v", &got, err)
	}
}
