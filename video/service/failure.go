package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// refusedError is the function's refusal of a source, in the decoder's words. Another try gets
// the same answer.
type refusedError struct{ words string }

func (e *refusedError) Error() string { return e.words }

// brokenError reports that the function crashed over a source or did not answer in time. Another
// try may succeed.
type brokenError struct{ words string }

func (e *brokenError) Error() string { return e.words }

// lost returns the function's words if it refused a job, crashed or hung: the source is at fault,
// not the engine or a disk. The result is "" for other errors.
func lost(err error) string {
	var refused *refusedError
	var broken *brokenError
	switch {
	case errors.As(err, &refused):
		return refused.words
	case errors.As(err, &broken):
		return broken.words
	}
	return ""
}

// awayError is the error of an unavailable engine. The request is not at fault.
type awayError struct{ error }

func (e *awayError) Unwrap() error { return e.error }

// noRoom reports whether err is a full disk or an exhausted quota.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// try calls do until do succeeds, is refused, finds the disk full or has failed three times.
// While the engine is away, try waits and does not count.
func try(ctx context.Context, log *slog.Logger, do func() error) error {
	const most = 3
	wait := 100 * time.Millisecond
	for n := 1; ; {
		err := do()
		var refused *refusedError
		var gone *awayError
		switch {
		case err == nil || errors.As(err, &refused) || noRoom(err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &gone):
			log.WarnContext(ctx, "the engine is away", "error", err)
		case n == most:
			return err
		default:
			n++
			log.WarnContext(ctx, "once more", "error", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// contained turns a panic into an error: do parses a sandbox's answers, which an attacker may
// control.
func contained(log *slog.Logger, do func() error) func() error {
	return func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("what was made cannot be used", "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("what was made cannot be used: %v", p)
			}
		}()
		return do()
	}
}
