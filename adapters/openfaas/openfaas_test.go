package openfaas

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/template"
)

// A deployment gives the same configuration as the equivalent template.
func TestDeployment(t *testing.T) {
	for name, tt := range map[string]struct {
		d         types.FunctionDeployment
		instances template.Instances
		timeout   time.Duration
		network   template.NetworkMode
		memory    int64
	}{
		"as it is": {instances: template.Instances{Min: 1, Max: 64, Concurrency: 8}},
		"labels": {
			d:         types.FunctionDeployment{Labels: &map[string]string{labelMin: "2", labelMax: "5", labelIdle: "10m"}},
			instances: template.Instances{Min: 2, Max: 5, Concurrency: 8, Idle: 10 * time.Minute},
		},
		"to zero": {d: types.FunctionDeployment{Labels: &map[string]string{labelZero: "true"}}, instances: template.Instances{Max: 64, Concurrency: 8}},
		"watchdog": {
			d:         types.FunctionDeployment{EnvVars: map[string]string{"exec_timeout": "2m", "max_inflight": "3"}},
			instances: template.Instances{Min: 1, Max: 64, Concurrency: 3}, timeout: 2 * time.Minute,
		},
		"seconds": {d: types.FunctionDeployment{EnvVars: map[string]string{"exec_timeout": "5", "max_inflight": "0"}}, instances: template.Instances{Min: 1, Max: 64, Concurrency: 8}},
		"limits and network": {
			d:         types.FunctionDeployment{Limits: &types.FunctionResources{Memory: "40Mi", CPU: "0.5"}, Annotations: &map[string]string{annotationNetwork: "egress"}},
			instances: template.Instances{Min: 1, Max: 64, Concurrency: 8}, network: template.NetworkEgress, memory: 40 << 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.d.Service, tt.d.Image = "f", "i"
			d, err := newDeployment(runtimes.Dialect().Parse, tt.d, "acme")
			if err != nil {
				t.Fatal(err)
			}
			c := image.Config{Env: []string{"A=b"}}
			if err := d.configure(&c, false); err != nil {
				t.Fatal(err)
			}
			got := template.Instances{Min: c.Instances.Min, Max: c.Instances.Max, Concurrency: c.Instances.Concurrency}
			if tt.instances.Idle != 0 {
				got.Idle = c.Instances.Idle
			}
			if diff := cmp.Diff(tt.instances, got); diff != "" {
				t.Error(diff)
			}
			if want := max(tt.timeout, defaultTimeout); c.Resources.Timeout != want {
				t.Errorf("timeout %s, want %s", c.Resources.Timeout, want)
			}
			if tt.network == "" {
				tt.network = template.NetworkNone
			}
			if c.Network.Mode != tt.network || c.Tenant != "acme" || tt.memory != 0 && (c.Resources.MemoryBytes != tt.memory || c.Resources.CPUMillis != 500) {
				t.Errorf("%+v", c)
			}
			back, err := deploymentOf(&c, "f", "")
			if diff := cmp.Diff(d.FunctionDeployment, back); diff != "" || err != nil {
				t.Errorf("told back: %v %s", err, diff)
			}
		})
	}
}

// An image with a function keeps the template's settings that the deployment does not set.
func TestDeploymentOfFunction(t *testing.T) {
	own := image.Config{
		Env: []string{"A=b", "B=c"}, Resources: template.Resources{MemoryBytes: 1 << 28, CPUMillis: 2000, Timeout: time.Second},
		Instances: template.Instances{Isolation: template.IsolationInstance, Max: 3, Idle: time.Second, Concurrency: 1}, Network: template.Network{Mode: template.NetworkEgress},
	}
	d, err := newDeployment(runtimes.Dialect().Parse, types.FunctionDeployment{Service: "f", Image: "i", EnvVars: map[string]string{"B": "d"}, Limits: &types.FunctionResources{CPU: "1"}}, "default")
	if err != nil {
		t.Fatal(err)
	}
	c := own
	if err := d.configure(&c, true); err != nil {
		t.Fatal(err)
	}
	want := own
	want.Tenant, want.Env, want.Labels, want.Resources.CPUMillis, want.Instances.Min = "default", []string{"A=b", "B=d"}, c.Labels, 1000, 1
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	own.Instances.Isolation = template.IsolationEvent
	c = own
	if err := d.configure(&c, true); err != nil || c.Instances != own.Instances {
		t.Errorf("a sandbox for each event: %v %+v", err, c.Instances)
	}
}

func statusOfError(err error) int { return server.ErrorOf(err).Status }

// Any deployment is refused, or gives a configuration within the bounds of templates, and can be
// read back.
func FuzzDeployment(f *testing.F) {
	for _, seed := range []string{
		`{"service":"echo","image":"a/b:1","envProcess":"cat","envVars":{"A":"b"},"labels":{"com.openfaas.scale.min":"2"},"limits":{"memory":"5Mi","cpu":"100m"},"secrets":["a"]}`,
		`{"service":"echo","image":"a","labels":null,"annotations":{"fre.network":"egress"},"requests":{"memory":"1"}}`, `{"service":"x","image":"y"} {}`, `{"service":1}`, `[`, "",
		`{"service":"a","image":"b","envVars":{"exec_timeout":"9999999999h","max_inflight":"-1"}}`, `{"service":"a","image":"b","envVars":{"A":"<&\u2028\u0000"}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var req types.FunctionDeployment
		r := &request{Request: httptest.NewRequest(http.MethodPost, "/system/functions", strings.NewReader(text))}
		if err := decode(httptest.NewRecorder(), r, &req); err != nil {
			if s := statusOfError(err); s != http.StatusBadRequest {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		d, err := newDeployment(runtimes.Dialect().Parse, req, "acme")
		if err != nil {
			if s := statusOfError(err); s != http.StatusBadRequest {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		var c image.Config
		if err := d.configure(&c, false); err != nil {
			t.Fatal(err)
		}
		for name, value := range req.EnvVars {
			if req.EnvProcess == "" && !strings.Contains("\n"+strings.Join(c.Env, "\n")+"\n", "\n"+name+"="+strings.TrimSuffix(value, "\n")) && !strings.ContainsRune(value, '\uFFFD') {
				t.Errorf("variable %q=%q is not among %q", name, value, c.Env)
			}
		}
		if c.Instances.Min > c.Instances.Max || c.Resources.Timeout < defaultTimeout || c.Tenant != "acme" {
			t.Errorf("%q: %+v", text, c)
		}
		if _, err := deploymentOf(&c, "", ""); err != nil {
			t.Errorf("told back: %v", err)
		}
	})
}

// Any build context is refused, or names the image to build.
func FuzzBuildContext(f *testing.F) {
	archive := func(files ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := 0; i < len(files); i += 2 {
			if err := errors.Join(w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}), func() error { _, err := w.Write([]byte(files[i+1])); return err }()); err != nil {
				f.Fatal(err)
			}
		}
		return b.Bytes()
	}
	f.Add(archive(configFile, `{"image":"a/b:1","platforms":["linux/amd64"]}`, "context/fret.yaml", "id: a\nbase: native\n"))
	f.Add(archive(configFile, `{"image":"a"}`, "context/template.yml", "language: python3-http\n", "context/index.py", "", "context/requirements.txt", "flask\n"))
	f.Add(archive("../x", ""))
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := t.TempDir()
		dir, err := os.OpenRoot(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if err := dir.WriteFile(archiveFile, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		h := &handler{Config: Config{MaxContextBytes: 1 << 20}}
		cfg, err := h.unpack(t.Context(), dir)
		if err != nil {
			if s := statusOfError(err); s != http.StatusBadRequest && s != http.StatusRequestEntityTooLarge {
				t.Errorf("%v", err)
			}
			return
		}
		if cfg.Image == "" {
			t.Error("an image without a name")
		}
		top, err := dir.OpenRoot("in/" + contextDir)
		if err != nil {
			return
		}
		defer top.Close()
		if own, err := ownTemplate(top); err == nil && own != nil {
			_ = own.Close()
			return
		}
		spec, err := languageTemplate(top)
		if err != nil {
			return
		}
		spec["id"] = "x"
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := runtimes.Dialect().Parse("fret.yaml", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	})
}

// FuzzSignature: a signature has 32 bytes or is refused.
func FuzzSignature(f *testing.F) {
	f.Add("sha256=" + strings.Repeat("ab", 32))
	f.Add("sha1=00")
	f.Add("")
	f.Fuzz(func(t *testing.T, field string) {
		mac, err := signatureOf(field)
		if (err == nil) != (len(mac) == 32) || err != nil && statusOfError(err) != http.StatusUnauthorized {
			t.Errorf("%q: %x %v", field, mac, err)
		}
	})
}

// openAccess opens new records, and returns the path of their audit log.
func openAccess(t *testing.T) (a *access.Access, audit string) {
	t.Helper()
	dir := t.TempDir()
	a, err := access.Open(access.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, filepath.Join(dir, "audit.ndjson")
}

// The audit log records a request beyond the token's scope as refused, whichever part of FRE
// refuses.
func TestRefusedIsAudited(t *testing.T) {
	a, audit := openAccess(t)
	h := New(Config{Access: a, Engine: &engine.Engine{Library: &build.Library{}}, Log: slog.New(slog.DiscardHandler)})
	for _, scope := range []access.Scope{access.Invoke, access.Admin} { // without the scope of all tenants
		_, token, err := a.CreateToken(access.TokenOptions{Name: "t", Tenant: "acme", Scopes: []access.Scope{scope}})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/system/namespace/", strings.NewReader(`{"name":"new"}`))
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		raw, err := os.ReadFile(audit)
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		var e access.Entry
		if err := errors.Join(err, json.Unmarshal([]byte(lines[len(lines)-1]), &e)); err != nil || w.Code != 403 || e.Result != access.Refused || e.Status != 403 || e.Tenant != "acme" {
			t.Errorf("%s: %d %s, in the audit log %+v, %v", scope, w.Code, w.Body, e, err)
		}
	}
}

// A client without the builder's secret is slowed down after some failures, before its body is
// read. The failures do not fill the audit log.
func TestBuildGuessed(t *testing.T) {
	a, audit := openAccess(t)
	var scratch []string
	h := New(Config{Access: a, Log: slog.New(slog.DiscardHandler), Scratch: func() (string, error) {
		scratch = append(scratch, t.TempDir())
		return scratch[len(scratch)-1], nil
	}, Builders: []Builder{{"acme", []byte("a secret of acme's builder")}}})
	post := func(method, signature string) (status, unread int, header http.Header) {
		body := strings.NewReader("a context")
		r := httptest.NewRequest(method, "/build", body)
		r.Header.Set("X-Build-Signature", signature)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, body.Len(), w.Header()
	}
	wrong := "sha256=" + strings.Repeat("0", 64)
	for range 50 {
		for method, want := range map[string]int{http.MethodGet: 405, http.MethodPost: 401} {
			if status, unread, _ := post(method, ""); status != want || unread == 0 {
				t.Fatalf("%s without a signature: %d, %d bytes unread, want %d and all", method, status, unread, want)
			}
		}
	}
	failures := 0
	for ; failures < 50; failures++ {
		status, unread, header := post(http.MethodPost, wrong)
		if status == 429 && unread > 0 && header.Get("Retry-After") != "" {
			break
		}
		if status != 401 && status != 429 || unread > 0 {
			t.Fatalf("failure %d: %d, %d bytes unread, want 401", failures, status, unread)
		}
	}
	raw, err := os.ReadFile(audit)
	lines := strings.Count(string(raw), "\n")
	if err != nil || failures == 50 || lines == 0 || lines > failures || strings.Count(string(raw), `"result":"refused"`) != lines {
		t.Errorf("after %d failures the audit log has %d lines, %v:\n%s", failures, lines, err, raw)
	}
	for _, dir := range scratch {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a context is left: %v", err)
		}
	}
}

// A command line is split into the same words again.
func TestCommandLine(t *testing.T) {
	if got, want := commandLine([]string{"./a b", "it's", "", `\"$PORT`}), `'./a b' 'it'\''s' '' '\"$PORT'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestCodes: OpenFaaS's API answers every code with the catalogue's status, and with a line of text
// with the reason and the next step.
func TestCodes(t *testing.T) {
	h := &handler{Config: Config{Log: slog.New(slog.DiscardHandler)}}
	for _, f := range api.Failures() {
		w := httptest.NewRecorder()
		h.fail(w, httptest.NewRequest(http.MethodGet, "/system/functions", http.NoBody), failure.New(f.Code, "the reason", ""))
		want := "the reason"
		if f.Next != "" {
			want += "; " + f.Next
		}
		if got := strings.TrimSuffix(w.Body.String(), "\n"); w.Code != f.Status || got != want {
			t.Errorf("%s: %d %q, want %d %q", f.Code, w.Code, got, f.Status, want)
		}
	}
}
