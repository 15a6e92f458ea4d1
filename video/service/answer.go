package service

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/video/live"
)

// route answers a request, or returns an error for the client.
type route func(http.ResponseWriter, *http.Request) error

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails with the connection
}

// wireError converts an error to the API's error.
func wireError(err error) *api.Error {
	var wire *api.Error
	switch {
	case errors.As(err, &wire):
		return wire
	case errors.Is(err, fs.ErrNotExist):
		message, _ := wording.Missing(err.Error())
		return &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: message, Next: "fre-video ls and live ls, or GET /v1/assets and /v1/live, list what there is"}
	case errors.Is(err, live.ErrSpec):
		return &api.Error{Status: http.StatusUnprocessableEntity, Code: api.CodeBadRequest, Message: err.Error()}
	case errors.Is(err, live.ErrTaken):
		return &api.Error{Status: http.StatusConflict, Code: api.CodeNameTaken, Message: err.Error(), Next: "give another name, or end that one"}
	case errors.Is(err, ErrState):
		return &api.Error{Status: http.StatusConflict, Code: api.CodeInUse, Message: err.Error(), Next: "fre-video inspect, or GET /v1/assets/ID, tells how far it is"}
	case errors.Is(err, ErrTooLarge):
		return &api.Error{Status: http.StatusRequestEntityTooLarge, Code: api.CodeTooLarge, Message: err.Error(), Next: tooLargeNext}
	case errors.Is(err, ErrEmpty):
		return &api.Error{Status: http.StatusUnprocessableEntity, Code: api.CodeBadRequest, Message: err.Error(), Next: emptyNext}
	case noRoom(err):
		return &api.Error{Status: http.StatusInsufficientStorage, Code: api.CodeInsufficientDisk, Message: err.Error(), Next: noSpaceNext}
	}
	return &api.Error{Status: http.StatusInternalServerError, Code: api.CodeInternal, Message: err.Error()}
}
