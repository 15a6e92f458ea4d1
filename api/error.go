package api

// Error is the one shape in which the engine reports a failure:
//
//	{"error": {"code": "not_found", "message": "function \"x\": …", "next": "…"}}
//
// Code is stable and for programs, Message and Next are for people.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Next    string `json:"next,omitempty"` // what the user can do about it
	Status  int    `json:"-"`              // HTTP status it came with
}

func (e *Error) Error() string { return e.Message }

// ErrorBody is the body of an answer that reports a failure.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// Code names a kind of failure.
type Code string

// The codes. The status beside each is what the server sends.
const (
	CodeBadRequest       Code = "bad_request"        // 400: malformed JSON, tar, parameter
	CodeUnauthorized     Code = "unauthorized"       // 401: a token is needed, or it does not hold
	CodeExists           Code = "exists"             // 409: a tenant, token or secret of that name
	CodeQuota            Code = "quota"              // 429: the tenant has as much as it may
	CodeSlowDown         Code = "slow_down"          // 429: too many failures of authentication
	CodeForbidden        Code = "forbidden"          // 403: neither root nor in the engine's group; a registry wants a login
	CodeNotFound         Code = "not_found"          // 404: no such function, image, sandbox, route
	CodeMethod           Code = "method_not_allowed" // 405
	CodeNameTaken        Code = "name_taken"         // 409: another template's function has the name
	CodeInUse            Code = "in_use"             // 409: the image still serves a function; a profile is being taken
	CodeAmbiguous        Code = "ambiguous"          // 409: a prefix that names several things
	CodeGone             Code = "gone"               // 410: changes that are no longer remembered
	CodeTooLarge         Code = "too_large"          // 413: body over the limit
	CodeTemplate         Code = "template"           // 422: fret.yaml is wrong; message has file:line:column
	CodeBuildFailed      Code = "build_failed"       // 422: a build step said no
	CodePackage          Code = "package"            // 422: a package is not what is pinned, is gone, or breaks its format's rules
	CodeNotFunction      Code = "not_a_function"     // 422: the image is a base environment
	CodeCommandNotFound  Code = "command_not_found"  // 422: run: no such program in the image
	CodeCommandNotExec   Code = "command_not_exec"   // 422: run: the program cannot be executed
	CodeUpgradeRequired  Code = "upgrade_required"   // 426: run without Upgrade: fre-run
	CodeCanceled         Code = "canceled"           // 499: the client went away
	CodeFunction         Code = "function_error"     // 500: an exception or a non-zero exit in user code
	CodeInternal         Code = "internal"           // 500: everything without a code of its own
	CodeUnsupported      Code = "unsupported"        // 501: the engine's host lacks what it takes
	CodeCrash            Code = "function_crash"     // 502: the instance died or broke the protocol
	CodeRegistry         Code = "registry"           // 502: a registry refused or cannot be reached
	CodePackageSite      Code = "package_site"       // 502: a package site refused, wants fewer requests, or cannot be reached
	CodeOverloaded       Code = "overloaded"         // 503; 429: too many uploads are on their way
	CodePartitioned      Code = "partitioned"        // 503: the node cannot reach the others, and what it was asked concerns them
	CodeConflict         Code = "conflict"           // 409: another node has changed it meanwhile
	CodeClosed           Code = "stopping"           // 503: the engine is shutting down
	CodeTimeout          Code = "timeout"            // 504: the function did not answer in time; 408: an upload took too long, or a body came too slowly
	CodeInsufficientDisk Code = "no_space"           // 507: the disk is full
)

// Headers the engine adds to a function's answer to an invocation. An answer
// without InvocationHeader is the engine's own. A function cannot set headers
// that begin with X-Fre-.
const (
	InvocationHeader = "X-Fre-Id"       // name of the invocation, also in the logs
	InstanceHeader   = "X-Fre-Instance" // sandbox that answered
	ColdHeader       = "X-Fre-Cold"     // "1" when a sandbox was started for it, "0" when not
	StartKindHeader  = "X-Fre-Start"    // where the instance came from: warm, forked, runtime, attached, shell, spawner
	StartHeader      = "X-Fre-Start-Us" // microseconds from the request to a ready instance
)
