package engine

import (
	"context"
	"errors"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
)

// Errors that callers tell apart, beside *UnknownError.
var (
	ErrNameTaken  = live.ErrNameTaken
	ErrTimeout    = failure.New(failure.Timeout, "function did not answer in time", "")
	ErrOverloaded = failure.New(failure.Overloaded, "too many events are waiting for the function", "")
	ErrDegraded   = admission.ErrRefused // returned as an *admission.RefusedError with the reason
	ErrClosed     = live.ErrClosed
	ErrSlowBody   = failure.New(failure.SlowBody, "the request's body was too slow while other requests waited", "")
	ErrNotReady   = failure.New(failure.NotFunction, "image is not a function", "deploy an image built from a template")
	ErrForeign    = failure.New(failure.Forbidden, "the function is another tenant's", "write the token's tenant into fret.yaml")

	// ErrEventTooLarge: headers, path and query together exceed channel.MaxMeta. Package channel,
	// which functions link, knows no codes.
	ErrEventTooLarge = failure.Wrap(failure.HeaderTooLarge, channel.ErrMetaTooLarge, "")
)

// errRetired tells a waiting event that the function was replaced or removed. The caller looks
// the name up again.
var errRetired = errors.New("function was replaced")

// errAbandoned marks an answer that was closed before the end.
var errAbandoned = errors.New("answer not read completely")

// FunctionError is an exception in user code or a non-zero exit. Stack is for the function's
// owner, not for callers.
type FunctionError struct{ Type, Message, Stack string }

func (e *FunctionError) Error() string {
	if e.Type == "" {
		return e.Message
	}
	return e.Type + ": " + e.Message
}

// Code returns [failure.FunctionError].
func (e *FunctionError) Code() failure.Code { return failure.FunctionError }

// CrashError says that the instance died or violated the protocol.
type CrashError struct {
	Status sandbox.ExitStatus
	Reason string
}

func (e *CrashError) Error() string { return "function " + e.Reason }

// Code returns [failure.FunctionCrashed].
func (e *CrashError) Code() failure.Code { return failure.FunctionCrashed }

// InvocationError says why an event has no answer: Err, with the ids of the logs.
type InvocationError struct {
	ID       string // of the invocation
	Instance string // of the sandbox, "" if the event reached none
	Err      error
}

func (e *InvocationError) Error() string { return e.Err.Error() }

func (e *InvocationError) Unwrap() error { return e.Err }

// Failed returns the invocation that err ended, or the zero value.
func Failed(err error) InvocationError {
	var failed *InvocationError
	if errors.As(err, &failed) {
		return *failed
	}
	return InvocationError{}
}

// metaError is ErrEventTooLarge with the sizes that package channel reports.
type metaError struct{ error }

func (e metaError) Is(target error) bool { return target == ErrEventTooLarge }

func (e metaError) Unwrap() error { return e.error }

// Code returns [failure.HeaderTooLarge].
func (e metaError) Code() failure.Code { return failure.HeaderTooLarge }

// LoopError refuses a call that would never end or would wait for itself.
type LoopError struct {
	Chain string // the waiting functions, "a → b → a"
	Why   string
}

func (e *LoopError) Error() string { return e.Chain + ": " + e.Why }

// Code returns [failure.Loop].
func (e *LoopError) Code() failure.Code { return failure.Loop }

// CallError says why a call has no answer.
type CallError struct {
	Chain string // the waiting functions, "a → b"
	Err   error
}

func (e *CallError) Error() string {
	var loop *LoopError
	if errors.As(e.Err, &loop) { // a LoopError contains the chain
		return loop.Error()
	}
	if inner := (*CallError)(nil); errors.As(e.Err, &inner) { // the error of a pipeline contains the chain
		return inner.Error()
	}
	if step := (*StepError)(nil); errors.As(e.Err, &step) { // likewise
		return step.Error()
	}
	return e.Chain + ": " + e.Err.Error()
}

func (e *CallError) Unwrap() error { return e.Err }

// Code returns the code of Err for the calling function. Codes of the control API become
// [failure.Internal], because the function could not act on the failure.
func (e *CallError) Code() failure.Code { return callCode(e.Err) }

// callCode returns the code that a caller gets.
func callCode(err error) failure.Code {
	var ended *channel.Failure // the caller cancelled the call
	code := failure.Of(err)
	switch {
	case code.OfControl():
		return failure.Internal
	case code != "":
		return code
	case errors.As(err, &ended):
		return failure.Code(ended.Type)
	case errors.Is(err, context.Canceled):
		return failure.Cancelled
	}
	return failure.Internal
}

// StepError says that a pipeline failed after a step has run, or because a step is missing. A
// caller must not take the event for a refused one and send it elsewhere.
type StepError struct {
	Failure failure.Code // of the step, or failure.StepMissing
	Err     error
}

func (e *StepError) Error() string { return e.Err.Error() }

// Code returns Failure.
func (e *StepError) Code() failure.Code { return e.Failure }

// Unwrap returns Err if the step itself failed, else nil.
func (e *StepError) Unwrap() error {
	switch e.Failure { //nolint:exhaustive // the three by which a step that ran can fail
	case failure.FunctionError, failure.FunctionCrashed, failure.Timeout:
		return e.Err
	}
	return nil
}
