package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
)

// Errors that callers test for, wrapped with the file or address.
var (
	ErrSignature  = errors.New("signature does not verify")
	ErrExpired    = errors.New("release file has expired")
	ErrHash       = errors.New("size or hash differs from the signed index")
	ErrUnresolved = errors.New("package not available")
	ErrUnsafe     = errors.New("unsafe archive member")
)

var errNotModified = errors.New("not modified")

// statusError is an answer other than 200 and 304.
type statusError struct{ code int }

func (e *statusError) Error() string {
	return fmt.Sprintf("HTTP status %d %s", e.code, http.StatusText(e.code))
}

func (e *statusError) Is(target error) bool { return target == fs.ErrNotExist && e.code == 404 }
