package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/fre-engine/fre/function/channel"
)

// refusal is an error that the client can correct.
type refusal struct {
	status        int
	code          string
	message, next string
}

func (r *refusal) Error() string { return r.message }

func refuse(format string, args ...any) error {
	return &refusal{status: 400, code: "bad_request", message: fmt.Sprintf(format, args...)}
}

// refused makes an answer for an error in the control API's format.
func refused(err error) *channel.Answer {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{status: 500, code: "internal", message: err.Error()}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.status, r.code, r.next = 404, "not_found", "list the directory"
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			r.status, r.code, r.next = 403, "forbidden", "write below /work, or below /tmp"
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			r.status, r.code, r.next = 507, "no_space", "remove files of the sandbox, or create a sandbox with a larger /work"
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
			r.status, r.code, r.next = 503, "overloaded", "the sandbox reached a limit of processes or memory: end processes, or create a sandbox with higher limits"
		case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, fs.ErrExist):
			r.status, r.code = 400, "bad_request"
		}
	}
	type wire struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Next    string `json:"next,omitempty"`
	}
	return answerJSON(r.status, map[string]wire{"error": {r.code, r.message, r.next}})
}

func answerJSON(status int, v any) *channel.Answer {
	b, err := json.Marshal(v)
	if err != nil { // our own types always encode
		b = []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	return &channel.Answer{Status: status, Headers: [][2]string{{"content-type", "application/json"}}, Body: strings.NewReader(string(b))}
}
