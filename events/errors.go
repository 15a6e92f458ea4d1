package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/failure"
)

// Errors of the package. An error meant for a client is also a *RefusedError.
var (
	ErrTooLarge    = failure.New(failure.BodyTooLarge, "the event is too large", "")
	ErrFull        = failure.New(failure.QueueFull, "the queue is full", "")
	ErrUnavailable = failure.New(failure.EventsUnavailable, "the engine cannot store events now", "")
	ErrStorage     = failure.New(failure.EventsStorage, "the disk space for events is used up", "")
	ErrNotFound    = failure.New(failure.NotFound, "no such event", "results expire (events.results in the template), dead letters after a week")
	ErrNotDead     = failure.New(failure.InUse, "the event is not a dead letter", "list dead letters with fre events ls --state dead")
	ErrCallback    = failure.New(failure.CallbackNotAllowed, "the callback is not allowed", "")
	ErrBadEvent    = failure.New(failure.BadEvent, "the event is not valid", "")
)

// RefusedError says that an event was refused, or that the store of events cannot be used now, and
// when to try again. Its code is the code of Err.
type RefusedError struct {
	Err   error
	After time.Duration // 0: a retry is no use
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Code returns the code of Err.
func (e *RefusedError) Code() failure.Code { return failure.Of(e.Err) }

// Next returns the next step of Err.
func (e *RefusedError) Next() string { return failure.Next(e.Err) }

// RetryAfter returns After.
func (e *RefusedError) RetryAfter() time.Duration { return e.After }

// refuse wraps one of the package's errors, with a detail, in a RefusedError.
func refuse(fault error, format string, args ...any) *RefusedError {
	e := &RefusedError{Err: fault}
	if format != "" {
		e.Err = fmt.Errorf("%w: "+format, append([]any{fault}, args...)...)
	}
	switch {
	case errors.Is(fault, ErrUnavailable):
		e.After = time.Second
	case errors.Is(fault, ErrFull):
		e.After = 5 * time.Second
	case errors.Is(fault, ErrStorage):
		e.After = 10 * time.Second
	}
	return e
}

func errStopping() error { return refuse(ErrUnavailable, "the engine is stopping") }

// Final reports whether err refuses an event for good: a retry is no use.
func Final(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && refused.After == 0
}

// JetStream's error codes that fault distinguishes, as nats-server defines them.
const (
	codeNoResources    = 10023
	codeMemoryExceeded = 10028
	codeStoreExceeded  = 10047
	codeNotEnabled     = 10076
	codeStoreFailed    = 10077 // maximum messages or bytes exceeded, or a disk error
)

// fault translates an error of JetStream into a RefusedError.
func fault(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api):
		switch int(api.ErrorCode) {
		case codeStoreFailed:
			if api.Description == "maximum messages exceeded" || api.Description == "maximum bytes exceeded" {
				return refuse(ErrFull, "%s", api.Description)
			}
			return refuse(ErrStorage, "%s", api.Description)
		case codeNoResources, codeMemoryExceeded, codeStoreExceeded:
			return refuse(ErrStorage, "%s", api.Description)
		case codeNotEnabled:
			return refuse(ErrUnavailable, "JetStream is not enabled")
		}
		return refuse(ErrUnavailable, "%s", api.Description)
	case down(err):
		return refuse(ErrUnavailable, "NATS does not answer")
	}
	return refuse(ErrUnavailable, "%v", err)
}

// down reports whether err means that NATS cannot be reached now.
func down(err error) bool {
	for _, known := range []error{
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrReconnectBufExceeded, nats.ErrNoServers,
		context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// diskFault translates an error of a body's file into a RefusedError.
func diskFault(err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return err
	}
	return refuse(ErrStorage, "%v", err)
}
