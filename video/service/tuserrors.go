package service

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/fre-engine/fre/api"
)

// Next steps for clients at a limit.
const (
	tooLargeNext = "fre-video serve --max-bytes allows more"
	emptyNext    = "look whether it is the right file; curl sends one by --data-binary @FILE"
	noSpaceNext  = "delete assets, or make room on the disk of --state; an upload goes on where it was"
)

// tusErrors rewrites the tus handler's errors, CODE: WORDS, to errors of the API.
type tusErrors struct {
	http.ResponseWriter
	refused int // status of an error; 0: no error
}

// Unwrap serves http.ResponseController.
func (w *tusErrors) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes whether the answer is an error.
func (w *tusErrors) WriteHeader(status int) {
	if h := w.Header(); status >= http.StatusBadRequest && h.Get("Content-Type") != "application/json" {
		w.refused = status
		h.Set("Content-Type", "application/json")
		h.Del("Content-Length")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *tusErrors) Write(p []byte) (int, error) {
	if w.refused == 0 {
		return w.ResponseWriter.Write(p)
	}
	words := bytes.TrimSpace(p)
	if _, rest, ok := bytes.Cut(words, []byte(": ")); ok {
		words = rest
	}
	e := &api.Error{Code: api.CodeBadRequest, Message: string(words)}
	switch w.refused {
	case http.StatusNotFound, http.StatusGone:
		e.Code, e.Next = api.CodeNotFound, "begin the upload anew"
	case http.StatusMethodNotAllowed:
		e.Code = api.CodeMethod
	case http.StatusConflict, http.StatusLocked:
		e.Code, e.Next = api.CodeInUse, "ask by HEAD how much there is, and go on from there"
	case http.StatusRequestEntityTooLarge:
		e.Code, e.Next = api.CodeTooLarge, tooLargeNext
	case http.StatusInsufficientStorage:
		e.Code, e.Next = api.CodeInsufficientDisk, noSpaceNext
	default:
		if w.refused >= http.StatusInternalServerError {
			e.Code = api.CodeInternal
		}
	}
	b, err := json.Marshal(api.ErrorBody{Error: e})
	if err != nil {
		return 0, err
	}
	if _, err := w.ResponseWriter.Write(append(b, '\n')); err != nil {
		return 0, err
	}
	return len(p), nil
}
