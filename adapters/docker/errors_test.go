package docker

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/common"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
)

// TestCodes: Docker's API answers every code with the catalogue's status, except the codes in the
// table. A client prints only the message, so the message has the next step and the words for which
// the client looks.
func TestCodes(t *testing.T) {
	statuses := map[failure.Code]int{failure.Template: 400, failure.TooLarge: 400, failure.WrongPlatform: 404, failure.Ambiguous: 400, failure.CommandNotFound: 400, failure.CommandNotExec: 400}
	words := map[failure.Code]string{
		failure.BadName: "invalid reference format: the reason", failure.InUse: "conflict: the reason", failure.CommandNotFound: "the reason: executable file not found in $PATH: no such file or directory",
		failure.CommandNotExec: "the reason: permission denied",
	}
	s := &server{log: slog.New(slog.DiscardHandler)}
	for _, f := range api.Failures() {
		w := httptest.NewRecorder()
		s.fail(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody), failure.New(f.Code, "the reason", ""))
		status := f.Status
		if other, ok := statuses[f.Code]; ok {
			status = other
		}
		var body common.ErrorResponse
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != status || !strings.Contains(body.Message, cmp.Or(words[f.Code], "the reason")) {
			t.Errorf("%s: %d %s, %v; want %d with the reason", f.Code, w.Code, w.Body, err, status)
		}
	}
}

// TestBodyTooLarge: the message names the limit and the next step, in words of FRE.
func TestBodyTooLarge(t *testing.T) {
	s := &server{log: slog.New(slog.DiscardHandler)}
	for path, handle := range map[string]func(http.ResponseWriter, *http.Request) error{"/containers/create": s.containerCreate, "/auth": s.auth} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader(strings.Repeat(" ", maxJSONBytes+1)))
		s.fail(w, r, handle(w, r))
		var body common.ErrorResponse
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != http.StatusRequestEntityTooLarge ||
			body.Message != "read body: the body is over the limit of 4194304 bytes: send at most 4194304 bytes" {
			t.Errorf("%s: %d %s, %v; want 413 with the limit and the next step", path, w.Code, w.Body, err)
		}
	}
}
