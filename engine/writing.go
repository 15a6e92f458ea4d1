package engine

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// writing runs f, which writes to the state directory, and cancels its context once the disk
// has only the reserve left that keeps events accepted. Every writer of uploaded, fetched or
// built content runs by it: builds, bases, pulls, loads, imports, snapshots. Errors: one that
// is ENOSPC, and those of f.
func (e *Engine) writing(ctx context.Context, f func(context.Context) error) error {
	return WritingTo(ctx, e.cfg.StateDir, f)
}

// WritingTo runs f, which writes below dir, like writing.
func WritingTo(ctx context.Context, dir string, f func(context.Context) error) error {
	ctx, stop, err := leaveRoom(ctx, dir)
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

// LeaveRoom ends the context that it returns, with an error that is ENOSPC, when the state
// directory's disk has too little room left. stop ends the watch.
func (e *Engine) LeaveRoom(ctx context.Context) (_ context.Context, stop func(), err error) {
	return leaveRoom(ctx, e.cfg.StateDir)
}

// WhileRoom returns a writer to w that fails with the cause of ctx once ctx ends. ctx comes
// from LeaveRoom or WritingTo.
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

// leaveRoom ends the context that it returns, with an error that is ENOSPC, when
// directories that are written to have too little room left. What a build's step, or a
// snapshot, writes is on the disk of the engine's state, where one that is hostile or
// mistaken would leave none for others. stop ends the watch.
func leaveRoom(ctx context.Context, dirs ...string) (_ context.Context, stop func(), err error) {
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
