package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/fre-engine/fre/failure"
)

// Failure is the entry of a code in the catalogue.
type Failure struct {
	Code   Code
	Status int // HTTP status of the answer
	// Retry is the value of Retry-After in seconds, unless the error knows better. 0: none.
	Retry   int
	Meaning string
	// Next is the user's next step, unless the error knows a better one. "": the message of each
	// error with this code names the step.
	Next string
}

// statusCancelled is nginx's status for a client that went away. It appears in logs only.
const statusCancelled = 499

// Failures is the catalogue of all codes, in the order of their statuses. docs/errors.md is
// generated from it. The gateway and the control API answer with these statuses; the adapters for
// foreign protocols translate the codes.
//
// Where the gateway and the control API disagreed, the code and the status of the gateway stayed,
// because calls of functions are the most frequent requests and other people's programs make them:
//
//   - function_crashed 502: the control API said function_crash.
//   - loop 508 and step_missing 502: the control API said 500 function_error. The function did not
//     run, so its logs hold no reason.
//   - queue_full 429: the control API said 503. The sender can wait, and no part of the engine is
//     down.
//   - events_storage 503: the control API said 507 no_space. Events leave the disk as they are
//     handled, so a retry helps, unlike with no_space.
//   - image_gone 404: the control API said 409 bad_request.
//
// Two codes are new because one code stands for one status: slow_head (the gateway said 408
// timeout, which is 504 for a function) and busy for too many uploads (the control API said
// 429 overloaded).
func Failures() []Failure { return failures }

var failures = []Failure{
	{Code: failure.BadRequest, Status: http.StatusBadRequest, Meaning: "the request, a parameter or JSON is malformed, or a value is out of range"},
	{Code: failure.BadName, Status: http.StatusBadRequest, Meaning: "the name of the image is not valid", Next: "write NAME, NAME:VERSION or HOST:PORT/PATH/NAME:VERSION"},
	{Code: failure.BadPath, Status: http.StatusBadRequest, Meaning: "the path after the function's name cannot be the path of an event"},
	{Code: failure.BadBody, Status: http.StatusBadRequest, Meaning: "the request's body breaks off, or a chunk is malformed"},
	{Code: failure.BadCall, Status: http.StatusBadRequest, Meaning: "a function calls another by a name that is not valid"},
	{Code: failure.BadEvent, Status: http.StatusBadRequest, Meaning: "an event's priority, callback URL or CloudEvent is not valid"},
	{Code: failure.WrongPlatform, Status: http.StatusBadRequest, Meaning: "the image is for another system or processor"},
	{Code: failure.Unauthorized, Status: http.StatusUnauthorized, Meaning: "the token is missing, not valid or expired", Next: "compare the token with fre token ls on the engine's host"},
	{Code: failure.BadSignature, Status: http.StatusUnauthorized, Meaning: "the signature of a webhook, or of a request to Lambda's API, is missing, wrong or too old", Next: "give the sender the engine's secret"},
	{Code: failure.BadToken, Status: http.StatusUnauthorized, Meaning: "the bearer token of a CloudEvent is missing or wrong", Next: "give the sender the trigger's token"},
	{Code: failure.Forbidden, Status: http.StatusForbidden, Meaning: "the caller, the signature policy or the network rule does not allow the request"},
	{Code: failure.CallbackNotAllowed, Status: http.StatusForbidden, Meaning: "the engine may not send results to the callback URL", Next: "name the host in events.callbacks of the engine's configuration"},
	{Code: failure.NotFound, Status: http.StatusNotFound, Meaning: "the function, image, sandbox, event, tenant or path does not exist"},
	{Code: failure.ImageGone, Status: http.StatusNotFound, Meaning: "the image of the function's revision was lost"},
	{Code: failure.MethodNotAllowed, Status: http.StatusMethodNotAllowed, Meaning: "the path does not accept the method"},
	{Code: failure.SlowHead, Status: http.StatusRequestTimeout, Meaning: "the head of the request took too long", Next: "send the request without pauses"},
	{Code: failure.SlowBody, Status: http.StatusRequestTimeout, Meaning: "the body of the request took too long", Next: "send the body without pauses, or raise instances.max in the template"},
	{Code: failure.Ambiguous, Status: http.StatusConflict, Meaning: "the beginning of an id or digest matches several objects", Next: "give more characters"},
	{Code: failure.Conflict, Status: http.StatusConflict, Meaning: "the object's state does not allow the request, or another node changed the object meanwhile"},
	{Code: failure.Exists, Status: http.StatusConflict, Meaning: "a tenant, token or secret with the name exists"},
	{Code: failure.InUse, Status: http.StatusConflict, Meaning: "the object is in use"},
	{Code: failure.NameTaken, Status: http.StatusConflict, Meaning: "the name belongs to another function, image or node", Next: "choose another name"},
	{Code: failure.Gone, Status: http.StatusGone, Meaning: "the engine no longer remembers the requested changes", Next: "read the list again, then follow the changes after the list"},
	{Code: failure.PreconditionFailed, Status: http.StatusPreconditionFailed, Meaning: "If-Match or If-Unmodified-Since does not hold", Next: "read the object again"},
	{Code: failure.BodyTooLarge, Status: http.StatusRequestEntityTooLarge, Meaning: "the request's body is over the limit"},
	{Code: failure.TooLarge, Status: http.StatusRequestEntityTooLarge, Meaning: "a template, an archive, an image or a snapshot is over the limit"},
	{Code: failure.PathTooLong, Status: http.StatusRequestURITooLong, Meaning: "the target of the request is too long", Next: "send the data in the body"},
	{Code: failure.RangeNotSatisfiable, Status: http.StatusRequestedRangeNotSatisfiable, Meaning: "the body ends before the requested range", Next: "ask for a range within Content-Range"},
	{Code: failure.ExpectationFailed, Status: http.StatusExpectationFailed, Meaning: "the header Expect is not 100-continue", Next: "leave Expect out"},
	{Code: failure.Template, Status: http.StatusUnprocessableEntity, Meaning: "the template or a file of the template is wrong, or the host cannot meet the template's requirements"},
	{Code: failure.BuildFailed, Status: http.StatusUnprocessableEntity, Meaning: "a step of the build failed"},
	{Code: failure.Package, Status: http.StatusUnprocessableEntity, Meaning: "a package differs from the lock, is gone, or is malformed"},
	{Code: failure.NotFunction, Status: http.StatusUnprocessableEntity, Meaning: "the image cannot be deployed or slimmed"},
	{Code: failure.CommandNotFound, Status: http.StatusUnprocessableEntity, Meaning: "the image does not have the program", Next: "give the absolute path of a program in the image"},
	{Code: failure.CommandNotExec, Status: http.StatusUnprocessableEntity, Meaning: "the program is not executable, or the working directory cannot be entered", Next: "use an executable for the engine's processor, or a script that begins with #!"},
	{Code: failure.UpgradeRequired, Status: http.StatusUpgradeRequired, Meaning: "the path needs a protocol upgrade (Connection: Upgrade)"},
	{Code: failure.Quota, Status: http.StatusTooManyRequests, Retry: 1, Meaning: "the tenant has used up a quota", Next: "remove objects of the tenant (fre tenant usage), or ask the operator for a higher quota"},
	{Code: failure.SlowDown, Status: http.StatusTooManyRequests, Retry: 1, Meaning: "too many requests or failed tokens from the client's address", Next: "wait for the seconds in Retry-After"},
	{Code: failure.QueueFull, Status: http.StatusTooManyRequests, Retry: 5, Meaning: "too many asynchronous events are queued, or the queue's disk space is used up", Next: "send the event again after Retry-After, or raise events.max_queue"},
	{Code: failure.HeaderTooLarge, Status: http.StatusRequestHeaderFieldsTooLarge, Meaning: "headers, path and query are too large", Next: "send fewer or shorter headers"},
	{Code: failure.Cancelled, Status: statusCancelled, Meaning: "the caller closed the connection; the code appears in logs and metrics only"},
	{Code: failure.FunctionError, Status: http.StatusInternalServerError, Meaning: "the function raised an exception, or a process ended with another status than 0", Next: "see the function's logs"},
	{Code: failure.Internal, Status: http.StatusInternalServerError, Meaning: "the engine failed; the engine's log has the reason", Next: "see the engine's log, and `fre doctor`"},
	{Code: failure.NotImplemented, Status: http.StatusNotImplemented, Meaning: "the server does not support a feature of HTTP in the request"},
	{Code: failure.Unsupported, Status: http.StatusNotImplemented, Meaning: "the engine's host or configuration lacks the feature"},
	{Code: failure.FunctionCrashed, Status: http.StatusBadGateway, Meaning: "the function's process died or broke the protocol", Next: "see the function's logs"},
	{Code: failure.StepMissing, Status: http.StatusBadGateway, Meaning: "a step of the pipeline does not exist"},
	{Code: failure.Registry, Status: http.StatusBadGateway, Meaning: "an image registry refused, or cannot be reached"},
	{Code: failure.PackageSite, Status: http.StatusBadGateway, Meaning: "a package site refused, asked for fewer requests, or cannot be reached"},
	{Code: failure.Overloaded, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "too many events wait for the function", Next: "try again later, or raise instances.max in the template"},
	{Code: failure.EngineOverloaded, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "too many events are running on the engine", Next: "try again in a moment; fre status shows the busy functions"},
	{Code: failure.Degraded, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "the engine is short of memory for bodies, but takes small requests", Next: "try again in a moment, or raise buffers.memory in the engine's configuration"},
	{Code: failure.Busy, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "too many connections or uploads", Next: "try again in a moment"},
	{Code: failure.Stopping, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "the engine is shutting down", Next: "try again when the engine runs"},
	{Code: failure.TokenUnchecked, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "the issuer of the token does not answer", Next: "try again in a moment, or use a token of FRE's own"},
	{Code: failure.EventsUnavailable, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "NATS cannot be reached, or events are off", Next: "try again in a moment; the engine's log says more"},
	{Code: failure.EventsStorage, Status: http.StatusServiceUnavailable, Retry: 10, Meaning: "the disk space for asynchronous events is used up", Next: "free space in the engine's state directory, or send the event again later"},
	{Code: failure.NoSecret, Status: http.StatusServiceUnavailable, Meaning: "the secret of the trigger does not exist", Next: "create the secret: fre secret create"},
	{Code: failure.Partitioned, Status: http.StatusServiceUnavailable, Retry: 1, Meaning: "the node cannot reach the other nodes, and the request needs them", Next: "send the request to a connected node (fre nodes), or repair the node's network; deployed functions are served meanwhile"},
	{Code: failure.Timeout, Status: http.StatusGatewayTimeout, Meaning: "the function did not answer in time", Next: "raise resources.timeout in the template, or see the function's logs"},
	{Code: failure.VersionNotSupported, Status: http.StatusHTTPVersionNotSupported, Meaning: "the request has another version of HTTP than 1.0, 1.1 or 2", Next: "use HTTP/1.1 or HTTP/2"},
	{Code: failure.NoSpace, Status: http.StatusInsufficientStorage, Meaning: "the disk of the engine's state directory is full", Next: "free space in the engine's state directory: fre image prune, fre system gc --cache"},
	{Code: failure.Loop, Status: http.StatusLoopDetected, Meaning: "the call or the pipeline contains a cycle, or would deadlock", Next: "break the cycle in the message"},
}

var failureOf = func() map[Code]Failure {
	byCode := make(map[Code]Failure, len(failures))
	for _, f := range failures {
		byCode[f.Code] = f
	}
	return byCode
}()

// FailureOf returns the catalogue's entry for a code. For an unknown code, such as one of a newer
// engine, it returns the entry of internal with that code.
func FailureOf(code Code) Failure {
	f, ok := failureOf[code]
	if !ok {
		f = failureOf[failure.Internal]
		f.Code = code
	}
	return f
}

// ErrorOf returns the answer to a request that err ended: the code of err with the catalogue's
// status, and the next step of err or of the catalogue. An error without a code is internal,
// except for a full disk, a body over the limit of [http.MaxBytesReader], and a caller that went
// away.
func ErrorOf(err error) *Error {
	if own := (*Error)(nil); errors.As(err, &own) {
		e := *own
		e.Message, e.Status = err.Error(), FailureOf(e.Code).Status
		return &e
	}
	e := &Error{Code: failure.Of(err), Message: err.Error(), Next: failure.Next(err)}
	var large *http.MaxBytesError
	switch {
	case (e.Code == "" || e.Code == failure.BodyTooLarge) && errors.As(err, &large):
		e.Code, e.Next = failure.BodyTooLarge, cmp.Or(e.Next, fmt.Sprintf("send at most %d bytes", large.Limit))
		e.Message = strings.Replace(e.Message, large.Error(), fmt.Sprintf("the body is over the limit of %d bytes", large.Limit), 1)
	case e.Code != "":
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Code = failure.NoSpace
	case errors.Is(err, context.Canceled):
		e.Code = failure.Cancelled
	default:
		e.Code = failure.Internal
	}
	f := FailureOf(e.Code)
	if e.Status = f.Status; e.Next == "" {
		e.Next = f.Next
	}
	return e
}

// RetryAfter returns how long the sender of a failed request should wait, in whole seconds, rounded
// up. 0: a retry is no use, or err says nothing about it.
func RetryAfter(err error) int {
	if wait, ok := failure.RetryAfter(err); ok {
		return int((wait + time.Second - 1) / time.Second)
	}
	return FailureOf(ErrorOf(err).Code).Retry
}
