package runtimes_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/store"
)

const gitToken = "a-token-nobody-may-see"

// repositories are real git repositories, served over HTTP by git's own backend (below /private/
// only with the token) and over ssh to one key.
type repositories struct {
	dir, http, ssh string
	key, known     string // files
	server         *httptest.Server
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes files to a repository and returns the commit's id.
func (r *repositories) commit(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(r.dir, name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		git(t, dir, "init", "-q", "-b", "main")
	}
	for file, content := range files {
		file = filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "m")
	return git(t, dir, "rev-parse", "HEAD")
}

func serveRepositories(t *testing.T) *repositories {
	t.Helper()
	r := &repositories{dir: t.TempDir()}
	backend := &cgi.Handler{
		Path:       "/usr/lib/git-core/git-http-backend",
		Env:        []string{"GIT_PROJECT_ROOT=" + r.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		InheritEnv: []string{"PATH"},
	}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if _, password, _ := q.BasicAuth(); strings.HasPrefix(q.URL.Path, "/private/") && password != gitToken {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, q)
	}))
	t.Cleanup(r.server.Close)
	r.http = r.server.URL
	r.serveSSH(t)
	return r
}

// serveSSH runs git's commands for clients with the key.
func (r *repositories) serveSSH(t *testing.T) {
	t.Helper()
	newKey := func() (ssh.Signer, []byte) {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(private)
		if err != nil {
			t.Fatal(err)
		}
		block, err := ssh.MarshalPrivateKey(private, "")
		if err != nil {
			t.Fatal(err)
		}
		return signer, pem.EncodeToMemory(block)
	}
	host, _ := newKey()
	client, private := newKey()
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), client.PublicKey().Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { r.sshConn(c, config) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	r.ssh = l.Addr().String()
	dir := t.TempDir()
	r.key, r.known = filepath.Join(dir, "key"), filepath.Join(dir, "known_hosts")
	line := knownhosts.Line([]string{knownhosts.Normalize(r.ssh)}, host.PublicKey())
	if err := errors.Join(os.WriteFile(r.key, private, 0o600), os.WriteFile(r.known, []byte(line+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (r *repositories) sshConn(c net.Conn, config *ssh.ServerConfig) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for n := range channels {
		ch, requests, err := n.Accept()
		if err != nil {
			return
		}
		for q := range requests {
			var command struct{ Line string }
			if q.Type != "exec" || ssh.Unmarshal(q.Payload, &command) != nil {
				_ = q.Reply(q.Type == "env", nil)
				continue
			}
			_ = q.Reply(true, nil)
			line := strings.ReplaceAll(command.Line, "'/", "'"+r.dir+"/")
			cmd := exec.Command("sh", "-c", line)
			cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
			cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
			in, err := cmd.StdinPipe()
			if err == nil {
				go func() { _, _ = io.Copy(in, ch); _ = in.Close() }()
				err = cmd.Run()
			}
			status := struct{ Code uint32 }{}
			if err != nil {
				status.Code = 1
			}
			_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(status))
			_ = ch.Close()
		}
	}
}

// TestCodeFromGit: Code comes from a git repository at the locked commit, and a credential reaches
// only its own address.
func TestCodeFromGit(t *testing.T) {
	w := newWorkshop(t)
	r := serveRepositories(t)
	w.Settings.Git = []image.GitCredential{
		{Name: "team", URL: r.http + "/private/team", TokenEnv: "FRE_TEST_GIT_TOKEN"},
		{Name: "wrong", URL: r.http + "/private/team", TokenEnv: "FRE_TEST_WRONG_TOKEN"},
		{Name: "other", URL: r.http + "/private/tea", TokenEnv: "FRE_TEST_GIT_TOKEN"},
		{Name: "deploy", URL: "ssh://" + r.ssh + "/", SSHKey: r.key, KnownHosts: r.known},
		{Name: "stranger", URL: "ssh://" + r.ssh + "/", SSHKey: r.key, KnownHosts: "/dev/null"},
	}
	t.Setenv("FRE_TEST_GIT_TOKEN", gitToken)
	t.Setenv("FRE_TEST_WRONG_TOKEN", "another")
	program := func(text string) map[string]string {
		return map[string]string{"src/run": "#!/bin/sh\necho " + text + "\n", ".freignore": "src\n"}
	}
	first := r.commit(t, "open", program("one"))
	git(t, filepath.Join(r.dir, "open"), "tag", "-a", "v1", "-m", "one")
	r.commit(t, "private/team/app", program("secret"))

	build := func(code string, lock *image.Lock) (*store.Image, *image.Lock, error) {
		return w.build(t, "id: f\nbase: native\nhandler: run\ncode: {path: src, git: {"+code+"}}\n", "unused", lock)
	}
	runs := func(img *store.Image) string { return w.inside(t, img, nil, "/bin/sh", "/function/run") }

	img, lock, err := build("url: '"+r.http+"/open'", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := runs(img); got != "one" || lock.Git == nil || lock.Git.Commit != first {
		t.Errorf("got %q, lock %+v, want commit %s", got, lock.Git, first)
	}
	noHosts(t, lock)
	if diff := cmp.Diff(map[string]string{"function f": "git:" + first}, hashesOf(img, "code")); diff != "" {
		t.Error(diff)
	}
	second := r.commit(t, "open", program("two"))
	for name, tt := range map[string]struct {
		code string
		lock *image.Lock
		want string
		at   string
	}{
		"locked":          {"url: '" + r.http + "/open'", lock, "one", first},
		"unlocked":        {"url: '" + r.http + "/open'", nil, "two", second},
		"another request": {"url: '" + r.http + "/open', ref: main", lock, "two", second},
		"annotated tag":   {"url: '" + r.http + "/open', ref: v1", nil, "one", first},
		"commit":          {"url: '" + r.http + "/open', ref: " + first, nil, "one", first},
		"token":           {"url: '" + r.http + "/private/team/app', auth: team", nil, "secret", ""},
		"key":             {"url: 'ssh://git@" + r.ssh + "/private/team/app', auth: deploy", nil, "secret", ""},
	} {
		img, lock, err := build(tt.code, tt.lock)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := runs(img); got != tt.want || tt.at != "" && lock.Git.Commit != tt.at {
			t.Errorf("%s: got %q at %s, want %q at %s", name, got, lock.Git.Commit, tt.want, tt.at)
		}
	}

	for name, tt := range map[string]struct{ code, want string }{
		"no such ref":        {"url: '" + r.http + "/open', ref: nowhere", "nowhere"},
		"no such commit":     {"url: '" + r.http + "/open', ref: " + strings.Repeat("7", 40), "77777"},
		"no such repository": {"url: '" + r.http + "/nothing'", "not found"},
		"no credential":      {"url: '" + r.http + "/private/team/app'", "code.git.auth (known: team, wrong, other, deploy, stranger)"},
		"wrong token":        {"url: '" + r.http + "/private/team/app', auth: wrong", "the server refuses the credential wrong"},
		"unknown credential": {"url: '" + r.http + "/private/team/app', auth: me", `no credential "me"`},
		"another's":          {"url: '" + r.http + "/private/team/app', auth: other", "for a different address"},
		"unknown server":     {"url: 'ssh://git@" + r.ssh + "/private/team/app', auth: stranger", "known_hosts"},
		"no key":             {"url: 'ssh://git@" + r.ssh + "/private/team/app'", "Host key verification failed"},
		"no server":          {"url: 'https://127.0.0.1:1/x'", "Failed to connect"},
	} {
		_, _, err := build(tt.code, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "fret.yaml:4:") {
			t.Errorf("%s: got %v, want a fault of the template with %q", name, err, tt.want)
		}
	}

	t.Run("submodules", func(t *testing.T) {
		r.commit(t, "library", map[string]string{"text": "of the library"})
		git(t, filepath.Join(r.dir, "open"), "submodule", "--quiet", "add", "../library", "src/library")
		r.commit(t, "open", map[string]string{"src/run": "#!/bin/sh\ncat /function/library/text || echo none\n"})
		for more, want := range map[string]string{"": "none", ", submodules: true": "of the library"} {
			img, _, err := build("url: '"+r.http+"/open'"+more, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := runs(img); got != want {
				t.Errorf("%q: got %q, want %q", more, got, want)
			}
		}
	})

	// A fetched commit needs no server.
	r.server.Close()
	if img, _, err = build("url: '"+r.http+"/open'", lock); err != nil || runs(img) != "one" {
		t.Errorf("without the server: %v", err)
	}
	seen, err := exec.Command("grep", "-rlF", gitToken, w.Store.Dir()).Output()
	if len(seen) > 0 {
		t.Errorf("the token is in %s (%v)", seen, err)
	}
	text, err := json.Marshal(lock)
	if err != nil || bytes.Contains(text, []byte("127.0.0.1")) {
		t.Errorf("the lock names a host: %s, %v", text, err)
	}
}

// TestCodeFromGitForTenant: Git connects by the tenant's network rule, over HTTP and ssh, for
// submodules, too.
func TestCodeFromGitForTenant(t *testing.T) {
	w := newWorkshop(t)
	r := serveRepositories(t)
	w.Settings.Git = []image.GitCredential{{Name: "deploy", URL: "ssh://" + r.ssh + "/", SSHKey: r.key, KnownHosts: r.known}}
	seen := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen++ }))
	t.Cleanup(inside.Close)
	closed := httptest.NewServer(nil)
	closed.Close()
	// Submodules: one on a named server, one on another server.
	r.commit(t, "library", map[string]string{"text": "of the library"})
	files := map[string]string{"src/run": "#!/bin/sh\ncat /function/library/text\n", ".freignore": "src\n"}
	r.commit(t, "good", files)
	git(t, filepath.Join(r.dir, "good"), "submodule", "--quiet", "add", "../library", "src/library")
	r.commit(t, "good", map[string]string{"x": ""})
	r.commit(t, "bad", files)
	git(t, filepath.Join(r.dir, "bad"), "submodule", "--quiet", "add", "../library", "src/library")
	r.commit(t, "bad", map[string]string{".gitmodules": "[submodule \"src/library\"]\n\tpath = src/library\n\turl = " + inside.URL + "/library\n"})
	r.commit(t, "keyed", map[string]string{"src/run": "#!/bin/sh\necho by key\n", ".freignore": "src\n"})

	build := func(code string) (*store.Image, error) {
		img, _, err := w.build(t, "id: f\nbase: native\nhandler: run\ncode: {path: src, git: {"+code+"}}\n", "unused", nil)
		return img, err
	}
	w.rule = &outward.Rule{Hosts: []string{strings.TrimPrefix(r.http, "http://"), r.ssh}}
	for code, want := range map[string]string{
		"url: '" + r.http + "/good', submodules: true":       "of the library",
		"url: 'ssh://git@" + r.ssh + "/keyed', auth: deploy": "by key",
	} {
		img, err := build(code)
		if err != nil {
			t.Errorf("%s: %v", code, err)
			continue
		}
		if got := w.inside(t, img, nil, "/bin/sh", "/function/run"); got != want {
			t.Errorf("%s: got %q, want %q", code, got, want)
		}
	}
	told := map[string]string{}
	for _, at := range []string{inside.URL, closed.URL, "ssh://git@" + strings.TrimPrefix(inside.URL, "http://")} {
		_, err := build("url: '" + at + "/x'")
		if err == nil || !strings.Contains(err.Error(), "are not allowed: not a server") {
			t.Errorf("%s: %v, want that it may not be connected to", at, err)
		}
		told[at] = strings.ReplaceAll(fmt.Sprint(err), at, "URL")
	}
	if told[inside.URL] != told[closed.URL] {
		t.Errorf("an open port: %s\na closed one: %s", told[inside.URL], told[closed.URL])
	}
	if _, err := build("url: '" + r.http + "/bad', submodules: true"); err == nil || !strings.Contains(err.Error(), "are not allowed: not a server") {
		t.Errorf("a submodule inside: %v", err)
	}
	if seen != 0 {
		t.Errorf("the server inside has seen %d requests", seen)
	}
}

// The code may be an archive beside the template.
func TestCodeFromArchive(t *testing.T) {
	w := newWorkshop(t)
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "top/src"), 0o755), os.WriteFile(filepath.Join(dir, "top/src/run"), []byte("#!/bin/sh\necho packed\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", dir, "-czf", filepath.Join(dir, "code.tar.gz"), "top").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "text.zip"), []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for code, want := range map[string]string{
		"path: top/src, archive: code.tar.gz": "",
		"path: top/lib, archive: code.tar.gz": `fret.yaml:4:14: code.path "top/lib"`,
		"archive: missing.zip":                `fret.yaml:4:17: code.archive "missing.zip": no such file`,
		"archive: text.zip":                   `fret.yaml:4:17: code.archive "text.zip": bad archive: neither zip nor tar`,
	} {
		if err := os.WriteFile(filepath.Join(dir, "fret.yaml"), fmt.Appendf(nil, "id: f\nbase: native\nhandler: run\ncode: {%s}\n", code), 0o644); err != nil {
			t.Fatal(err)
		}
		img, _, err := w.Build(t.Context(), root, nil)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", code, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := w.inside(t, img, nil, "/bin/sh", "/function/run"); got != "packed" {
			t.Errorf("%s: got %q", code, got)
		}
	}
}
