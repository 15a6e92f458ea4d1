package api

import "github.com/fre-engine/fre/failure"

// Error is the engine's only format for a failure:
//
//	{"error": {"code": "not_found", "message": "function \"x\": …", "next": "…"}}
//
// Code is stable and meant for programs; [Failures] explains the codes. Message and Next are meant
// for people.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Next    string `json:"next,omitempty"` // the user's next step
	Status  int    `json:"-"`              // HTTP status of the answer
}

func (e *Error) Error() string { return e.Message }

// ErrorBody is the body of an answer that reports a failure.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// Code names a kind of failure.
type Code = failure.Code

// Codes that clients of the control API compare. [Failures] lists all codes.
const (
	CodeBadRequest       = failure.BadRequest
	CodeUnauthorized     = failure.Unauthorized
	CodeForbidden        = failure.Forbidden
	CodeNotFound         = failure.NotFound
	CodeMethod           = failure.MethodNotAllowed
	CodeNameTaken        = failure.NameTaken
	CodeInUse            = failure.InUse
	CodeAmbiguous        = failure.Ambiguous
	CodeConflict         = failure.Conflict
	CodeGone             = failure.Gone
	CodeTooLarge         = failure.TooLarge
	CodeTemplate         = failure.Template
	CodeBuildFailed      = failure.BuildFailed
	CodePackage          = failure.Package
	CodeNotFunction      = failure.NotFunction
	CodeCommandNotFound  = failure.CommandNotFound
	CodeCommandNotExec   = failure.CommandNotExec
	CodeFunction         = failure.FunctionError
	CodeInternal         = failure.Internal
	CodeCrash            = failure.FunctionCrashed
	CodeStepMissing      = failure.StepMissing
	CodeLoop             = failure.Loop
	CodePackageSite      = failure.PackageSite
	CodeOverloaded       = failure.Overloaded
	CodeClosed           = failure.Stopping
	CodeTimeout          = failure.Timeout
	CodeInsufficientDisk = failure.NoSpace
)

// Headers that the engine adds to a function's answer to an invocation. An answer without
// InvocationHeader comes from the engine itself. A function cannot set headers that begin with
// X-Fre-.
const (
	InvocationHeader = "X-Fre-Id"       // id of the invocation, also in the logs
	InstanceHeader   = "X-Fre-Instance" // id of the sandbox that answered
	ColdHeader       = "X-Fre-Cold"     // "1" if the engine started a sandbox for the invocation, else "0"
	StartKindHeader  = "X-Fre-Start"    // source of the instance: warm, forked, interpreter, attached, bare, spawner
	StartHeader      = "X-Fre-Start-Us" // microseconds from the request to a ready instance
)
