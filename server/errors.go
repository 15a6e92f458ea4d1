package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// statusClientGone is nginx's status for a client that disconnected. The status only appears in
// logs.
const statusClientGone = 499

func badRequest(format string, args ...any) error {
	return &api.Error{Code: api.CodeBadRequest, Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// errorOf converts err to the API's format: message, code, status and next step.
func errorOf(err error) *api.Error {
	var own *api.Error
	if errors.As(err, &own) {
		e := *own
		e.Message = err.Error()
		return &e
	}
	status, code, next := statusOf(err)
	message, kind := wording.Missing(err.Error())
	if status == http.StatusNotFound && next == "" {
		next = lists[kind]
	}
	var failure *engine.FunctionError
	if errors.As(err, &failure) { // use only the message, because the function's log has the stack
		message = failure.Error()
	}
	return &api.Error{Code: code, Status: status, Message: message, Next: next}
}

// lists maps the kind of an object to a hint at the command that lists such objects.
var lists = map[string]string{
	"function":  "fre functions shows those that are deployed",
	"image":     "fre images shows those that are here; fre pull gets one from a registry",
	"container": "fre ps -a shows those that are there",
	"sandbox":   "fre ps -a shows those that are there",
}

// statusOf maps the errors of the engine's packages to the API's statuses, codes and next steps.
func statusOf(err error) (status int, code api.Code, next string) {
	var (
		template *image.TemplateError
		field    *image.FieldError
		pkg      *image.PackageError
		step     *image.ExitError
		drift    *image.LockError
		tooLarge *http.MaxBytesError
		body     *gateway.BodyError
		failure  *engine.FunctionError
		crash    *engine.CrashError
		start    *sandbox.StartError
		limit    *sandbox.LimitError
	)
	if status, code, next, ok := accessStatus(err); ok {
		return status, code, next
	}
	if status, code, next, ok := eventsStatus(err); ok {
		return status, code, next
	}
	if status, code, next, ok := clusterStatus(err); ok {
		return status, code, next
	}
	var quota *engine.QuotaError
	var secret *engine.SecretError
	var imageName *engine.ImageNameError
	var loop *engine.LoopError
	var of *engine.StepError // of a pipeline
	var refused *outward.RefusedError
	switch {
	case errors.As(err, &refused):
		return http.StatusForbidden, api.CodeForbidden, "ask who runs the engine to name the server in its configuration, or use one of the public internet"
	case errors.As(err, &quota) && quota.What == engine.QuotaOfBuilds:
		return http.StatusTooManyRequests, api.CodeQuota, "try again once some have ended: after Retry-After, or when fre tenant usage shows fewer"
	case errors.As(err, &quota):
		return http.StatusTooManyRequests, api.CodeQuota, "free some of it, or ask who runs the engine for more (fre tenant usage shows it)"
	case errors.As(err, &secret):
		return http.StatusUnprocessableEntity, api.CodeTemplate, fmt.Sprintf("make it, then deploy again: fre secret create %s --tenant %s < FILE", secret.Name, secret.Tenant)
	case errors.Is(err, engine.ErrNoAgent):
		return http.StatusNotFound, api.CodeNotFound, "it may have expired: fre agent ls shows those that are there, fre agent create makes one"
	case errors.Is(err, engine.ErrSnapshotLimit):
		return http.StatusRequestEntityTooLarge, api.CodeTooLarge, "remove from /work what need not be kept"
	case errors.Is(err, engine.ErrForeign):
		return http.StatusForbidden, api.CodeForbidden, "write the token's tenant into fret.yaml"
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, api.CodeTooLarge, fmt.Sprintf("send at most %d bytes", tooLarge.Limit)
	case errors.As(err, &template) && !strings.HasSuffix(template.File, ".yaml") && !strings.HasSuffix(template.File, ".yml"):
		return http.StatusUnprocessableEntity, api.CodeTemplate, "correct " + template.File + ", then build or deploy again"
	case errors.As(err, &template):
		return http.StatusUnprocessableEntity, api.CodeTemplate, "correct the template; `fre template schema` prints what it may hold"
	case errors.As(err, &field), errors.As(err, &limit):
		return http.StatusUnprocessableEntity, api.CodeTemplate, ""
	case errors.As(err, &pkg) && pkg.Cause.OfSite():
		return http.StatusBadGateway, api.CodePackageSite, pkg.Next()
	case errors.As(err, &pkg):
		return http.StatusUnprocessableEntity, api.CodePackage, pkg.Next()
	case errors.As(err, &step):
		return http.StatusUnprocessableEntity, api.CodeBuildFailed, "correct the packages in fret.yaml and build again"
	case errors.Is(err, engine.ErrBuildTime):
		return http.StatusUnprocessableEntity, api.CodeBuildFailed, "give it less to do: fewer packages, or what is compiled built ahead; what was made already is not made again"
	case errors.As(err, &drift), errors.Is(err, image.ErrOffline):
		return http.StatusUnprocessableEntity, api.CodeBuildFailed, "" // the error message has the next step
	case errors.Is(err, image.ErrUnknownBase):
		return http.StatusNotFound, api.CodeNotFound, "use one of the bases that `fre template schema` lists"

	case errors.Is(err, engine.ErrNameTaken):
		return http.StatusConflict, api.CodeNameTaken, "choose another name (--name) or replace it (--replace)"
	case errors.As(err, &imageName):
		return http.StatusConflict, api.CodeNameTaken, "give the template another id or version, or a remote build another name for its image"
	case errors.Is(err, engine.ErrOthersImage):
		return http.StatusUnprocessableEntity, api.CodeTemplate, "name an image to build functions on"
	case errors.Is(err, engine.ErrTraffic):
		return http.StatusBadRequest, api.CodeBadRequest, ""
	case errors.Is(err, engine.ErrNoRevision), errors.Is(err, engine.ErrImageGone):
		return http.StatusConflict, api.CodeBadRequest, "" // the error message has the next step
	case errors.Is(err, engine.ErrRevisionUsed):
		return http.StatusConflict, api.CodeInUse, ""
	case errors.Is(err, engine.ErrNotReady):
		return http.StatusUnprocessableEntity, api.CodeNotFunction, "deploy an image that was built from a template"
	case errors.Is(err, engine.ErrNotTraced):
		return http.StatusConflict, api.CodeBadRequest, "deploy it as a temporary function with trace; fre image slim does"
	case errors.Is(err, image.ErrSlimmed):
		return http.StatusUnprocessableEntity, api.CodeNotFunction, ""
	case errors.Is(err, sandbox.ErrOpensLost):
		return http.StatusServiceUnavailable, api.CodeOverloaded, "try again, with fewer events (--run)"
	case errors.Is(err, store.ErrInUse):
		return http.StatusConflict, api.CodeInUse, "remove the function or stop the sandbox that uses it first"
	case errors.Is(err, engine.ErrContainerRunning):
		return http.StatusConflict, api.CodeInUse, "stop it first (fre stop), or remove it with --force"
	case errors.Is(err, engine.ErrContainerStopped):
		return http.StatusConflict, api.CodeInUse, "start it first (fre start)"
	case errors.Is(err, engine.ErrSeveralNames):
		return http.StatusConflict, api.CodeInUse, "give the name to take away, or remove the image with all of its names (--force)"
	case errors.Is(err, store.ErrName):
		return http.StatusBadRequest, api.CodeBadRequest, "write it as NAME, NAME:VERSION or HOST:PORT/PATH/NAME:VERSION"
	case errors.Is(err, store.ErrAmbiguous):
		return http.StatusConflict, api.CodeAmbiguous, "give more characters of the digest"

	case errors.Is(err, engine.ErrChangesLost):
		return http.StatusGone, api.CodeGone, "read the list again, with since=0 for its generation, and go on from there"
	case errors.Is(err, oci.ErrLimit):
		return http.StatusRequestEntityTooLarge, api.CodeTooLarge, "take a smaller image"
	case errors.Is(err, oci.ErrArchive), errors.Is(err, oci.ErrLayer), errors.Is(err, oci.ErrPlatform), errors.Is(err, oci.ErrReference), errors.Is(err, oci.ErrChange):
		return http.StatusBadRequest, api.CodeBadRequest, ""
	case errors.Is(err, oci.ErrSignature):
		return http.StatusForbidden, api.CodeForbidden, "ask who made the image to sign it (fre image sign), or change registry.signatures in the engine's configuration"
	case errors.Is(err, oci.ErrRegistry) && errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden, api.CodeForbidden, "log in as yourself (docker login), or with --username and --password-stdin"
	case errors.Is(err, oci.ErrRegistry) && !errors.Is(err, fs.ErrNotExist):
		return http.StatusBadGateway, api.CodeRegistry, ""

	case errors.As(err, &body):
		return http.StatusBadRequest, api.CodeBadRequest, ""
	case errors.Is(err, engine.ErrEventTooLarge):
		return http.StatusRequestHeaderFieldsTooLarge, api.CodeTooLarge, "send fewer or shorter headers"
	case errors.Is(err, engine.ErrTimeout):
		return http.StatusGatewayTimeout, api.CodeTimeout, "raise resources.timeout in the template, or see the function's logs"
	case errors.Is(err, engine.ErrSlowBody):
		return http.StatusRequestTimeout, api.CodeTimeout, "send the body without pauses, or raise instances.max in the template"
	case errors.Is(err, engine.ErrOverloaded):
		return http.StatusServiceUnavailable, api.CodeOverloaded, "try again later, or raise instances.max in the template"
	case errors.Is(err, engine.ErrEngineOverloaded):
		return http.StatusServiceUnavailable, api.CodeOverloaded, "try again in a moment; fre status shows whose events are under way"
	case errors.Is(err, engine.ErrDegraded):
		return http.StatusServiceUnavailable, api.CodeOverloaded, "try again in a moment, or give the engine more memory for bodies (buffers.memory in its configuration)"
	case errors.Is(err, engine.ErrClosed):
		return http.StatusServiceUnavailable, api.CodeClosed, "try again when the engine runs"
	case errors.As(err, &failure), errors.As(err, &loop), errors.As(err, &of):
		return http.StatusInternalServerError, api.CodeFunction, "see the function's logs"
	case errors.As(err, &crash):
		return http.StatusBadGateway, api.CodeCrash, "see the function's logs"

	case errors.As(err, &start):
		return startStatus(start)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return http.StatusInsufficientStorage, api.CodeInsufficientDisk, "free space in the engine's state directory: fre image prune, fre system gc --cache"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, os.ErrProcessDone):
		return http.StatusNotFound, api.CodeNotFound, ""
	case errors.Is(err, context.Canceled), errors.Is(err, io.ErrUnexpectedEOF):
		return statusClientGone, api.CodeCanceled, ""
	}
	return http.StatusInternalServerError, api.CodeInternal, "see the engine's log, and `fre doctor`"
}

// startStatus distinguishes a command that cannot be executed, which is the caller's mistake,
// from a sandbox that cannot be created. The errno alone is ambiguous, because set-up steps also
// fail with ENOENT.
func startStatus(err *sandbox.StartError) (status int, code api.Code, next string) {
	if err.Step == sandbox.StepDir {
		return http.StatusUnprocessableEntity, api.CodeCommandNotExec, "name a directory that the container's user may enter (--workdir)"
	}
	if err.Step == sandbox.StepExec {
		if errors.Is(err, unix.ENOENT) {
			return http.StatusUnprocessableEntity, api.CodeCommandNotFound, "name a program of the image by its absolute path"
		}
		return http.StatusUnprocessableEntity, api.CodeCommandNotExec, "the program must be an executable for this machine, or a script with #!"
	}
	return http.StatusInternalServerError, api.CodeInternal, "see the engine's log, and `fre doctor`"
}

func tooLargeError(message string) error {
	return &api.Error{Code: api.CodeTooLarge, Status: http.StatusRequestEntityTooLarge, Message: message, Next: "leave out of the template's directory what the function does not need"}
}

// ErrorOf converts an error of the engine's packages to the API's format, for adapters of other
// protocols.
func ErrorOf(err error) *api.Error { return errorOf(err) }

// Challenge sets the headers that belong to a refusal, such as WWW-Authenticate and Retry-After.
func Challenge(w http.ResponseWriter, err error) { challenge(w, err) }
