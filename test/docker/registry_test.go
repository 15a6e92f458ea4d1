package docker_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

// privateRegistry runs a registry with a login and returns its host and port.
func privateRegistry(t *testing.T, user, password string) string {
	t.Helper()
	behind := &url.URL{Scheme: "http", Host: fretest.Registry(t)}
	// Host stays, because the registry's answers name it.
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = behind.Scheme, behind.Host }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestRegistry(t *testing.T) { each(t, nil, (*world).testRegistry) }

// testRegistry: an image goes to a private registry and comes back by name and by digest.
func (w *world) testRegistry(t *testing.T) {
	t.Helper()
	w.app(t)
	id := w.ok(t, "images", "-q", "--no-trunc")
	host := privateRegistry(t, "ann", "secret")
	name := host + "/team/app"
	w.run(t, []line{
		{[]string{"tag", "app", name + ":2"}, 0, ``, ``},
		{[]string{"push", "-q", name + ":2"}, 1, `.*`, `docker login`},
		{[]string{"images", "--filter", "reference=" + name, "--format", "{{json .Digest}}", "--digests"}, 0, `^"<none>"\n$`, ``},
		{[]string{"login", "-u", "ann", "-p", "wrong", host}, 1, `.*`, `(?i)unauthorized|permission`},
		{[]string{"pull", "-q", name + ":2"}, 1, ``, `docker login`},
		{[]string{"login", "-u", "ann", "-p", "secret", host}, 0, `Login Succeeded`, `.*`},
	})
	pushed := regexp.MustCompile(`2: digest: (sha256:[0-9a-f]{64}) size: \d+\n`).FindStringSubmatch(w.ok(t, "push", name+":2") + "\n")
	if pushed == nil {
		t.Fatal("docker push tells no digest")
	}
	digest := pushed[1]
	remote := name + "@" + digest
	w.run(t, []line{
		{[]string{"inspect", "--format", "{{json .RepoDigests}}", "app"}, 0, `^\["` + regexp.QuoteMeta(remote) + `"\]\n$`, ``},
		{[]string{"images", "--digests", "--format", "{{.Repository}} {{.Tag}} {{.Digest}}"}, 0, `(?m)^` + regexp.QuoteMeta(name+" 2 "+digest) + `$`, ``},
		// The digest goes with the tag.
		{[]string{"rmi", name + ":2"}, 0, `^Untagged: ` + name + `:2\nUntagged: ` + remote + `\n$`, ``},
		{[]string{"inspect", remote}, 1, `^\[\]\n$`, `(?i)no such`},
		{words("rmi app"), 0, `Deleted: ` + id, ``},
		{words("images -aq"), 0, ``, ``},

		{[]string{"pull", name + ":2"}, 0, `Digest: ` + digest + `\nStatus: Downloaded newer image for ` + name + `:2\n`, ``},
		{[]string{"pull", name + ":2"}, 0, `Digest: ` + digest + `\nStatus: Image is up to date for ` + name + `:2\n`, ``},
		{[]string{"images", "-q", "--no-trunc", name}, 0, `^` + id + `\n$`, ``},
		{[]string{"run", "--rm", "--network", "none", name + ":2"}, 0, `^by\|default\n$`, ``},
		{[]string{"rmi", name + ":2"}, 0, `Untagged: ` + remote + `\nDeleted: ` + id, ``},

		// By digest; docker run pulls by itself.
		{[]string{"run", "--rm", "--network", "none", remote}, 0, `^by\|default\n$`, `Downloaded newer image for ` + remote},
		{[]string{"run", "--pull", "never", "--rm", "--network", "none", remote}, 0, `^by\|default\n$`, ``},
		{words("images --digests --format {{.Repository}}|{{.Tag}}|{{.Digest}}"), 0, `^` + name + `\|<none>\|` + digest + `\n$`, ``},
		{[]string{"pull", remote}, 0, `Status: Image is up to date for ` + remote, ``},
		{[]string{"push", remote}, 1, `.*`, `.`},
		{[]string{"save", "-o", filepath.Join(t.TempDir(), "app.tar"), remote}, 0, ``, ``},
		{[]string{"rmi", remote}, 0, `^Untagged: ` + remote + `\nDeleted: ` + id + `\n$`, ``},
		{[]string{"pull", "-q", name + "@sha256:" + strings.Repeat("0", 64)}, 1, ``, `(?i)not found|unknown`},

		// An image without another name is pruned.
		{[]string{"pull", "-q", remote}, 0, `.`, ``},
		{words("image prune -f"), 0, `(?is)untagged: ` + remote + `\ndeleted: ` + id + `.*reclaimed space: [1-9]`, ``},
		{words("images -aq"), 0, ``, ``},
		{[]string{"logout", host}, 0, `.*`, `.*`},
		{[]string{"pull", "-q", remote}, 1, ``, `docker login`},
	})
}
