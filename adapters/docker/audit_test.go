package docker

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fre-engine/fre/access"
)

func openAccess(t *testing.T) *access.Access {
	t.Helper()
	a, err := access.Open(access.Config{Dir: filepath.Join(t.TempDir(), "access"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func entriesOf(t *testing.T, a *access.Access) (out []access.Entry) {
	t.Helper()
	err := a.Audit(t.Context(), access.AuditOptions{Tail: 100}, func(e access.Entry) error { out = append(out, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAudit: the audit log records changes by clients, and refused changes as failed. It records no
// reads.
func TestAudit(t *testing.T) {
	a := openAccess(t)
	handler := New(Config{Log: slog.New(slog.DiscardHandler), Access: a})
	for _, request := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/_ping", 200},
		{"HEAD", "/v1.44/_ping", 200},
		{"GET", "/swarm", 501},
		{"POST", "/v1.44/networks/prune", 200},
		{"DELETE", "/networks/bridge", 501},
		{"DELETE", "/networks/nosuch", 404},
		{"POST", "/v1.44/images/create?fromSrc=http://user:secret@x", 501},
		{"POST", "/images/busybox/else", 404},
		{"POST", "/no/route", 404},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), request.method, request.path, nil))
		if w.Code != request.status {
			t.Errorf("%s %s: %d %s, want %d", request.method, request.path, w.Code, w.Body, request.status)
		}
	}
	const who = "root on the Docker socket"
	want := []access.Entry{
		{Who: who, Tenant: "*", Action: "docker POST /networks/prune", Result: access.Done, Status: 200},
		{Who: who, Tenant: "*", Action: "docker DELETE /networks/{id}", On: "bridge", Result: access.Failed, Status: 501},
		{Who: who, Tenant: "*", Action: "docker DELETE /networks/{id}", On: "nosuch", Result: access.Failed, Status: 404},
		{Who: who, Tenant: "*", Action: "docker POST /images/create", Result: access.Failed, Status: 501},
		{Who: who, Tenant: "*", Action: "docker POST /images/{name...}", On: "busybox/else", Result: access.Failed, Status: 404},
	}
	got := entriesOf(t, a)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(access.Entry{}, "Time", "Reason", "Client")); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	for _, e := range got {
		if (e.Reason == "") != (e.Result == access.Done) || strings.Contains(e.Reason, "secret") {
			t.Errorf("reason of %+v", e)
		}
	}
}

// TestAuditBroken: an answer that ends in an error after its status counts as failed.
func TestAuditBroken(t *testing.T) {
	a := openAccess(t)
	s := &server{cfg: Config{Access: a}, log: slog.New(slog.DiscardHandler)}
	handle := s.audited(route{method: "POST", path: "/images/{name...}/push", handle: func(w http.ResponseWriter, _ *http.Request) error {
		out := &progressOut{w: w}
		out.send(progress{Status: "Pushing"})
		return out.fail(errors.New("the registry has gone"))
	}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/images/a/b/push", nil)
	r.SetPathValue("name", "a/b")
	w := httptest.NewRecorder()
	if err := handle(w, r); err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(w.Body); err != nil || strings.Count(string(body), "the registry has gone") != 2 {
		t.Errorf("answer %q, %v", body, err)
	}
	got := entriesOf(t, a)
	if len(got) != 1 || got[0].Action != "docker POST /images/{name}/push" || got[0].On != "a/b" || got[0].Result != access.Failed || got[0].Reason != "the registry has gone" {
		t.Errorf("audit log: %+v", got)
	}
}

// TestImageAsked: the audit log records a pull under the image's name.
func TestImageAsked(t *testing.T) {
	for _, test := range [][3]string{{"", "", ""}, {"", "x", ""}, {"busybox", "", "busybox"}, {"busybox", "1", "busybox:1"}, {"busybox", "sha256:00", "busybox@sha256:00"}} {
		if got := imageAsked(test[0], test[1]); got != test[2] {
			t.Errorf("imageAsked(%q, %q) = %q, want %q", test[0], test[1], got, test[2])
		}
	}
}
