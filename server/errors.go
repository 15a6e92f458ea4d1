package server

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/wording"
)

// errorOf returns the answer to a request that err ended, by the catalogue of package api. Beyond
// [api.ErrorOf], a missing object is not found, and a body that breaks off means that the client
// went away.
func errorOf(err error) *api.Error {
	if failure.Of(err) == "" {
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, os.ErrProcessDone):
			err = failure.Wrap(failure.NotFound, err, "")
		case errors.Is(err, io.ErrUnexpectedEOF):
			err = failure.Wrap(failure.Cancelled, err, "")
		}
	}
	e := api.ErrorOf(err)
	message, kind := wording.Missing(e.Message)
	if e.Message = message; e.Code == failure.NotFound && e.Next == "" {
		e.Next = lists[kind]
	}
	var function *engine.FunctionError
	if e.Code == failure.FunctionError && errors.As(err, &function) { // use only the message, because the function's log has the stack
		e.Message = function.Error()
	}
	return e
}

// lists maps the kind of an object to a hint at the command that lists such objects.
var lists = map[string]string{
	"function":  "list deployed functions with fre functions",
	"image":     "list images with fre images; get an image from a registry with fre pull",
	"container": "list containers and sandboxes with fre ps -a",
	"sandbox":   "list containers and sandboxes with fre ps -a",
}

// ErrorOf converts an error of the engine's packages to the API's format, for adapters of other
// protocols.
func ErrorOf(err error) *api.Error { return errorOf(err) }
