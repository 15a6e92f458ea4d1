package server_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
)

const template = "id: hello\nbase: python\nhandler: main.handle\n"

// start serves a fake engine on a socket and returns its path.
func start(t *testing.T, adjust func(*server.Config)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fre") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "fre.sock")
	l, err := server.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	scratch := t.TempDir()
	cfg := server.Config{
		Engine: servertest.New(), Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "v1.2.3"},
		Scratch: func() (string, error) { return os.MkdirTemp(scratch, "") }, //nolint:usetesting // the server removes it, and the test looks
	}
	if adjust != nil {
		adjust(&cfg)
	}
	s := &http.Server{Handler: server.New(cfg)}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil { // a handler that hangs is a failure
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
		left, err := os.ReadDir(scratch)
		if err != nil || len(left) > 0 {
			t.Errorf("scratch directory holds %v, %v; want nothing", left, err)
		}
	})
	return socket
}

func connect(t *testing.T, adjust func(*server.Config)) *client.Client {
	t.Helper()
	c := client.New(start(t, adjust))
	t.Cleanup(c.Close)
	return c
}

func templateDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// code returns the code of an *api.Error, or "" for other errors.
func code(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestRoundTrip(t *testing.T) {
	ctx := t.Context()
	c := connect(t, nil)
	dir := templateDir(t, map[string]string{"fret.yaml": template, "main.py": "def handle(e, c): return 1\n", ".git/HEAD": "x"})

	if v, err := c.Version(ctx); err != nil || v.Version != "v1.2.3" {
		t.Errorf("Version = %+v, %v", v, err)
	}
	if schema, err := c.TemplateSchema(ctx); err != nil || !json.Valid(schema) {
		t.Errorf("TemplateSchema = %.40s, %v", schema, err)
	}
	if info, err := c.CheckTemplate(ctx, []byte(template)); err != nil || info.ID != "hello" {
		t.Errorf("CheckTemplate = %+v, %v", info, err)
	}
	var steps []string
	built, err := c.Functions().DeployDir(ctx, dir, api.DeployRequest{}, nil, func(e api.Progress) { steps = append(steps, e.Step) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"base", "link"}, steps); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if built.Function == nil || built.Function.Name != "hello" || built.Image.Files != 2 || len(built.Lock) == 0 {
		t.Errorf("DeployDir = %+v, want function hello, 2 files (no .git), a lock", built)
	}
	images, err := c.Images().List(ctx)
	if err != nil || len(images) != 1 || images[0].Base != "python" {
		t.Errorf("Images = %+v, %v", images, err)
	}
	if img, err := c.Images().Get(ctx, "hello:latest"); err != nil || len(img.Parts) != 1 || len(img.Config) == 0 {
		t.Errorf("Image = %+v, %v", img, err)
	}
	if f, err := c.Functions().Get(ctx, "hello"); err != nil || f.ImageRef != "hello:latest" || len(f.Config) == 0 {
		t.Errorf("Function = %+v, %v", f, err)
	}
	if _, err := c.Images().Remove(ctx, "hello", client.RemoveOptions{}); code(err) != api.CodeInUse {
		t.Errorf("RemoveImage of a used image: %v, want %s", err, api.CodeInUse)
	}
	if _, err := c.Functions().Deploy(ctx, api.DeployRequest{Image: "hello", Name: "second"}); err != nil {
		t.Errorf("Deploy: %v", err)
	}
	boxes, err := c.Sandboxes().List(ctx, client.SandboxOptions{Size: true})
	if err != nil || len(boxes) != 2 || boxes[0].Size == nil || boxes[0].Stats != nil {
		t.Fatalf("Sandboxes with sizes = %+v, %v", boxes, err)
	}
	boxes, err = c.Sandboxes().List(ctx, client.SandboxOptions{Stats: true})
	if err != nil || len(boxes) != 2 || boxes[0].Stats == nil || boxes[0].Size != nil {
		t.Fatalf("Sandboxes = %+v, %v", boxes, err)
	}
	if err := c.Sandboxes().Stop(ctx, boxes[0].ID[:6], time.Second); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if err := c.Sandboxes().Kill(ctx, boxes[1].ID); err != nil {
		t.Errorf("Kill: %v", err)
	}
	boxes, err = c.Sandboxes().List(ctx, client.SandboxOptions{All: true, Size: true})
	if err != nil || len(boxes) != 2 || boxes[0].Exit == nil || boxes[1].Exit.Signal != 9 {
		t.Errorf("Sandboxes after stop and kill = %+v, %v", boxes, err)
	}
	if d, err := c.Doctor(ctx, client.DoctorOptions{}); err != nil || len(d.Checks) != 3 || d.Checks[0].CostNanos != 0 {
		t.Errorf("Doctor = %+v, %v", d, err)
	}
	for _, name := range []string{"hello", "second"} {
		if err := c.Functions().Remove(ctx, name); err != nil {
			t.Errorf("RemoveFunction: %v", err)
		}
	}
	tagged, err := c.Images().Tag(ctx, "hello", "localhost:5000/team/hello")
	if err != nil || len(tagged.Names) != 2 {
		t.Errorf("TagImage = %+v, %v", tagged, err)
	}
	if _, err := c.Images().Tag(ctx, "hello", "a//b"); code(err) != failure.BadName {
		t.Errorf("TagImage with a bad name: %v, want %s", err, failure.BadName)
	}
	if _, err := c.Images().Remove(ctx, tagged.Digest, client.RemoveOptions{}); code(err) != api.CodeInUse {
		t.Errorf("RemoveImage of two names by digest: %v, want %s", err, api.CodeInUse)
	}
	if gone, err := c.Images().Remove(ctx, "localhost:5000/team/hello", client.RemoveOptions{}); err != nil || gone.Deleted || len(gone.Untagged) != 1 {
		t.Errorf("RemoveImage of one name = %+v, %v", gone, err)
	}
	if gone, err := c.Images().Remove(ctx, "hello", client.RemoveOptions{}); err != nil || !gone.Deleted {
		t.Errorf("RemoveImage = %+v, %v", gone, err)
	}
	if base, err := c.Images().Base(ctx, "node", func(api.Progress) {}); err != nil || base.Image.Name != "node" {
		t.Errorf("Base = %+v, %v", base, err)
	}
	if _, err := c.Functions().Deploy(ctx, api.DeployRequest{Image: "node"}); code(err) != api.CodeNotFunction {
		t.Errorf("Deploy of a base: %v, want %s", err, api.CodeNotFunction)
	}
}

func TestBuildErrors(t *testing.T) {
	c := connect(t, func(cfg *server.Config) { cfg.MaxTarBytes, cfg.MaxTarEntries = 1<<20, 20 })
	many := map[string]string{"fret.yaml": template}
	for i := range 30 {
		many[fmt.Sprintf("f%d", i)] = ""
	}
	tests := []struct {
		name    string
		files   map[string]string
		code    api.Code
		message string
	}{
		{"no template", map[string]string{"main.py": ""}, api.CodeNotFound, "fret.yaml"},
		{"bad template", map[string]string{"fret.yaml": template + "bogus: 1\n"}, api.CodeTemplate, "fret.yaml:4:1: "},
		{"unknown package", map[string]string{"fret.yaml": template + "packages: {pip: [no-such-package]}\n"}, api.CodeBuildFailed, "not found in the package registry"},
		{"too many files", many, api.CodeTooLarge, "20 files"},
		{"too many bytes", map[string]string{"fret.yaml": template, "big": strings.Repeat("x", 5<<20)}, api.CodeTooLarge, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Images().Build(t.Context(), templateDir(t, tt.files), client.BuildOptions{}, func(api.Progress) {})
			if code(err) != tt.code || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("Build = %v (code %q), want code %q, message with %q", err, code(err), tt.code, tt.message)
			}
		})
	}
}

func TestBuildCanceled(t *testing.T) {
	c := connect(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	dir := templateDir(t, map[string]string{"fret.yaml": template + "packages: {pip: [slow]}\n"})
	_, err := c.Images().Build(ctx, dir, client.BuildOptions{}, func(api.Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Build = %v, want context.Canceled", err)
	}
}

func TestHTTPErrors(t *testing.T) {
	socket := start(t, nil)
	tests := []struct {
		name, method, path, contentType, body string
		status                                int
		message                               string
	}{
		{"unknown route", "GET", "/v2/images", "", "", 404, "no route /v2/images"},
		{"wrong method", "DELETE", "/v1/version", "", "", 405, "DELETE is not possible"},
		{"unknown image", "GET", "/v1/images/x", "", "", 404, "image \\\"x\\\""},
		{"unknown function", "POST", "/v1/functions/x/invoke", "", "", 404, "function \\\"x\\\""},
		{"malformed JSON", "POST", "/v1/functions", "application/json", "{\n  \"image\": }", 400, "body:2:12: invalid character"},
		{"wrong type", "POST", "/v1/functions", "application/json", "{\"image\": 1}", 400, "body:1:"},
		{"unknown member", "POST", "/v1/functions", "application/json", "{\"imag\": \"x\"}", 400, "unknown field"},
		{"two values", "POST", "/v1/functions", "application/json", "{} {}", 400, "several JSON values"},
		{"cut JSON", "POST", "/v1/functions", "application/json", "{\"image\":", 400, "unexpected EOF"},
		{"no image", "POST", "/v1/functions", "application/json", "{}", 400, "image is missing"},
		{"locked image", "POST", "/v1/functions", "application/json", `{"image":"hello","locked":true}`, 400, "locked and offline apply to builds"},
		{"JSON too large", "POST", "/v1/functions", "application/json", "\"" + strings.Repeat("x", 2<<20) + "\"", 413, `read body: the body is over the limit of 1048576 bytes","next":"send at most 1048576 bytes"`},
		{"template too large", "POST", "/v1/template/check", "", strings.Repeat("#", 2<<20), 413, `read template: the body is over the limit of 1048576 bytes","next":"send at most 1048576 bytes"`},
		{"not a tar type", "POST", "/v1/build", "text/plain", "x", 400, "application/x-tar"},
		{"not a tar", "POST", "/v1/build", "application/x-tar", strings.Repeat("x", 2000), 400, "invalid tar header"},
		{"cut tar", "POST", "/v1/build", "application/x-tar", "x", 400, "unexpected EOF"},
		{"bad flag", "GET", "/v1/sandboxes?all=perhaps", "", "", 400, "all: "},
		{"bad grace", "POST", "/v1/sandboxes/x/stop?grace=soon", "", "", 400, "grace: "},
		{"unknown sandbox", "POST", "/v1/sandboxes/x/kill", "", "", 404, "sandbox"},
		{"bad tail", "GET", "/v1/functions/x/logs?tail=some", "", "", 400, "tail: "},
		{"bad since", "GET", "/v1/functions/x/logs?since=noon", "", "", 400, "since: "},
		{"bad generation", "GET", "/v1/images?since=yesterday", "", "", 400, "since: "},
		{"bad time of events", "GET", "/v1/events?since=noon", "", "", 400, "neither a generation nor"},
		{"bad follow", "GET", "/v1/events?follow=perhaps", "", "", 400, "follow: "},
		{"events forgotten", "GET", "/v1/events?since=7", "", "", 410, "changes are too old"},
		{"run without upgrade", "POST", "/v1/run", "application/json", "{}", 426, "fre-run"},
		{"unknown base", "POST", "/v1/bases/cobol", "", "", 404, "unknown base environment"},
	}
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer hc.CloseIdleConnections()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, "http://fre"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", tt.contentType)
			resp, err := hc.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || !strings.Contains(string(body), tt.message) || !strings.HasPrefix(string(body), `{"error":{"code":"`) {
				t.Errorf("%s %s: %d %s\nwant %d with %q", tt.method, tt.path, resp.StatusCode, body, tt.status, tt.message)
			}
		})
	}
}

func TestInvoke(t *testing.T) {
	ctx := t.Context()
	c := connect(t, func(cfg *server.Config) { cfg.MaxInvokeBytes = 1 << 20 })
	if _, err := c.Functions().DeployDir(ctx, templateDir(t, map[string]string{"fret.yaml": template}), api.DeployRequest{}, nil, func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Functions().Invoke(ctx, "hello", client.Event{Method: "PUT", Path: "/a%20b", Query: "x=1&y", Header: http.Header{"X-Colour": {"red", "blue"}, "Te": {"trailers"}}, Body: strings.NewReader("hi")})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Method, Path, Query, Body string
		Header                    [][2]string
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Method != "PUT" || got.Path != "/a%20b" || got.Query != "x=1&y" || got.Body != "hi" {
		t.Errorf("event = %+v", got)
	}
	want := [][2]string{{"Host", "fre"}, {"Content-Length", "2"}, {"User-Agent", "Go-http-client/1.1"}, {"X-Colour", "red"}, {"X-Colour", "blue"}, {"X-Forwarded-Prefix", "/function/hello"}}
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Errorf("headers of the event (-want +got):\n%s", diff)
	}
	if id := resp.Header.Get(api.InvocationHeader); id != "inv1" || resp.Header.Get("X-Own") != "yes" {
		t.Errorf("answer's headers = %v, want X-Fre-Id of the engine and X-Own", resp.Header)
	}

	for path, want := range map[string]api.Code{
		"/fail": api.CodeFunction, "/crash": api.CodeCrash, "/timeout": api.CodeTimeout,
		"/overloaded": api.CodeOverloaded, "/closed": api.CodeClosed, "no-slash": api.CodeBadRequest,
	} {
		_, err := c.Functions().Invoke(ctx, "hello", client.Event{Path: path}) //nolint:bodyclose // none with an error
		if code(err) != want || strings.Contains(err.Error(), "secret") {
			t.Errorf("Invoke %s = %v, want code %s without the stack", path, err, want)
		}
	}
	_, err = c.Functions().Invoke(ctx, "hello", client.Event{Body: strings.NewReader(strings.Repeat("x", 2<<20))}) //nolint:bodyclose // none with an error
	if code(err) != failure.BodyTooLarge {
		t.Errorf("Invoke with a large body = %v, want code %s", err, failure.BodyTooLarge)
	}
	// The function's own status is an answer, not an error.
	resp, err = c.Functions().Invoke(ctx, "hello", client.Event{Path: "/status/503"})
	if err != nil || resp.StatusCode != 503 {
		t.Fatalf("Invoke /status/503 = %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	resp, err = c.Functions().Invoke(ctx, "hello", client.Event{Path: "/broken"})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("answer that broke off read as %q without error", body)
	}
}

func TestInvokeStreams(t *testing.T) {
	c := connect(t, nil)
	if _, err := c.Functions().DeployDir(t.Context(), templateDir(t, map[string]string{"fret.yaml": template}), api.DeployRequest{}, nil, func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	resp, err := c.Functions().Invoke(t.Context(), "hello", client.Event{Path: "/stream", Body: pr})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, line := range []string{"one\n", "two\n"} { // each line is answered before the next
		if _, err := io.WriteString(pw, line); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, len("echo ")+len(line))
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "echo "+line {
			t.Fatalf("answer to %q = %q, %v", line, buf, err)
		}
	}
	if err := pw.Close(); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// A build that is refused before its start has a status of its own, and Retry-After if a retry can
// help.
func TestBuildRefused(t *testing.T) {
	r := serveRemote(t)
	for _, c := range []struct {
		pip        string
		status     int
		retryAfter string
		code       string
		says       string
	}{
		{"queue-full", 429, "10", "quota", "tenant acme has reached its quota of waiting builds (16)"},
		{"endless", 422, "", "build_failed", "the build took too long"},
	} {
		for _, path := range []string{"/v1/build", "/v1/functions"} {
			var body bytes.Buffer
			w := tar.NewWriter(&body)
			text := "id: f\ntenant: acme\nbase: python\nhandler: main.handle\npackages: {pip: [" + c.pip + "]}\n"
			if err := errors.Join(
				w.WriteHeader(&tar.Header{Name: "fret.yaml", Mode: 0o644, Size: int64(len(text))}),
				func() error { _, err := io.WriteString(w, text); return err }(), w.Close(),
			); err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+path, &body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-tar")
			req.Header.Set("Authorization", "Bearer "+r.token("acme", access.Deploy))
			resp, err := r.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if after := resp.Header.Get("Retry-After"); resp.StatusCode != c.status || after != c.retryAfter || !strings.Contains(string(got), c.code) || !strings.Contains(string(got), c.says) {
				t.Errorf("%s of %s: %d, Retry-After %q, %s; want %d, %q and %s: %s", path, c.pip, resp.StatusCode, after, got, c.status, c.retryAfter, c.code, c.says)
			}
		}
	}
}

func TestLogs(t *testing.T) {
	ctx := t.Context()
	c := connect(t, nil)
	if _, err := c.Functions().DeployDir(ctx, templateDir(t, map[string]string{"fret.yaml": template}), api.DeployRequest{}, nil, func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	invoke := func(path string) {
		t.Helper()
		resp, err := c.Functions().Invoke(ctx, "hello", client.Event{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	read := func(o client.LogOptions) (lines []string) {
		t.Helper()
		err := c.Functions().Logs(ctx, "hello", o, func(l api.LogLine) error { lines = append(lines, l.Text); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	invoke("/a")
	invoke("/b")
	if diff := cmp.Diff([]string{"deployed", "POST /a", "POST /b"}, read(client.LogOptions{Tail: -1})); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"POST /b"}, read(client.LogOptions{Tail: 1})); diff != "" {
		t.Errorf("tail (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"POST /a", "POST /b"}, read(client.LogOptions{Tail: -1, Since: servertest.Epoch.Add(time.Second)})); diff != "" {
		t.Errorf("since (-want +got):\n%s", diff)
	}
	var followed []string
	errEnough := errors.New("enough")
	err := c.Functions().Logs(ctx, "hello", client.LogOptions{Tail: 1, Follow: true}, func(l api.LogLine) error {
		followed = append(followed, l.Text)
		if len(followed) == 1 {
			invoke("/c")
			return nil
		}
		return errEnough
	})
	if diff := cmp.Diff([]string{"POST /b", "POST /c"}, followed); !errors.Is(err, errEnough) || diff != "" {
		t.Errorf("follow: %v (-want +got):\n%s", err, diff)
	}
	if err := c.Functions().Logs(ctx, "nobody", client.LogOptions{Tail: -1}, nil); code(err) != api.CodeNotFound {
		t.Errorf("Logs of nobody = %v, want code %s", err, api.CodeNotFound)
	}
}

func TestRun(t *testing.T) {
	c := connect(t, nil)
	if _, err := c.Images().Base(t.Context(), "native", func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcdef", 1<<16) // more than a window or a pipe holds
	tests := []struct {
		name           string
		request        api.RunRequest
		stdin          string
		stdout, stderr string
		exit           int
		code           api.Code
	}{
		{name: "output", request: api.RunRequest{Image: "native", Args: []string{"echo", "a", "b"}}, stdout: "a b\n"},
		{name: "input", request: api.RunRequest{Image: "native", Args: []string{"cat"}}, stdin: large, stdout: large},
		{name: "unread input", request: api.RunRequest{Image: "native", Args: []string{"exit", "3"}}, stdin: large, stderr: "leaving\n", exit: 3},
		{name: "environment", request: api.RunRequest{Image: "native", Args: []string{"env"}, Env: []string{"A=b"}}, stdout: "A=b\n"},
		{name: "unknown image", request: api.RunRequest{Image: "cobol", Args: []string{"cat"}}, code: api.CodeNotFound},
		{name: "unknown command", request: api.RunRequest{Image: "native", Args: []string{"cot"}}, code: api.CodeCommandNotFound},
		{name: "not executable", request: api.RunRequest{Image: "native", Args: []string{"locked"}}, code: api.CodeCommandNotExec},
		{name: "no command", request: api.RunRequest{Image: "native"}, code: api.CodeBadRequest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			exit, err := c.Sandboxes().Run(t.Context(), tt.request, client.RunIO{Stdin: strings.NewReader(tt.stdin), Stdout: &stdout, Stderr: &stderr})
			if code(err) != tt.code || (err != nil) != (tt.code != "") || exit.Code != tt.exit {
				t.Errorf("Run = %+v, %v; want exit %d, code %q", exit, err, tt.exit, tt.code)
			}
			if stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("stdout %d bytes, stderr %q; want %d bytes, %q", stdout.Len(), stderr.String(), len(tt.stdout), tt.stderr)
			}
		})
	}
}

// writerFunc lets a test act when output arrives.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRunEndsEarly(t *testing.T) {
	c := connect(t, nil)
	if _, err := c.Images().Base(t.Context(), "native", func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	t.Run("killed while input waits", func(t *testing.T) {
		kill := make(chan struct{})
		exit, err := c.Sandboxes().Run(t.Context(), api.RunRequest{Image: "native", Args: []string{"sleep"}}, client.RunIO{
			Stdin:  strings.NewReader(strings.Repeat("x", 1<<20)),
			Stdout: writerFunc(func(p []byte) (int, error) { close(kill); return len(p), nil }),
			Stderr: io.Discard, Kill: kill,
		})
		if err != nil || exit.Signal != 9 {
			t.Errorf("Run = %+v, %v; want signal 9", exit, err)
		}
	})
	t.Run("client gone", func(t *testing.T) { // the server's Close waits for no handler, so only the fake's loop could leak
		ctx, cancel := context.WithCancel(t.Context())
		_, err := c.Sandboxes().Run(ctx, api.RunRequest{Image: "native", Args: []string{"yes"}}, client.RunIO{
			Stdout: writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), Stderr: io.Discard,
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want context.Canceled", err)
		}
	})
}

func TestUnreachable(t *testing.T) {
	c := client.New(filepath.Join(t.TempDir(), "none.sock"))
	if _, err := c.Version(t.Context()); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("Version = %v, want ErrUnreachable", err)
	}
	if _, err := c.Sandboxes().Run(t.Context(), api.RunRequest{}, client.RunIO{}); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("Run = %v, want ErrUnreachable", err)
	}
}

func TestPackRefusesSpecialFiles(t *testing.T) {
	c := connect(t, nil)
	dir := templateDir(t, map[string]string{"fret.yaml": template})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Skip("path too long for a socket")
	}
	defer l.Close()
	if _, err := c.Images().Build(t.Context(), dir, client.BuildOptions{}, func(api.Progress) {}); err == nil || !strings.Contains(err.Error(), "only files") {
		t.Errorf("Build of a directory with a socket = %v", err)
	}
}

// The control API answers with the status, the code and the next step of the catalogue for every
// code, and with the error's message.
func TestCodes(t *testing.T) {
	c := connect(t, nil)
	if _, err := c.Functions().DeployDir(t.Context(), templateDir(t, map[string]string{"fret.yaml": template}), api.DeployRequest{}, nil, func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	for _, want := range api.Failures() {
		_, err := c.Functions().Invoke(t.Context(), "hello", client.Event{Path: "/code/" + string(want.Code)}) //nolint:bodyclose // no body beside an error
		var got *api.Error
		if !errors.As(err, &got) || got.Code != want.Code || got.Status != want.Status || got.Message != "the reason" || got.Next != want.Next {
			t.Errorf("%s: %#v, want %+v", want.Code, err, want)
		}
	}
}
