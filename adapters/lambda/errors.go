package lambda

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
	control "github.com/fre-engine/fre/server"
)

// awsError is an error in AWS's format.
type awsError struct {
	status  int
	kind    string
	message string
	after   int // seconds, value of Retry-After; 0: no header
}

func (f *awsError) Error() string { return f.message }

func refuse(status int, kind, format string, args ...any) error {
	return &awsError{status: status, kind: kind, message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return refuse(http.StatusBadRequest, "InvalidParameterValueException", format, args...)
}

// errorOf translates the code of err to Lambda's error. For a caller's mistake without an
// equivalent in Lambda's API the kind is InvalidParameterValueException, which SDKs do not retry.
func errorOf(err error) *awsError {
	if own := (*awsError)(nil); errors.As(err, &own) {
		return own
	}
	e := control.ErrorOf(err)
	f := &awsError{status: e.Status, kind: "ServiceException", message: e.Message, after: api.RetryAfter(err)}
	switch e.Code { // the codes for which Lambda has a kind or a status of its own
	case failure.BadSignature:
		f.status, f.kind = http.StatusForbidden, "InvalidSignatureException"
		f.message = "The request signature we calculated does not match the signature you provided. Check your secret access key and signing method."
	case failure.Unauthorized:
		f.status, f.kind = http.StatusForbidden, "ExpiredTokenException"
		if !errors.Is(err, access.ErrExpired) {
			f.kind, f.message = "UnrecognizedClientException", "The security token included in the request is invalid: create an access key with fre token create --access-key"
		}
	case failure.Forbidden:
		f.kind = "AccessDeniedException"
	case failure.NotFound:
		f.kind = "ResourceNotFoundException"
	case failure.NameTaken, failure.InUse, failure.Conflict, failure.ImageGone:
		f.status, f.kind = http.StatusConflict, "ResourceConflictException"
	case failure.BodyTooLarge, failure.HeaderTooLarge:
		f.status, f.kind = http.StatusRequestEntityTooLarge, "RequestTooLargeException"
	case failure.Quota, failure.SlowDown, failure.QueueFull, failure.Overloaded, failure.EngineOverloaded, failure.Degraded:
		f.status, f.kind = http.StatusTooManyRequests, "TooManyRequestsException"
	case failure.Template, failure.Package, failure.NotFunction:
		f.status, f.kind = http.StatusBadRequest, "InvalidParameterValueException"
	case failure.Cancelled:
		f.kind = "RequestAbortedException" // only for logs
	case failure.EventsUnavailable, failure.EventsStorage, failure.Stopping, failure.TokenUnchecked:
	default:
		if e.Status < http.StatusInternalServerError {
			f.status, f.kind = http.StatusBadRequest, "InvalidParameterValueException"
		}
		if e.Next != "" {
			f.message += "; " + e.Next
		}
	}
	return f
}
