package docker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The audit log has every change to images and containers by docker, as done or failed, and no read
// access.
func TestAudit(t *testing.T) { each(t, nil, (*world).testAudit) }

func (w *world) testAudit(t *testing.T) {
	t.Helper()
	w.app(t)
	w.ok(t, "tag", "app", "app:audited")
	w.ok(t, "rmi", "app:audited")
	w.ok(t, "create", "--name", "box", "--network", "none", "app", "args", "x")
	w.ok(t, "start", "-a", "box")
	w.ok(t, "rm", "box")
	w.ok(t, "images")
	if r := w.docker(t, "rm", "nothing"); r.code == 0 {
		t.Error("docker rm of nothing succeeded")
	}
	log, err := os.ReadFile(filepath.Join(w.State(), "access", "audit.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"action":"docker POST /images/{name}/tag","on":"app","result":"done","status":201`,
		`"action":"docker DELETE /images/{name...}","on":"app:audited","result":"done","status":200`,
		`"action":"docker POST /containers/create","on":"box","result":"done","status":201`,
		`"action":"docker POST /images/create","on":"app","result":"done","status":200`,
		`"action":"docker POST /containers/{id}/start"`,
		`"action":"docker DELETE /containers/{id}","on":"box","result":"done","status":204`,
		`"action":"docker DELETE /containers/{id}","on":"nothing","result":"failed","status":404`,
	} {
		if !strings.Contains(string(log), `"who":"root on the Docker socket","tenant":"*",`+want) {
			t.Errorf("no %s in the audit log:\n%s", want, log)
		}
	}
	if strings.Contains(string(log), "docker GET") || strings.Contains(string(log), "docker HEAD") {
		t.Errorf("the audit log tells of looks:\n%s", log)
	}
}
