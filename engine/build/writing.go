package build

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// writing runs f, which writes to the state directory, and cancels its context once only the
// reserve for accepted events is left on the disk. All writers of uploaded, fetched or built
// content run in writing: builds, bases, pulls, loads, imports, snapshots. Errors: an error that
// is ENOSPC, and those of f.
func (l *Library) writing(ctx context.Context, f func(context.Context) error) error {
	return WritingTo(ctx, l.cfg.StateDir, f)
}

// WritingTo is writing for files below dir.
func WritingTo(ctx context.Context, dir string, f func(context.Context) error) error {
	ctx, stop, err := LeaveRoomIn(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	err = f(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, unix.ENOSPC) {
		err = cause
	}
	return err
}

// LeaveRoom returns a context that ends when the disk of the state directory has too little room
// left, with an error that is ENOSPC. stop ends the watch.
func (l *Library) LeaveRoom(ctx context.Context) (_ context.Context, stop func(), err error) {
	return LeaveRoomIn(ctx, l.cfg.StateDir)
}

// WhileRoom returns a writer to w that fails with the cause of ctx once ctx ends. ctx comes from
// LeaveRoom or WritingTo.
func WhileRoom(ctx context.Context, w io.Writer) io.Writer { return &roomWriter{ctx, w} }

type roomWriter struct {
	ctx context.Context
	w   io.Writer
}

func (r *roomWriter) Write(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.w.Write(p)
}

// LeaveRoomIn returns a context that ends when a disk of dirs has too little room left, with an
// error that is ENOSPC. Build steps and snapshots write to the disk of the engine's state: a
// hostile or faulty one would fill the disk. stop ends the watch.
func LeaveRoomIn(ctx context.Context, dirs ...string) (_ context.Context, stop func(), err error) {
	room := func() error {
		for _, dir := range dirs {
			if err := linux.HasRoom(dir, 0); err != nil {
				return err
			}
		}
		return nil
	}
	if err := room(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := room(); err != nil {
					cancel(err)
				}
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }, nil
}
