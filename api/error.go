package api

// Error is the engine's only format for a failure:
//
//	{"error": {"code": "not_found", "message": "function \"x\": …", "next": "…"}}
//
// Code is stable and meant for programs. Message and Next are meant for people.
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
type Code string

// Error codes, each with the HTTP status sent by the server.
const (
	CodeBadRequest       Code = "bad_request"        // 400: malformed JSON, tar, parameter
	CodeUnauthorized     Code = "unauthorized"       // 401: the token is missing or invalid
	CodeExists           Code = "exists"             // 409: a tenant, token or secret already has the name
	CodeQuota            Code = "quota"              // 429: the tenant has reached a quota
	CodeSlowDown         Code = "slow_down"          // 429: too many failed authentications
	CodeForbidden        Code = "forbidden"          // 403: neither root nor in the engine's group; the registry requires a login
	CodeNotFound         Code = "not_found"          // 404: no such function, image, sandbox, route
	CodeMethod           Code = "method_not_allowed" // 405
	CodeNameTaken        Code = "name_taken"         // 409: a function of another template has the name
	CodeInUse            Code = "in_use"             // 409: a function still uses the image; another profile is in progress
	CodeAmbiguous        Code = "ambiguous"          // 409: a prefix matches several objects
	CodeGone             Code = "gone"               // 410: the engine no longer remembers the requested changes
	CodeTooLarge         Code = "too_large"          // 413: body over the limit
	CodeTemplate         Code = "template"           // 422: fret.yaml is wrong; message has file:line:column
	CodeBuildFailed      Code = "build_failed"       // 422: a build step failed
	CodePackage          Code = "package"            // 422: a package differs from the lock, is gone, or is malformed
	CodeNotFunction      Code = "not_a_function"     // 422: the image is a base environment
	CodeCommandNotFound  Code = "command_not_found"  // 422: run: no such program in the image
	CodeCommandNotExec   Code = "command_not_exec"   // 422: run: the program cannot be executed
	CodeUpgradeRequired  Code = "upgrade_required"   // 426: run without Upgrade: fre-run
	CodeCanceled         Code = "canceled"           // 499: the client disconnected
	CodeFunction         Code = "function_error"     // 500: an exception or a non-zero exit in user code
	CodeInternal         Code = "internal"           // 500: any failure without a code
	CodeUnsupported      Code = "unsupported"        // 501: the engine's host lacks a required feature
	CodeCrash            Code = "function_crash"     // 502: the instance died or broke the protocol
	CodeRegistry         Code = "registry"           // 502: a registry refused or cannot be reached
	CodePackageSite      Code = "package_site"       // 502: a package site refused, throttled the engine, or is unreachable
	CodeOverloaded       Code = "overloaded"         // 503; 429: too many uploads in progress
	CodePartitioned      Code = "partitioned"        // 503: the node cannot reach the other nodes and the request needs them
	CodeConflict         Code = "conflict"           // 409: another node changed the object meanwhile
	CodeClosed           Code = "stopping"           // 503: the engine is shutting down
	CodeTimeout          Code = "timeout"            // 504: the function did not answer in time; 408: an upload or body was too slow
	CodeInsufficientDisk Code = "no_space"           // 507: the disk is full
)

// Headers that the engine adds to a function's answer to an invocation. An answer without
// InvocationHeader comes from the engine itself. A function cannot set headers that begin with
// X-Fre-.
const (
	InvocationHeader = "X-Fre-Id"       // id of the invocation, also in the logs
	InstanceHeader   = "X-Fre-Instance" // id of the sandbox that answered
	ColdHeader       = "X-Fre-Cold"     // "1" if the engine started a sandbox for the invocation, else "0"
	StartKindHeader  = "X-Fre-Start"    // source of the instance: warm, forked, runtime, attached, shell, spawner
	StartHeader      = "X-Fre-Start-Us" // microseconds from the request to a ready instance
)
