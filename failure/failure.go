// Package failure is the vocabulary of FRE's errors: a [Code] for each kind of failure.
//
// An error carries a code by [New], by [Wrap], or by a method Code of the error's type. [Of] finds
// the code in a chain of errors. The package knows no HTTP and imports no other part of FRE, so
// every package may import failure. Package api has the catalogue: the HTTP status, the meaning
// and the next step of each code.
package failure

import (
	"errors"
	"time"
)

// Code names a kind of failure. Codes are stable and meant for programs.
type Code string

// The codes. The catalogue in package api explains them.
const (
	BadRequest          Code = "bad_request"
	BadName             Code = "bad_name"
	BadPath             Code = "bad_path"
	BadBody             Code = "bad_body"
	BadCall             Code = "bad_call"
	BadEvent            Code = "bad_event"
	WrongPlatform       Code = "wrong_platform"
	Unauthorized        Code = "unauthorized"
	BadSignature        Code = "bad_signature"
	BadToken            Code = "bad_token"
	Forbidden           Code = "forbidden"
	CallbackNotAllowed  Code = "callback_not_allowed"
	NotFound            Code = "not_found"
	ImageGone           Code = "image_gone"
	MethodNotAllowed    Code = "method_not_allowed"
	SlowHead            Code = "slow_head"
	SlowBody            Code = "slow_body"
	Ambiguous           Code = "ambiguous"
	Conflict            Code = "conflict"
	Exists              Code = "exists"
	InUse               Code = "in_use"
	NameTaken           Code = "name_taken"
	Gone                Code = "gone"
	PreconditionFailed  Code = "precondition_failed"
	BodyTooLarge        Code = "body_too_large"
	TooLarge            Code = "too_large"
	PathTooLong         Code = "path_too_long"
	RangeNotSatisfiable Code = "range_not_satisfiable"
	ExpectationFailed   Code = "expectation_failed"
	Template            Code = "template"
	BuildFailed         Code = "build_failed"
	Package             Code = "package"
	NotFunction         Code = "not_a_function"
	CommandNotFound     Code = "command_not_found"
	CommandNotExec      Code = "command_not_exec"
	UpgradeRequired     Code = "upgrade_required"
	Quota               Code = "quota"
	SlowDown            Code = "slow_down"
	QueueFull           Code = "queue_full"
	HeaderTooLarge      Code = "header_too_large"
	Cancelled           Code = "cancelled"
	FunctionError       Code = "function_error"
	Internal            Code = "internal"
	NotImplemented      Code = "not_implemented"
	Unsupported         Code = "unsupported"
	FunctionCrashed     Code = "function_crashed"
	StepMissing         Code = "step_missing"
	Registry            Code = "registry"
	PackageSite         Code = "package_site"
	Overloaded          Code = "overloaded"
	EngineOverloaded    Code = "engine_overloaded"
	Degraded            Code = "degraded"
	Busy                Code = "busy"
	Stopping            Code = "stopping"
	TokenUnchecked      Code = "token_unchecked"
	EventsUnavailable   Code = "events_unavailable"
	EventsStorage       Code = "events_storage"
	NoSecret            Code = "no_secret"
	Partitioned         Code = "partitioned"
	Timeout             Code = "timeout"
	VersionNotSupported Code = "version_not_supported"
	NoSpace             Code = "no_space"
	Loop                Code = "loop"
)

// OfControl reports whether the code is about a deployment, an object or the host. Only the control
// API and the adapters report these codes. A caller of functions could not act on the failure, and
// the message may name files of the host: a caller gets [Internal], and the engine's log has the
// reason.
func (c Code) OfControl() bool {
	switch c { //nolint:exhaustive // all others are for callers too
	case BadName, WrongPlatform, Ambiguous, Conflict, Exists, InUse, NameTaken, Gone, TooLarge, Template, BuildFailed, Package, NotFunction,
		CommandNotFound, CommandNotExec, UpgradeRequired, Unsupported, Registry, PackageSite, Partitioned, NoSpace:
		return true
	default:
		return false
	}
}

// coded is an error with a code. [RetryAfter] looks for a further method.
type coded interface {
	error
	Code() Code
}

// Of returns the code of err, "" for an error without a code.
func Of(err error) Code {
	if found := (coded)(nil); errors.As(err, &found) {
		return found.Code()
	}
	return ""
}

// Next returns the next step that the outermost error with a method Next names, "" for none.
func Next(err error) string {
	if found := (interface{ Next() string })(nil); errors.As(err, &found) {
		return found.Next()
	}
	return ""
}

// RetryAfter returns the wait before a retry; ok reports whether the error with the code names a
// wait. 0 means a retry is no use.
func RetryAfter(err error) (wait time.Duration, ok bool) {
	if found := (coded)(nil); errors.As(err, &found) {
		if timed, says := found.(interface{ RetryAfter() time.Duration }); says {
			return timed.RetryAfter(), true
		}
	}
	return 0, false
}

// New returns an error with a code. next is the user's next step; "" means the catalogue's.
func New(code Code, text, next string) error { return &marked{errors.New(text), code, next} }

// Wrap gives err a code, with the same text. next is as for [New].
func Wrap(code Code, err error, next string) error { return &marked{err, code, next} }

// Hint gives err the user's next step, with the same text and code.
func Hint(err error, next string) error { return &hinted{err, next} }

type hinted struct {
	error
	next string
}

// Unwrap returns the error without the next step.
func (e *hinted) Unwrap() error { return e.error }

// Next returns the next step.
func (e *hinted) Next() string { return e.next }

type marked struct {
	error
	code Code
	next string
}

// Code returns the code.
func (e *marked) Code() Code { return e.code }

// Next returns the next step, "" for the catalogue's.
func (e *marked) Next() string { return e.next }

// Unwrap returns the error without its code.
func (e *marked) Unwrap() error { return e.error }
