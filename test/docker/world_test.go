package docker_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// within bounds each command and each watching client; no measurement depends on it.
const within = 10 * time.Minute

// clients returns the docker clients of the host: the client in PATH and the distribution's.
func clients(t *testing.T) []string {
	t.Helper()
	first, err := exec.LookPath("docker")
	if err != nil {
		t.Fatalf("%v: scripts/deps.sh test installs it", err)
	}
	all := []string{first}
	if _, err := os.Stat("/usr/bin/docker"); err == nil && first != "/usr/bin/docker" {
		all = append(all, "/usr/bin/docker")
	}
	return all
}

// world is an engine and a client.
type world struct {
	*testdaemon.Daemon
	client, config string
	version        string // API version for the client; "" means the client's choice
}

// each runs a test with every client and a new engine with the given functions.
func each(t *testing.T, functions []string, test func(*world, *testing.T)) {
	t.Helper()
	for _, client := range clients(t) {
		t.Run(strings.ReplaceAll(strings.Trim(client, "/"), "/", "-"), func(t *testing.T) {
			var all []testdaemon.Function
			for _, name := range functions {
				all = append(all, testdaemon.Function{Name: name})
			}
			test(&world{Daemon: daemontest.Serve(t, all...), client: client, config: t.TempDir()}, t)
		})
	}
}

// result is the outcome of a command.
type result struct {
	stdout, stderr string
	code           int
}

func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.client, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DOCKER_") }),
		"DOCKER_HOST=unix://"+w.DockerSocket(), "DOCKER_CONFIG="+w.config, "DOCKER_API_VERSION="+w.version, "LC_ALL=C")
	return cmd
}

// docker runs the client.
func (w *world) docker(t *testing.T, args ...string) result {
	t.Helper()
	return w.dockerWith(t, "", args...)
}

// dockerWith runs the client with standard input.
func (w *world) dockerWith(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := w.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("docker %q: %v", args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ok runs the client, requires success, and returns the output without the last newline.
func (w *world) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := w.docker(t, args...)
	if r.code != 0 {
		t.Fatalf("docker %q: exit status %d: %s", args, r.code, r.stderr)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

// line is a command with its required outcome. The patterns are regular expressions; an empty
// pattern requires empty output.
type line struct {
	args           []string
	code           int
	stdout, stderr string
}

func (w *world) run(t *testing.T, lines []line) {
	t.Helper()
	for _, l := range lines {
		r := w.docker(t, l.args...)
		if r.code != l.code {
			t.Errorf("docker %q: exit status %d, want %d\n%s%s", l.args, r.code, l.code, r.stdout, r.stderr)
		}
		for _, out := range []struct{ name, got, want string }{{"stdout", r.stdout, l.stdout}, {"stderr", r.stderr, l.stderr}} {
			if out.want == "" && out.got != "" || !regexp.MustCompile(out.want).MatchString(out.got) {
				t.Errorf("docker %q: %s is %q, want %q", l.args, out.name, out.got, out.want)
			}
		}
	}
}

func words(s string) []string { return strings.Fields(s) }

// invoke calls a function.
func (w *world) invoke(t *testing.T, function, path, body string) {
	t.Helper()
	resp, err := http.Post(w.URL("/function/"+function+path), "text/plain", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s%s: %s", function, path, resp.Status)
	}
}

// http returns an HTTP client for the Docker socket.
func (w *world) http() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Clean(w.DockerSocket()))
	}}}
}
