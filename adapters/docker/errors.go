package docker

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/fre-engine/fre/api"
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

// statuses has the codes for which Docker's status is not the control API's.
var statuses = map[failure.Code]int{
	failure.Template: http.StatusBadRequest, failure.TooLarge: http.StatusBadRequest, failure.Ambiguous: http.StatusBadRequest,
	failure.CommandNotFound: http.StatusBadRequest, failure.CommandNotExec: http.StatusBadRequest, failure.WrongPlatform: http.StatusNotFound,
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
	if status = statuses[e.Code]; status == 0 {
		status = e.Status
	}
	return status, messageOf(err, e)
}

// messageOf returns the message of err with the next step in Docker's words.
func messageOf(err error, e *api.Error) string {
	switch message := e.Message; e.Code {
	case failure.BadRequest, failure.NameTaken, failure.Stopping, failure.Registry, failure.NotFound, failure.Cancelled, failure.Internal,
		failure.Template, failure.TooLarge, failure.WrongPlatform: // the message alone
		return message
	case failure.BadName:
		return "invalid reference format: " + message
	case failure.Ambiguous:
		return message + ": give more characters"
	case failure.InUse:
		return inUse(err, message)
	case failure.Quota:
		return message + ": stop a container or remove a function of the tenant, use lower limits (-m, --cpus), or ask for a higher quota (" + quotaCommand(err) + ")"
	case failure.CommandNotFound: // docker run derives exit codes 126 and 127 from the words
		return message + ": executable file not found in $PATH: no such file or directory"
	case failure.CommandNotExec:
		return notExecutable(err, message)
	case failure.NoSpace:
		return message + ": free space in the engine's state directory (docker image rm)"
	default:
		if e.Next == "" {
			return message
		}
		return message + ": " + e.Next
	}
}

func inUse(err error, message string) string {
	if errors.Is(err, build.ErrSeveralNames) {
		return message + " (must be forced)"
	}
	return "conflict: " + message + ": first stop and remove the users of the object"
}

// quotaCommand returns the command that sets the quota of the tenant in err.
func quotaCommand(err error) string {
	command := "fre tenant quota"
	if quota := (*live.QuotaError)(nil); errors.As(err, &quota) {
		command += " " + quota.Tenant
	}
	return command
}

func notExecutable(err error, message string) string {
	if start := (*sandbox.StartError)(nil); errors.As(err, &start) && start.Step == sandbox.StepDir {
		return message + ": the container's user must be able to enter its directory (-w)"
	}
	return strings.TrimSuffix(message, ": permission denied") + ": permission denied"
}

func errorStatus(err error) int {
	status, _ := statusOf(err)
	return status
}
