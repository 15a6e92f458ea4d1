package docker_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/registry"
)

// askedRegistry is a registry for the given logins ("name:password") only. It notes the names of
// its clients.
type askedRegistry struct {
	host string
	mu   sync.Mutex
	came map[string]bool
}

func askRegistry(t *testing.T, logins ...string) *askedRegistry {
	t.Helper()
	behind, err := registry.Open(registry.Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	a := &askedRegistry{came: map[string]bool{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		a.mu.Lock()
		a.came[name] = true
		a.mu.Unlock()
		if slices.Contains(logins, name+":"+password) {
			behind.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(func() {
		server.Close()
		if err := behind.Close(); err != nil {
			t.Error(err)
		}
	})
	a.host = strings.TrimPrefix(server.URL, "http://")
	return a
}

// onlyAs fails unless every login since the last call had the given name.
func (a *askedRegistry) onlyAs(t *testing.T, name string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.came, "")
	if len(a.came) > 1 || len(a.came) == 1 && !a.came[name] || name != "" && len(a.came) == 0 {
		t.Errorf("%v came to the registry, want %q alone", a.came, name)
	}
	a.came = map[string]bool{}
}

// dockerConfig makes a docker configuration that belongs to a user.
func dockerConfig(t *testing.T, dir string, uid int, config string) string {
	t.Helper()
	for _, err := range []error{
		os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600),
		os.Chown(dir, uid, uid), os.Chown(filepath.Join(dir, "config.json"), uid, uid),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// At a registry fre logs in as its caller, with the caller's docker configuration and helpers, and
// never as the engine's user. No password appears in a log.
func TestLogins(t *testing.T) {
	fretest.RequireRoot(t)
	const nobody = 65534
	group, err := user.LookupGroupId(fmt.Sprint(nobody))
	if err != nil {
		t.Fatal(err)
	}
	dir := daemontest.Dir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(daemontest.Bin(t)) // the checkout may be below root's home
	if err != nil {
		t.Fatal(err)
	}
	bin, program, state := filepath.Join(dir, "fre"), filepath.Join(dir, "program"), filepath.Join(dir, "state")
	helper := `#!/bin/sh
[ "$1" = get ] && cat > /dev/null && id -u > "$DOCKER_CONFIG/asked" && echo '{"Username":"bob","Secret":"bob-secret"}'
`
	for name, b := range map[string][]byte{bin: content, program: []byte("nothing runs it"), filepath.Join(dir, "docker-credential-test"): []byte(helper)} {
		if err := os.WriteFile(name, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := testdaemon.PutImages(t.Context(), state, testdaemon.Function{Name: "app", Program: program}); err != nil {
		t.Fatal(err)
	}
	r := askRegistry(t, "engine:engine-secret", "ann:ann-secret", "bob:bob-secret")
	auths := func(login string) string {
		return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.host, base64.StdEncoding.EncodeToString([]byte(login)))
	}
	t.Setenv("DOCKER_CONFIG", dockerConfig(t, filepath.Join(dir, "engine"), 0, auths("engine:engine-secret")))
	none := dockerConfig(t, filepath.Join(dir, "none"), nobody, "{}")
	ann := dockerConfig(t, filepath.Join(dir, "ann"), nobody, auths("ann:ann-secret"))
	bob := dockerConfig(t, filepath.Join(dir, "bob"), nobody, fmt.Sprintf(`{"credHelpers":{%q:"test"}}`, r.host))
	broken := dockerConfig(t, filepath.Join(dir, "broken"), nobody, fmt.Sprintf(`{"credHelpers":{%q:"missing"}}`, r.host))

	var log bytes.Buffer
	d := daemontest.Start(t, testdaemon.Config{State: state, Args: []string{"--group", group.Name, "--log-level", "debug"}, Log: &log})
	try := func(config, says string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		cmd := exec.CommandContext(ctx, bin, append([]string{"--socket", d.Socket()}, args...)...)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + config, "DOCKER_CONFIG=" + config}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if (says == "") != (err == nil) || !strings.Contains(string(out), says) {
			t.Errorf("fre %q: %v, want %q\n%s", args, err, says, out)
		}
		if strings.Contains(string(out), "-secret") {
			t.Errorf("fre %q tells a password:\n%s", args, out)
		}
	}
	ref := r.host + "/app:1"
	try(none, "docker login", "push", "app:1", ref)
	r.onlyAs(t, "")
	try(broken, "docker-credential-missing", "push", "app:1", ref)
	r.onlyAs(t, "")
	try(ann, "", "push", "app:1", ref)
	r.onlyAs(t, "ann")
	try(none, "docker login", "pull", ref)
	r.onlyAs(t, "")
	try(bob, "", "pull", ref)
	r.onlyAs(t, "bob")
	if asked, err := os.ReadFile(filepath.Join(bob, "asked")); err != nil || strings.TrimSpace(string(asked)) != fmt.Sprint(nobody) {
		t.Errorf("the helper ran as %q (%v), want %d", asked, err, nobody)
	}
	// The base image of a template is pulled with the caller's login as well. A caller without a
	// login does not get the image by ann's login: the engine uses its own.
	try(ann, "", "push", "--as-image", "app:1", r.host+"/base:1")
	r.onlyAs(t, "ann")
	template := filepath.Join(dir, "template")
	for _, err := range []error{
		os.Mkdir(template, 0o755), os.Chown(template, nobody, nobody), os.WriteFile(filepath.Join(template, "run"), []byte("#!/function/program\n"), 0o755), // the base has the program
		os.WriteFile(filepath.Join(template, "fret.yaml"), fmt.Appendf(nil, "id: based\nbase: oci:%s/base:1\nruntime: native\nhandler: run\n", r.host), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	try(broken, "docker-credential-missing", "build", template)
	r.onlyAs(t, "")
	try(ann, "", "build", template)
	r.onlyAs(t, "ann")
	try(bob, "", "deploy", template)
	r.onlyAs(t, "bob")
	try(none, "", "build", template)
	r.onlyAs(t, "engine")
	daemontest.Stop(t, d)
	if strings.Contains(log.String(), "-secret") || log.Len() == 0 {
		t.Errorf("the engine's log, of %d bytes, tells a password", log.Len())
	}
}
