package docker

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

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/sandbox"
	control "github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/store"
)

// errorBody is the JSON format of every error.
type errorBody struct {
	Message string `json:"message"`
}

// statusError is an error with an HTTP status.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

func badRequest(format string, args ...any) error {
	return &statusError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &statusError{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

func conflict(format string, args ...any) error {
	return &statusError{http.StatusConflict, fmt.Sprintf(format, args...)}
}

// leftOut returns the error for a feature that FRE deliberately omits, with an alternative.
func leftOut(what, instead string) error {
	return &statusError{http.StatusNotImplemented, fmt.Sprintf("FRE has no %s: %s", what, instead)}
}

// statusClientGone is nginx's status for a client that disconnected. The status only appears in
// logs.
const statusClientGone = 499

// statusOf maps the errors of the engine's packages to Docker's statuses. The message includes
// the next step, because clients print only the message.
func statusOf(err error) (status int, message string) {
	message = err.Error()
	var (
		own      *statusError
		tooLarge *http.MaxBytesError
		field    *image.FieldError
		limit    *sandbox.LimitError
		start    *sandbox.StartError
		quota    *engine.QuotaError
	)
	switch {
	case errors.As(err, &own):
		return own.status, message
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("request body is larger than %d bytes", tooLarge.Limit)
	case errors.As(err, &quota):
		return http.StatusTooManyRequests, message + ": stop a container or remove a function of the tenant, take lower limits (-m, --cpus), or have its quota raised (fre tenant quota " + quota.Tenant + ")"
	case errors.Is(err, store.ErrName):
		return http.StatusBadRequest, "invalid reference format: " + message
	case errors.As(err, &field), errors.As(err, &limit):
		return http.StatusBadRequest, message
	case errors.Is(err, oci.ErrSignature):
		return http.StatusForbidden, message
	case errors.Is(err, oci.ErrArchive), errors.Is(err, oci.ErrLayer), errors.Is(err, oci.ErrLimit), errors.Is(err, oci.ErrReference), errors.Is(err, oci.ErrChange):
		return http.StatusBadRequest, message
	case errors.Is(err, oci.ErrPlatform):
		return http.StatusNotFound, message
	case errors.Is(err, oci.ErrRegistry) && errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden, message + ": docker login, or ask for access"
	case errors.Is(err, oci.ErrRegistry) && !errors.Is(err, fs.ErrNotExist):
		return http.StatusBadGateway, message
	case errors.Is(err, engine.ErrSeveralNames):
		return http.StatusConflict, message + " (must be forced)"
	case errors.Is(err, store.ErrInUse):
		return http.StatusConflict, "conflict: " + message + ": stop and remove what uses it first"
	case errors.Is(err, store.ErrAmbiguous):
		return http.StatusBadRequest, message + ": give more characters"
	case errors.Is(err, engine.ErrNameTaken), errors.Is(err, engine.ErrContainerRunning), errors.Is(err, engine.ErrContainerStopped):
		return http.StatusConflict, message
	case errors.Is(err, engine.ErrClosed):
		return http.StatusServiceUnavailable, message
	case errors.As(err, &start):
		switch { // docker run derives exit codes 126 and 127 from the words
		case start.Step == sandbox.StepDir:
			return http.StatusBadRequest, message + ": the container's user must be able to enter its directory (-w)"
		case start.Step != sandbox.StepExec:
		case errors.Is(err, unix.ENOENT):
			return http.StatusBadRequest, message + ": executable file not found in $PATH: no such file or directory"
		default:
			return http.StatusBadRequest, strings.TrimSuffix(message, ": permission denied") + ": permission denied"
		}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return http.StatusInsufficientStorage, message + ": free space in the engine's state directory (docker image rm)"
	case errors.Is(err, fs.ErrNotExist):
		message, _ = wording.Missing(message)
		return http.StatusNotFound, message
	case errors.Is(err, os.ErrProcessDone):
		return http.StatusConflict, message
	case errors.Is(err, context.Canceled), errors.Is(err, io.ErrUnexpectedEOF):
		return statusClientGone, message
	}
	e := control.ErrorOf(err)
	if e.Next != "" && e.Status != http.StatusInternalServerError {
		message += ": " + e.Next
	}
	return e.Status, message
}
