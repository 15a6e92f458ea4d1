package system_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// testContract: the function gets the event unchanged, the client gets the answer unchanged, and
// neither sees internals of the engine.
func (w *world) testContract(t *testing.T) {
	t.Run("event and answer", func(t *testing.T) {
		e := testdaemon.Event{Method: http.MethodPut, Path: "/echo?a=1&b=%20", Headers: map[string]string{"X-Test": "sent"}, Body: "\x00\xff body"}
		a, err := e.Call(t.Context(), w.client, w.d.Addr(), "probe")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{"status": fmt.Sprint(a.Status), "body": string(a.Body)}
		for _, k := range []string{"X-Method", "X-Query", "X-Sent", "X-Function", "X-Tenant", "Content-Type"} {
			got[k] = a.Header.Get(k)
		}
		want := map[string]string{
			"status": "201", "body": e.Body, "X-Method": "PUT", "X-Query": "a=1&b=%20", "X-Sent": "sent",
			"X-Function": "probe", "X-Tenant": "default", "Content-Type": "application/octet-stream",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		for _, k := range []string{"X-Fre-Id", "X-Fre-Instance", "X-Fre-Cold", "X-Fre-Start-Us"} {
			if a.Header.Get(k) == "" {
				t.Errorf("the answer has no %s", k)
			}
		}
	})
	t.Run("large request", func(t *testing.T) {
		body := strings.Repeat("0123456789abcdef", 512<<10) // 8 MiB
		sum := sha256.Sum256([]byte(body))
		if got, want := string(w.ok(t, "probe", "/digest", body).Body), hex.EncodeToString(sum[:]); got != want {
			t.Errorf("digest of %d bytes: got %s, want %s", len(body), got, want)
		}
	})
	t.Run("large answer", func(t *testing.T) {
		if got, want := len(w.ok(t, "probe", "/large", "8388608").Body), 8<<20; got != want {
			t.Errorf("got %d bytes, want %d", got, want)
		}
	})
	t.Run("streamed answer", func(t *testing.T) {
		var want strings.Builder
		for i := range 10 {
			fmt.Fprintf(&want, "piece %d\n", i)
		}
		if diff := cmp.Diff(want.String(), string(w.ok(t, "probe", "/stream", "").Body)); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
	})
	t.Run("exception", func(t *testing.T) {
		a, err := w.call(t.Context(), "probe", "/fail", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, message := failure(t, a); a.Status != http.StatusInternalServerError || !strings.Contains(message, "no such luck") {
			t.Errorf("got status %d: %s, want 500 with the exception's message", a.Status, a.Body)
		}
		for _, secret := range []string{"Traceback", "main.py", "/opt/fre", w.dir} {
			if strings.Contains(string(a.Body), secret) {
				t.Errorf("the answer shows %q: %s", secret, a.Body)
			}
		}
		until(t, w.logged("probe", "no such luck", "main.py"))
	})
	t.Run("environment", func(t *testing.T) {
		var environ map[string]string
		if err := json.Unmarshal(w.ok(t, "probe", "/environ", "").Body, &environ); err != nil {
			t.Fatal(err)
		}
		for k, v := range environ {
			if strings.Contains(v, w.dir) || strings.Contains(v, w.state) {
				t.Errorf("the function sees %s=%s: a path of the host", k, v)
			}
		}
		if environ["FRE_BIN"] != "" || environ["FRE_TEST_ROOT"] != "" {
			t.Errorf("the function has the engine's environment: %v", environ)
		}
	})
	t.Run("open files", func(t *testing.T) {
		var open map[string]string
		if err := json.Unmarshal(w.ok(t, "probe", "/open-files", "").Body, &open); err != nil {
			t.Fatal(err)
		}
		for fd, target := range open {
			kind, _, _ := strings.Cut(target, ":")
			want := map[string]string{"0": "/null", // of the sandbox's own /dev
				"1": "pipe", "2": "pipe", "3": "socket"}[fd]
			if kind != want && kind != "anon_inode" && target != "/memfd:answer (deleted)" { // the poller of the runtime, the last large answer of the bootstrap
				t.Errorf("file descriptor %s of the function is %q, want %q", fd, target, want)
			}
		}
	})
	t.Run("places to write", func(t *testing.T) {
		var made []string
		if err := json.Unmarshal(w.ok(t, "probe", "/places", "").Body, &made); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"/tmp", "/work"}, made); diff != "" {
			t.Errorf("directories a function can write to (-want +got):\n%s", diff)
		}
	})
	t.Run("native exit status", func(t *testing.T) {
		for path, want := range map[string]int{"/well": 200, "/silent": 200, "/exit": 500, "/partial": 500} {
			a, err := w.call(t.Context(), "shell", path, "")
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != want {
				t.Errorf("shell%s: got status %d: %s, want %d", path, a.Status, a.Body, want)
			}
		}
	})
}

// testTenants: only functions of the same tenant share /work.
func (w *world) testTenants(t *testing.T) {
	w.ok(t, "red-one.red", "/write", "red's note")
	if got := string(w.ok(t, "red-two.red", "/read", "").Body); got != "red's note" {
		t.Errorf("another function of the tenant reads %q, want what the first wrote", got)
	}
	a, err := w.call(t.Context(), "blue.blue", "/read", "")
	if err != nil {
		t.Fatal(err)
	}
	if a.Status != http.StatusNotFound {
		t.Errorf("another tenant's function: got status %d: %s, want its own 404", a.Status, a.Body)
	}
}

// logged reports whether a function's log holds each text, on any line.
func (w *world) logged(function string, texts ...string) func() error {
	return func() error {
		out, err := w.d.CLI(context.Background(), "logs", function)
		if err != nil {
			return err
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("the log of %s has no %q:\n%s", function, text, out[max(0, len(out)-4096):])
			}
		}
		return nil
	}
}

func (w *world) testLogs(t *testing.T) {
	w.ok(t, "probe", "/log", "hear me")
	until(t, w.logged("probe", "to stdout hear me", "to stderr hear me", "to the logger hear me"))
	out := w.cli(t, "logs", "blue.blue")
	if strings.Contains(out, "hear me") {
		t.Errorf("another function's log holds the line:\n%s", out)
	}
}

func (w *world) testCLI(t *testing.T) {
	t.Run("functions", func(t *testing.T) {
		names := strings.Fields(w.cli(t, "functions", "-q"))
		for _, f := range functions {
			if !slices.Contains(names, f.qualified()) {
				t.Errorf("fre functions -q: no %s in %q", f.qualified(), names)
			}
		}
	})
	t.Run("images", func(t *testing.T) {
		out := w.cli(t, "images")
		for _, name := range []string{"probe", "shell"} {
			if !strings.Contains(out, name) {
				t.Errorf("fre images: no %s in:\n%s", name, out)
			}
		}
	})
	t.Run("run", func(t *testing.T) {
		if got := w.cli(t, "run", "shell:1.0.0", "--", "/bin/sh", "-c", "echo from inside"); got != "from inside\n" {
			t.Errorf("fre run: got %q", got)
		}
		_, err := w.d.CLI(t.Context(), "run", "shell:1.0.0", "--", "/bin/sh", "-c", "exit 42")
		var failed *testdaemon.CommandError
		if !asCommandError(err, &failed) || failed.Code != 42 {
			t.Errorf("fre run of a command that exits with 42: got %v", err)
		}
	})
	t.Run("invoke", func(t *testing.T) {
		if got := w.cli(t, "invoke", "native-shell", "-d", "a rose"); got != "1 lines, 2 words\n" {
			t.Errorf("fre invoke native-shell: got %q, want its count", got)
		}
	})
	t.Run("unknown function", func(t *testing.T) { w.refused(t, []string{"no-such-function"}, "invoke", "no-such-function") })
	t.Run("image in use", func(t *testing.T) { w.refused(t, []string{"use"}, "image", "rm", "probe:1.0.0") })
	t.Run("sandboxes", w.testSandboxes)
	t.Run("follow", w.testFollow)
	t.Run("image", w.testImages)
	t.Run("interrupt", w.testInterrupt)
	t.Run("doctor", w.testDoctor)
	t.Run("version", w.testVersion)
}
