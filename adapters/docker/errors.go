package docker

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
	control "github.com/fre-engine/fre/server"
)

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

// statusOf translates the code of err to Docker's status. The message includes the next step,
// because clients print only the message, and the words that clients look for.
func statusOf(err error) (status int, message string) {
	if own := (*statusError)(nil); errors.As(err, &own) {
		return own.status, err.Error()
	}
	if errors.Is(err, os.ErrProcessDone) {
		return http.StatusConflict, err.Error()
	}
	e := control.ErrorOf(err)
	status, message = e.Status, e.Message
	switch e.Code { // the codes for which Docker has another status or other words
	case failure.BadRequest, failure.NameTaken, failure.Stopping, failure.Registry, failure.NotFound, failure.Cancelled, failure.Internal:
	case failure.BadName:
		message = "invalid reference format: " + message
	case failure.Template, failure.TooLarge:
		status = http.StatusBadRequest
	case failure.WrongPlatform:
		status = http.StatusNotFound
	case failure.Ambiguous:
		status, message = http.StatusBadRequest, message+": give more characters"
	case failure.InUse:
		if errors.Is(err, build.ErrSeveralNames) {
			return status, message + " (must be forced)"
		}
		message = "conflict: " + message + ": first stop and remove the users of the object"
	case failure.Quota:
		command := "fre tenant quota"
		if quota := (*live.QuotaError)(nil); errors.As(err, &quota) {
			command += " " + quota.Tenant
		}
		message += ": stop a container or remove a function of the tenant, use lower limits (-m, --cpus), or ask for a higher quota (" + command + ")"
	case failure.CommandNotFound: // docker run derives exit codes 126 and 127 from the words
		status, message = http.StatusBadRequest, message+": executable file not found in $PATH: no such file or directory"
	case failure.CommandNotExec:
		status = http.StatusBadRequest
		if start := (*sandbox.StartError)(nil); errors.As(err, &start) && start.Step == sandbox.StepDir {
			return status, message + ": the container's user must be able to enter its directory (-w)"
		}
		message = strings.TrimSuffix(message, ": permission denied") + ": permission denied"
	case failure.NoSpace:
		message += ": free space in the engine's state directory (docker image rm)"
	default:
		if e.Next != "" {
			message += ": " + e.Next
		}
	}
	return status, message
}

func errorStatus(err error) int {
	status, _ := statusOf(err)
	return status
}
