package system_test

import (
	"archive/tar"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openfaas/faas-provider/logs"
	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

const (
	faasSecret  = "a secret of builders"
	callbackKey = "a secret of callbacks"
)

// faas is an engine that answers clients of OpenFaaS.
type faas struct {
	*testdaemon.Daemon
	t     *testing.T
	dir   string
	token string // of all tenants
}

func startFaaS(t *testing.T, args ...string) *faas {
	t.Helper()
	fretest.RequireRoot(t)
	f := &faas{t: t, dir: daemontest.Dir(t)}
	config := fmt.Sprintf(`
openfaas: {builders: [{secret_file: %[1]s/builder}, {tenant: acme, secret_file: %[1]s/acme}], max_context: 1MiB}
events: {callbacks: {networks: [127.0.0.0/8], secret_file: %[1]s/callback}}
network: {allow_private: [127.0.0.0/8]} # where the registries of these tests are
`, f.dir)
	for name, content := range map[string]string{"builder": faasSecret, "acme": faasSecret + " of acme", "callback": callbackKey, "fre.yaml": config} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.Daemon = daemontest.Start(t, testdaemon.Config{State: filepath.Join(f.dir, "state"), Args: append([]string{"--config", filepath.Join(f.dir, "fre.yaml")}, args...)})
	t.Cleanup(func() { daemontest.Stop(t, f.Daemon) })
	f.token = f.root("token", "create", "op", "--all-tenants", "--scopes", "admin")
	return f
}

func (f *faas) root(args ...string) string {
	f.t.Helper()
	out, err := f.CLI(f.t.Context(), args...)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// importImage imports an ordinary image with testdata/watchdog as the entry point.
func (f *faas) importImage(name string) {
	f.t.Helper()
	program := filepath.Join(f.dir, "watchdog")
	cmd := exec.CommandContext(f.t.Context(), "go", "build", "-trimpath", "-o", program, "testdata/watchdog/main.go")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("go build: %v\n%s", err, out)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		f.t.Fatal(err)
	}
	archive := filepath.Join(f.dir, "root.tar")
	if err := os.WriteFile(archive, tarOf(f.t, map[string]string{"home/app/fwatchdog": string(binary)}), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.root("image", "import", archive, name, "-c", "WORKDIR /home/app", "-c", `ENTRYPOINT ["./fwatchdog", "it's"]`, "-c", "ENV of_image=here")
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// call sends a request as a client and returns status, body and headers of the answer.
func (f *faas) call(method, path, password, body string, header ...string) (int, string, http.Header) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.URL(path), strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if password != "" {
		r.SetBasicAuth("admin", password)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

// want sends a request, requires the given status and returns the body.
func (f *faas) want(status int, method, path, password, body string, header ...string) string {
	f.t.Helper()
	got, text, _ := f.call(method, path, password, body, header...)
	if got != status {
		f.t.Fatalf("%s %s %s: %d %s, want %d", method, path, body, got, text, status)
	}
	return text
}

func (f *faas) json(v any) string {
	f.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

func decodeAs[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// replicas waits until a function has the given replicas.
func (f *faas) replicas(name string, wanted, available uint64) {
	f.t.Helper()
	var s types.FunctionStatus
	err := testdaemon.Until(f.t.Context(), func() error {
		s = decodeAs[types.FunctionStatus](f.t, f.want(200, "GET", "/system/function/"+name, f.token, ""))
		if s.Replicas != wanted || s.AvailableReplicas != available {
			return fmt.Errorf("%d replicas of %d, want %d of %d", s.AvailableReplicas, s.Replicas, available, wanted)
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// The engine answers each request of OpenFaaS's clients, in OpenFaaS's own types.
func TestOpenFaaS(t *testing.T) {
	f := startFaaS(t)
	f.importImage("functions/echo:1")
	info := decodeAs[struct {
		Provider types.ProviderInfo `json:"provider"`
		Arch     string             `json:"arch"`
	}](t, f.want(200, "GET", "/system/info", f.token, ""))
	if info.Provider.Name != "fre" || info.Provider.Version == nil || info.Provider.Version.SHA == "" || info.Arch == "" {
		t.Errorf("info: %+v", info)
	}
	labels, annotations := map[string]string{"team": "a"}, map[string]string{"note": "with \"quotes\" and\nlines"}
	d := types.FunctionDeployment{
		Service: "echo", Image: "docker.io/functions/echo:1", EnvProcess: "cat", EnvVars: map[string]string{"greeting": "1.10", "of_image": "changed"}, Labels: &labels, Annotations: &annotations,
		Limits: &types.FunctionResources{Memory: "64Mi", CPU: "500m"}, Requests: &types.FunctionResources{Memory: "16Mi"}, Secrets: []string{"key"}, ReadOnlyRootFilesystem: true,
	}
	f.want(404, "PUT", "/system/functions", f.token, f.json(d))
	f.want(422, "POST", "/system/functions", f.token, f.json(d)) // the secret does not exist yet
	f.want(202, "POST", "/system/secrets", f.token, f.json(types.Secret{Name: "key", Value: "first"}))
	f.want(409, "POST", "/system/secrets", f.token, f.json(types.Secret{Name: "key", Value: "again"}))
	f.want(202, "PUT", "/system/secrets", f.token, f.json(types.Secret{Name: "key", RawValue: []byte("v\x00lue")}))
	f.want(404, "PUT", "/system/secrets", f.token, f.json(types.Secret{Name: "other", Value: "x"}))
	f.want(202, "POST", "/system/functions", f.token, f.json(d))
	f.want(202, "PUT", "/system/functions", f.token, f.json(d))

	var s types.FunctionStatus
	for path, all := range map[string]bool{"/system/functions": true, "/system/functions?namespace=openfaas-fn": true, "/system/functions?namespace=default": true, "/system/function/echo?usage=1": false} {
		text := f.want(200, "GET", path, f.token, "")
		if all {
			list := decodeAs[[]types.FunctionStatus](t, text)
			if len(list) != 1 {
				t.Fatalf("%s: %s", path, text)
			}
			s = list[0]
		} else {
			s = decodeAs[types.FunctionStatus](t, text)
		}
		if s.Name != "echo" || s.Image != d.Image || s.Namespace != "openfaas-fn" || s.EnvProcess != "cat" || s.EnvVars["greeting"] != "1.10" || (*s.Labels)["team"] != "a" ||
			(*s.Labels)["faas_function"] != "echo" || (*s.Annotations)["note"] != annotations["note"] || s.Limits == nil || *s.Limits != *d.Limits || *s.Requests != *d.Requests ||
			!slices.Equal(s.Secrets, d.Secrets) || !s.ReadOnlyRootFilesystem || s.CreatedAt.IsZero() {
			t.Errorf("%s: %s", path, text)
		}
	}
	f.replicas("echo", 1, 1)
	if s = decodeAs[types.FunctionStatus](t, f.want(200, "GET", "/system/function/echo?usage=1", f.token, "")); s.Usage == nil || s.Usage.TotalMemoryBytes <= 0 {
		t.Errorf("usage: %+v", s.Usage)
	}

	for path, want := range map[string]string{
		"/function/echo": "body", "/function/echo.openfaas-fn/": "body", "/function/echo.default": "body", "/function/echo/env/greeting": "1.10", "/function/echo/env/fprocess": "cat",
		"/function/echo/env/of_image": "changed", "/function/echo/file/run/secrets/key": "v\x00lue", "/function/echo/file/var/openfaas/secrets/key": "v\x00lue",
	} {
		status, got, header := f.call("POST", path, "", "body")
		if status != 200 || got != want || header.Get("X-Call-Id") == "" || header.Get("X-Start-Time") == "" {
			t.Errorf("%s: %d %q %v, want %q", path, status, got, header, want)
		}
	}
	f.want(404, "GET", "/function/nobody", "", "")

	f.want(400, "POST", "/system/scale-function/echo", f.token, f.json(types.ScaleServiceRequest{ServiceName: "echo", Replicas: 1000}))
	images := len(strings.Split(f.root("images", "-q"), "\n"))
	f.want(202, "POST", "/system/scale-function/echo", f.token, f.json(types.ScaleServiceRequest{ServiceName: "echo", Replicas: 3}))
	if got := len(strings.Split(f.root("images", "-q"), "\n")); got != images {
		t.Errorf("%d images after scaling, of %d: what had other bounds is kept", got, images)
	}
	f.replicas("echo", 3, 3)
	f.want(202, "POST", "/system/scale-function/echo", f.token, f.json(types.ScaleServiceRequest{ServiceName: "echo"}))
	f.replicas("echo", 0, 0)
	if got := f.want(200, "POST", "/function/echo", "", "from none"); got != "from none" {
		t.Errorf("from no replica: %q", got)
	}
	f.want(404, "POST", "/system/scale-function/nobody", f.token, f.json(types.ScaleServiceRequest{Replicas: 1}))

	called := make(chan *http.Request, 1)
	callback := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		called <- r
	}))
	defer callback.Close()
	status, text, header := f.call("POST", "/async-function/echo.openfaas-fn", "", "later", "X-Callback-Url", callback.URL)
	if status != 202 || header.Get("X-Call-Id") == "" {
		t.Fatalf("async: %d %s", status, text)
	}
	select {
	case r := <-called:
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Call-Id") != header.Get("X-Call-Id") || r.Header.Get("X-Function-Status") != "200" || string(body) != "later" {
			t.Errorf("callback: %v %q", r.Header, body)
		}
	case <-t.Context().Done():
		t.Fatal("no callback came")
	}
	f.checkLogs()

	f.want(409, "DELETE", "/system/secrets", f.token, f.json(types.Secret{Name: "key"}))
	f.want(202, "DELETE", "/system/functions", f.token, f.json(types.DeleteFunctionRequest{FunctionName: "echo"}))
	f.want(404, "DELETE", "/system/functions", f.token, f.json(types.DeleteFunctionRequest{FunctionName: "echo"}))
	f.want(202, "DELETE", "/system/secrets", f.token, f.json(types.Secret{Name: "key"}))
	f.want(404, "DELETE", "/system/secrets", f.token, f.json(types.Secret{Name: "key"}))
	if got := f.want(200, "GET", "/system/secrets", f.token, ""); got != "[]" {
		t.Errorf("secrets: %s", got)
	}
	f.want(501, "POST", "/system/alert", f.token, "{}")
}

// checkLogs reads the function's log, then follows the log.
func (f *faas) checkLogs() {
	t := f.t
	t.Helper()
	text := f.want(200, "GET", "/system/logs?name=echo&follow=0&since=2020-01-02T15:04:05Z", f.token, "")
	if first := decodeAs[logs.Message](t, strings.SplitN(text, "\n", 2)[0]); first.Name != "echo" || first.Namespace != "openfaas-fn" || first.Instance == "" || first.Text != "watchdog in [it's] /home/app" {
		t.Errorf("logs: %s", text)
	}
	if last := f.want(200, "GET", "/system/logs?name=echo&tail=1", f.token, ""); strings.Count(last, "\n") != 1 || !strings.HasSuffix(text, last) {
		t.Errorf("its last line: %s of %s", last, text)
	}
	for _, q := range []string{"tail=x", "since=now", "follow=maybe"} {
		f.want(400, "GET", "/system/logs?name=echo&"+q, f.token, "")
	}
	f.want(404, "GET", "/system/logs?name=nobody", f.token, "")
	r, err := http.NewRequestWithContext(t.Context(), "GET", f.URL("/system/logs?name=echo&follow=1&tail=1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("admin", f.token)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f.want(200, "POST", "/function/echo", "", "seventeen letters")
	for d := json.NewDecoder(resp.Body); ; {
		var m logs.Message
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		if m.Text == "answered 17 bytes" {
			return
		}
	}
}

// Namespaces of OpenFaaS keep tenants apart, and a token's scopes hold.
func TestOpenFaaSTenants(t *testing.T) {
	f := startFaaS(t)
	f.importImage("functions/echo:1")
	f.want(201, "POST", "/system/namespace/", f.token, `{"name":"acme","annotations":{"openfaas":"1"}}`)
	f.want(409, "POST", "/system/namespace/", f.token, `{"name":"acme"}`)
	f.want(400, "POST", "/system/namespace/", f.token, `{"name":"other","labels":{"a":"b"}}`)
	acme := f.root("token", "create", "acme", "--tenant", "acme", "--scopes", "deploy,invoke")
	reader := f.root("token", "create", "reader", "--tenant", "acme", "--scopes", "read")
	for token, want := range map[string]string{f.token: `["acme","openfaas-fn"]`, acme: `["acme"]`} {
		if got := f.want(200, "GET", "/system/namespaces", token, ""); got != want {
			t.Errorf("namespaces: %s, want %s", got, want)
		}
	}
	deployment := f.json(types.FunctionDeployment{Service: "echo", Image: "functions/echo:1"})
	f.want(401, "GET", "/system/functions", "", "")
	status, _, header := f.call("GET", "/system/functions", "wrong", "")
	if status != 401 || !strings.HasPrefix(header.Get("WWW-Authenticate"), "Basic") {
		t.Errorf("wrong password: %d %v", status, header)
	}
	f.want(403, "POST", "/system/functions", reader, deployment)
	f.want(403, "POST", "/system/namespace/", acme, `{"name":"mine"}`)
	f.want(202, "POST", "/system/functions", acme, deployment)
	f.want(202, "POST", "/system/functions", f.token, deployment)
	f.want(200, "GET", "/system/function/echo", reader, "")
	f.want(404, "GET", "/system/function/echo?namespace=default", acme, "")
	f.want(404, "GET", "/system/secrets?namespace=default", acme, "")
	f.want(404, "POST", "/system/functions", acme, f.json(types.FunctionDeployment{Service: "echo", Image: "functions/echo:1", Namespace: "openfaas-fn"}))
	f.want(404, "DELETE", "/system/functions", acme, f.json(types.DeleteFunctionRequest{FunctionName: "echo", Namespace: "default"}))
	if got := f.want(200, "POST", "/function/echo.acme", "", "acme's"); got != "acme's" {
		t.Errorf("acme's: %q", got)
	}
	if got := f.root("function", "ls", "--format", "{{.Name}}"); got != "echo\necho.acme" {
		t.Errorf("functions: %q", got)
	}
	f.want(409, "DELETE", "/system/namespace/acme", f.token, "")
	f.want(202, "DELETE", "/system/functions", acme, f.json(types.DeleteFunctionRequest{FunctionName: "echo"}))
	f.want(202, "DELETE", "/system/namespace/acme", f.token, "")

	for name, d := range map[string]types.FunctionDeployment{
		"constraints": {Constraints: []string{"node == a"}}, "gpu": {Limits: &types.FunctionResources{NvidiaGPU: "1"}}, "memory": {Limits: &types.FunctionResources{Memory: "lots"}},
		"variable": {EnvVars: map[string]string{"FRE_CHANNEL": "4"}}, "name": {Service: "No Name"}, "label": {Labels: &map[string]string{"com.openfaas.scale.min": "some"}},
	} {
		if d.Image = "functions/echo:1"; d.Service == "" {
			d.Service = "bad"
		}
		if status, text, _ := f.call("POST", "/system/functions", f.token, f.json(d)); status != 400 {
			t.Errorf("%s: %d %s, want 400", name, status, text)
		}
	}
	f.want(400, "POST", "/system/functions", f.token, `{"service":"bad","image":"functions/echo:1","unheard":1}`)
	f.want(413, "POST", "/system/functions", f.token, `{"service":"`+strings.Repeat("x", 2<<20)+`"}`)
}

// build sends a signed build context.
func (f *faas) build(secret string, files map[string]string, header ...string) (int, string) {
	f.t.Helper()
	body := tarOf(f.t, files)
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write(body)
	status, text, _ := f.call("POST", "/build", "", string(body), append([]string{"X-Build-Signature", "sha256=" + hex.EncodeToString(mac.Sum(nil))}, header...)...)
	return status, text
}

// The remote builder API of OpenFaaS makes functions from build contexts.
func TestOpenFaaSBuild(t *testing.T) {
	f := startFaaS(t)
	config := func(image string) string { return f.json(map[string]any{"image": image, "platforms": []string{""}}) }
	const name = "com.openfaas.docker.config"
	shell := "id: shout\nbase: native\nhandler: run.sh\n"
	own := map[string]string{name: config("registry.example/shout:1"), "context/fret.yaml": shell, "context/run.sh": "#!/bin/sh\nread line; echo \"$line!\"\n"}
	status, text := f.build(faasSecret, own, "Accept", "application/x-ndjson")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	type result struct{ Image, Status, Error string }
	if last := decodeAs[result](t, lines[len(lines)-1]); status != 200 || len(lines) < 2 || last.Status != "success" || last.Image != "registry.example/shout:1" {
		t.Fatalf("build: %d %s", status, text)
	}
	f.want(202, "POST", "/system/functions", f.token, f.json(types.FunctionDeployment{Service: "shout", Image: "registry.example/shout:1"}))
	if got := f.want(200, "POST", "/function/shout", "", "hey\n"); got != "hey!\n" {
		t.Errorf("what was built: %q", got)
	}
	f.replicas("shout", 1, 1) // the function has a sandbox for each event
	f.want(400, "POST", "/system/scale-function/shout", f.token, f.json(types.ScaleServiceRequest{Replicas: 2}))

	// In OpenFaaS's python template FRE replaces the watchdog in front of index.py.
	python := map[string]string{
		name: config("py:1"), "context/template.yml": "language: python3-http\nfprocess: python index.py\n", "context/function/handler.py": "def handle(body):\n    return body.upper()\n",
		"context/index.py": `
from http.server import BaseHTTPRequestHandler, HTTPServer
from function import handler
class Serve(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = handler.handle(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
HTTPServer(("0.0.0.0", 5000), Serve).serve_forever()
`,
	}
	if status, text := f.build(faasSecret, python); status != 200 || decodeAs[result](t, text).Status != "success" {
		t.Fatalf("python3-http: %d %s", status, text)
	}
	f.want(202, "POST", "/system/functions", f.token, f.json(types.FunctionDeployment{Service: "py", Image: "py:1", EnvProcess: "python index.py"}))
	if got := f.want(200, "POST", "/function/py", "", "loud"); got != "LOUD" {
		t.Errorf("python3-http: %q", got)
	}

	with := func(changes map[string]string) map[string]string {
		out := maps.Clone(own)
		maps.Copy(out, changes)
		return out
	}
	for what, files := range map[string]map[string]string{
		"is taken":         with(nil), // by acme's secret
		"no com.openfaas":  {"context/fret.yaml": shell},
		"build argument":   with(map[string]string{name: `{"image":"x","buildArgs":{"A":"b"}}`}),
		"platforms":        with(map[string]string{name: `{"image":"x","platforms":["linux/riscv64"]}`}),
		"build secrets":    with(map[string]string{"com.openfaas.secrets": "sealed"}),
		"image:":           with(map[string]string{name: `{"image":"UPPER case"}`}),
		"bad archive":      {"../out": "x"},
		"runs no Docker":   {name: config("x"), "context/Dockerfile": "FROM scratch", "context/template.yml": "language: cobol\n"},
		"no directory con": {name: config("x")},
		"not known":        with(map[string]string{name: config("x"), "context/fret.yaml": "id: x\nbase: native\nhandler: x\ncontract: smoke\n"}),
		"of tenant other":  with(map[string]string{name: config("x"), "context/fret.yaml": shell + "tenant: other\n"}),
	} {
		secret := faasSecret
		if what == "is taken" {
			secret += " of acme"
		}
		status, text := f.build(secret, files)
		if !strings.Contains(text, what) || status == 200 && decodeAs[result](t, text).Status != "failed" {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	if status, text := f.build("somebody else's", own); status != 401 {
		t.Errorf("wrong signature: %d %s", status, text)
	}
	f.want(401, "POST", "/build", f.token, "no signature")
	if status, text := f.build(faasSecret, map[string]string{"context/large": strings.Repeat("0", 2<<20)}); status != 413 {
		t.Errorf("large context: %d %s", status, text)
	}
}

// A tenant that builds under a free image name decides about that name only for itself. For
// everybody else the name means the image in the registry.
func TestOpenFaaSNames(t *testing.T) {
	f := startFaaS(t)
	host := fretest.Registry(t)
	theirs, nowhere := host+"/them/echo:1", host+"/them/nowhere:1"
	f.importImage(theirs)
	f.root("push", theirs)
	f.root("image", "rm", theirs)
	for _, name := range []string{theirs, nowhere} {
		status, text := f.build(faasSecret+" of acme", map[string]string{
			"com.openfaas.docker.config": f.json(map[string]any{"image": name}),
			"context/fret.yaml":          "id: shout\nbase: native\nhandler: run.sh\ntenant: acme\n", "context/run.sh": "#!/bin/sh\nread line; echo \"$line!\"\n",
		})
		if status != 200 || !strings.Contains(text, `"success"`) {
			t.Fatalf("build: %d %s", status, text)
		}
	}
	f.want(202, "POST", "/system/functions", f.token, f.json(types.FunctionDeployment{Service: "echo", Image: theirs}))
	if got := f.want(200, "POST", "/function/echo", "", "hey\n"); got != "hey\n" {
		t.Errorf("by a name that a tenant has built under, all others run %q", got)
	}
	acme := f.root("token", "create", "acme", "--tenant", "acme", "--scopes", "deploy")
	f.want(202, "POST", "/system/functions", acme, f.json(types.FunctionDeployment{Service: "echo", Image: theirs}))
	if got := f.want(200, "POST", "/function/echo.acme", "", "hey\n"); got != "hey!\n" {
		t.Errorf("the name is the tenant's no more: %q", got)
	}
	other := f.root("token", "create", "other", "--tenant", "other", "--scopes", "deploy")
	for token, known := range map[string]bool{f.token: true, other: false} {
		text := f.want(404, "POST", "/system/functions", token, f.json(types.FunctionDeployment{Service: "none", Image: nowhere}))
		if strings.Contains(text, "acme") != known {
			t.Errorf("of a name that its registry has not: %s", text)
		}
	}

	// A refused deployment removes the image that was pulled for it.
	bare := host + "/them/bare:1"
	f.root("image", "import", filepath.Join(f.dir, "root.tar"), bare)
	f.root("push", bare)
	f.root("image", "rm", bare)
	images := f.root("images", "-q")
	f.want(400, "POST", "/system/functions", other, f.json(types.FunctionDeployment{Service: "bare", Image: bare}))
	if got := f.root("images", "-q"); got != images {
		t.Errorf("images after a deployment that was refused: %s, before %s", got, images)
	}
}

// A name that another tenant takes during a build stays with that tenant, and the build fails with
// the next step. The order of the two ways (fre, remote builder) does not matter.
func TestTakenMeanwhile(t *testing.T) {
	api, err := testdaemon.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	f := startFaaS(t, "--api-listen", api)
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: fretest.Registry(t)})
	entered, gates := make(chan string), map[string]chan struct{}{"by-cli": make(chan struct{}), "by-builder": make(chan struct{})}
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, gate := range gates {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+name+"/manifests/held") {
				select {
				case entered <- name:
					<-gate
				case <-gate:
				}
			}
		}
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(registry.Close)
	host := strings.TrimPrefix(registry.URL, "http://")
	f.importImage("root:1")
	for name := range gates {
		f.root("push", "root:1", host+"/"+name+":held")
	}
	template := func(tenant, id, base string) map[string]string {
		interpreter := "/bin/sh"
		if base != "native" {
			interpreter = "/home/app/fwatchdog"
		}
		return map[string]string{
			"fret.yaml": fmt.Sprintf("id: %s\nversion: '1'\ntenant: %s\nbase: %s\nruntime: native\nhandler: run.sh\n", id, tenant, base), "run.sh": "#!" + interpreter + "\n",
		}
	}
	byCLI := func(tenant, id, base string) string {
		dir := t.TempDir()
		for name, text := range template(tenant, id, base) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
				t.Error(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), daemontest.Bin(t), "build", dir)
		cmd.Env = append(os.Environ(), "FRE_HOST=http://"+api, "FRE_TOKEN="+f.root("token", "create", id, "--tenant", tenant, "--scopes", "deploy"))
		out, err := cmd.CombinedOutput()
		return fmt.Sprintf("%s%v", out, err)
	}
	byBuilder := func(id, base string) string {
		files := map[string]string{"com.openfaas.docker.config": f.json(map[string]any{"image": id + ":1"})}
		for name, text := range template("acme", "openfaas-"+id, base) {
			files["context/"+name] = text
		}
		_, text := f.build(faasSecret+" of acme", files)
		return text
	}
	for name, c := range map[string]struct {
		slow, fast func() string
		done       string
		tenant     string // the tenant of fast
	}{
		"by-cli":     {func() string { return byCLI("other", "by-cli", "oci:"+host+"/by-cli:held") }, func() string { return byBuilder("by-cli", "native") }, `"success"`, "acme"},
		"by-builder": {func() string { return byBuilder("by-builder", "oci:"+host+"/by-builder:held") }, func() string { return byCLI("other", "by-builder", "native") }, "<nil>", "other"},
	} {
		slow := make(chan string, 1)
		go func() { slow <- c.slow() }()
		select {
		case <-entered:
		case said := <-slow:
			t.Fatalf("%s: it has not waited for its base: %s", name, said)
		}
		if said := c.fast(); !strings.Contains(said, c.done) {
			t.Errorf("%s: while the name is free: %s", name, said)
		}
		close(gates[name])
		if said := <-slow; !strings.Contains(said, "the image's name "+name+":1 is taken") || !strings.Contains(said, "change the template's id") {
			t.Errorf("%s: once it is taken: %s", name, said)
		}
		token := f.root("token", "create", name, "--tenant", c.tenant, "--scopes", "read")
		cmd := exec.CommandContext(t.Context(), daemontest.Bin(t), "image", "inspect", name+":1")
		cmd.Env = append(os.Environ(), "FRE_HOST=http://"+api, "FRE_TOKEN="+token)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: it is not tenant %s's any more: %v\n%s", name, c.tenant, err, out)
		}
	}
}
