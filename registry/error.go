package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// apiError is an error response, with a code of the distribution-spec.
type apiError struct {
	status  int
	code    string
	message string
}

func (e *apiError) Error() string { return e.message }

// The codes of the distribution-spec, and UNKNOWN, which Docker's registry uses for errors of
// the server.
const (
	codeBlobUnknown         = "BLOB_UNKNOWN"
	codeUploadInvalid       = "BLOB_UPLOAD_INVALID"
	codeUploadUnknown       = "BLOB_UPLOAD_UNKNOWN"
	codeDigestInvalid       = "DIGEST_INVALID"
	codeManifestBlobUnknown = "MANIFEST_BLOB_UNKNOWN"
	codeManifestInvalid     = "MANIFEST_INVALID"
	codeManifestUnknown     = "MANIFEST_UNKNOWN"
	codeNameInvalid         = "NAME_INVALID"
	codeNameUnknown         = "NAME_UNKNOWN"
	codeSizeInvalid         = "SIZE_INVALID"
	codeUnauthorized        = "UNAUTHORIZED"
	codeDenied              = "DENIED"
	codeUnsupported         = "UNSUPPORTED"
	codeTooManyRequests     = "TOOMANYREQUESTS"
	codeUnknown             = "UNKNOWN"
)

var (
	errNoSuchPath   = &apiError{http.StatusNotFound, codeUnsupported, "no such path: the registry's API begins at /v2/"}
	errReadOnly     = &apiError{http.StatusMethodNotAllowed, codeUnsupported, "the registry is read-only"}
	errTooManyUps   = &apiError{http.StatusTooManyRequests, codeTooManyRequests, "too many unfinished uploads: finish or cancel uploads, or wait for their expiry"}
	errUnauthorized = &apiError{http.StatusUnauthorized, codeUnauthorized, "name and password are needed: log in first"}
	errDenied       = &apiError{http.StatusForbidden, codeDenied, "the user may pull only"}
	errCrossOrigin  = &apiError{http.StatusForbidden, codeDenied, "the registry accepts no changes from foreign web pages"}
	errInterrupted  = &apiError{http.StatusConflict, codeUploadInvalid, "a parallel request continues the upload"}
)

func errMethod(method string) *apiError {
	return &apiError{http.StatusMethodNotAllowed, codeUnsupported, "no " + method + " here"}
}

func errNameInvalid(name string, err error) *apiError {
	return &apiError{http.StatusBadRequest, codeNameInvalid, fmt.Sprintf("%.300q %v", name, err)}
}

func errNameUnknown(name string) *apiError {
	return &apiError{http.StatusNotFound, codeNameUnknown, "no repository " + name}
}

func errBlobUnknown(name string, d digest) *apiError {
	return &apiError{http.StatusNotFound, codeBlobUnknown, fmt.Sprintf("repository %s has no blob %s", name, d)}
}

func errManifestUnknown(name, ref string) *apiError {
	return &apiError{http.StatusNotFound, codeManifestUnknown, fmt.Sprintf("repository %s has no manifest %s", name, ref)}
}

func errUploadUnknown(id string) *apiError {
	return &apiError{http.StatusNotFound, codeUploadUnknown, fmt.Sprintf("no upload %.60q: finished, cancelled or expired", id)}
}

func errDigestInvalid(s string, err error) *apiError {
	return &apiError{http.StatusBadRequest, codeDigestInvalid, fmt.Sprintf("%.200q %v", s, err)}
}

func badRequest(code, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// answerTo maps any error to a response. An error that is not the client's becomes UNKNOWN, and
// the caller logs it.
func answerTo(err error) *apiError {
	var api *apiError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &tooLarge):
		return &apiError{http.StatusRequestEntityTooLarge, codeSizeInvalid, fmt.Sprintf("a manifest has at most %d bytes", tooLarge.Limit)}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &apiError{http.StatusInsufficientStorage, codeUnknown, "the registry's disk is full: " + errnoOf(err).Error()}
	case errors.Is(err, context.Canceled), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrDeadlineExceeded):
		return &apiError{http.StatusBadRequest, codeUploadInvalid, "the request ended early"}
	}
	return &apiError{http.StatusInternalServerError, codeUnknown, "the registry failed; see the registry's log"}
}

// errnoOf drops the paths from an error.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
