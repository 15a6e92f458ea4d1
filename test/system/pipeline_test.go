package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

// A pipeline acts as a function for the gateway, asynchronous events, triggers, lists and
// revisions, before and after a crash of the engine.
func TestPipeline(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	dir := daemontest.Dir(t)
	program := filepath.Join(fretest.Rootfs(t), "bin/prog")
	config := image.Config{Args: []string{"/function/program", "function"}}
	fresh := config
	fresh.Instances.Isolation = template.IsolationEvent
	cfg := testdaemon.Config{State: filepath.Join(dir, "state"), Log: t.Output()}
	err := testdaemon.PutImages(t.Context(), cfg.State,
		testdaemon.Function{Name: "one", Program: program, Config: config}, testdaemon.Function{Name: "two", Program: program, Config: fresh})
	if err != nil {
		t.Fatal(err)
	}
	d := daemontest.Start(t, cfg)
	t.Cleanup(func() { daemontest.Stop(t, d) })
	fre := func(args ...string) string {
		t.Helper()
		out, err := d.CLI(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	write := func(steps string) string {
		t.Helper()
		line := filepath.Join(dir, "line")
		text := "id: line\npipeline: [" + steps + "]\nresources: {timeout: 20s}\ntriggers: [{name: hook, webhook: {signature: none}}]\n"
		if err := errors.Join(os.MkdirAll(line, 0o755), os.WriteFile(filepath.Join(line, "fret.yaml"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return line
	}
	if out, err := d.CLI(t.Context(), "deploy", write("one, two")); err == nil || !strings.Contains(err.Error(), "there is no function one: deploy it first") {
		t.Errorf("without its steps: %q, %v", out, err)
	}
	for _, name := range []string{"one", "two"} {
		fre("deploy", "--image", name+":1", "--name", name)
	}
	fre("template", "check", filepath.Join(dir, "line"))
	fre("deploy", filepath.Join(dir, "line"))
	fre("deploy", write("one@latest, two, one"))
	if out := fre("function", "ls"); !strings.Contains(out, "line") || !strings.Contains(out, "pipeline") {
		t.Errorf("fre function ls: %s", out)
	}
	if out := fre("function", "inspect", "line"); !strings.Contains(out, `"one@latest"`) {
		t.Errorf("fre function inspect: %s", out)
	}
	if out := fre("function", "revisions", "line"); !strings.Contains(out, "line:latest") {
		t.Errorf("fre function revisions: %s", out)
	}
	if out := fre("triggers"); !strings.Contains(out, "hook") {
		t.Errorf("fre triggers: %s", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	post := func(path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL(path), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	for round := range 2 {
		body := strings.Repeat("z", 3<<20)
		for _, path := range []string{"/function/line/", "/function/line@1/"} {
			if status, text := post(path, body); status != 200 || text != body {
				t.Errorf("%s, round %d: %d, %d bytes came back of %d", path, round, status, len(text), len(body))
			}
		}
		cl := client.New(d.Socket())
		for _, path := range []string{"/async-function/line/", "/hooks/line/hook"} {
			status, text := post(path, "later")
			var accepted struct{ ID string }
			if err := json.Unmarshal([]byte(text), &accepted); err != nil || status != 202 {
				t.Fatalf("%s: %d %s", path, status, text)
			}
			if err := testdaemon.Until(ctx, func() error {
				e, err := cl.Queue().Get(ctx, accepted.ID)
				if err == nil && (e.State != "done" || string(e.Body) != "later" || e.Function != "line") {
					err = fmt.Errorf("event of %s is %s: %q %s", e.Function, e.State, e.Body, e.Error)
				}
				return err
			}); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		cl.Close()
		if round == 0 {
			http.DefaultClient.CloseIdleConnections()
			d.Kill()
			d = daemontest.Start(t, cfg)
		}
	}
	fre("function", "rm", "two")
	if status, text := post("/function/line/", "x"); status != 502 || !strings.Contains(text, `"step_missing"`) || !strings.Contains(text, "two") {
		t.Errorf("without its second step: %d %s", status, text)
	}
	http.DefaultClient.CloseIdleConnections()
}
