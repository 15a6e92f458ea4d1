package build

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWritingLeavesRoom: if the disk has too little room, the writer ends with ENOSPC. With room
// the writer succeeds.
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

// TestWhileRoom: a writer works while there is room, and then returns ENOSPC.
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
