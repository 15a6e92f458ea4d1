package docker_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// missingObjects are requests for unsupported features on missing objects. The answer 404 comes
// first.
const missingObjects = `POST /containers/x/exec {"Cmd":["a"]}
POST /containers/x/pause
POST /containers/x/unpause
POST /containers/x/update {}
POST /containers/x/stop?signal=KILL
POST /containers/x/start?checkpoint=a
GET /containers/x/archive?path=/
PUT /containers/x/archive?path=/
HEAD /containers/x/archive?path=/
GET /containers/x/changes
GET /containers/x/export
GET /containers/x/attach/ws
GET /containers/x/checkpoints
DELETE /containers/x/checkpoints/a
DELETE /containers/x?link=1
GET /containers/x/top?ps_args=zzz
GET /containers/x/logs?details=1&stdout=1
POST /exec/x/start {}
GET /exec/x/json
POST /commit?container=x
POST /containers/create {"Image":"nothing","HostConfig":{"Privileged":true}}
POST /containers/create {"Image":"nothing","HostConfig":{"NetworkMode":"container:x"}}
POST /containers/create {"Image":"nothing","Healthcheck":{"Test":["CMD","x"]}}
POST /containers/create {"Image":"nothing","surprise":1}
POST /networks/x/connect {"Container":"x"}
POST /networks/bridge/connect {"Container":"x"}
POST /networks/bridge/disconnect {"Container":"x"}
DELETE /networks/x
DELETE /volumes/x
GET /images/x/json?platform=linux/arm64
GET /images/x/history?platform=linux/arm64
GET /images/x/get?platform=linux/arm64
DELETE /images/x?platforms=linux/arm64
POST /images/x/push
GET /plugins/x/json
POST /plugins/x/enable`

// Malformed requests get errors in Docker's shape, with Docker's statuses.
func TestBadRequests(t *testing.T) {
	w := &world{Daemon: daemontest.Serve(t), client: clients(t)[0], config: t.TempDir()}
	w.app(t)
	client := w.http()
	create := func(body string) string { return `{"Image":"app","HostConfig":{"NetworkMode":"none"},` + body + `}` }
	for _, test := range []struct {
		method, path, body string
		status             int
		message            string
	}{
		{"GET", "/v1.40/images/json", "", 400, "client version 1.40 is too old"},
		{"GET", "/v1.99/images/json", "", 400, "client version 1.99 is too new. Maximum supported API version is 1.50"},
		{"GET", "/v1.x/images/json", "", 404, "page not found"},
		{"GET", "/v1.50/nothing", "", 404, "page not found"},
		{"PUT", "/v1.50/images/json", "", 404, "page not found"},
		{"GET", "/v1.50/images/json?filters={", "", 400, "invalid filter"},
		{"GET", "/v1.50/images/json?filters=[]", "", 400, "invalid filter"},
		{"GET", "/v1.50/containers/json?limit=x", "", 400, "limit"},
		{"GET", "/v1.50/containers/json?filters=%7B%22label%22:3%7D", "", 400, "invalid filter"},
		{"GET", "/v1.50/images/a:b:c/json", "", 400, "invalid reference format"},
		{"GET", "/v1.50/images/a@b/json", "", 400, "invalid reference format"},
		{"GET", "/v1.50/images/abcdef/json", "", 404, "No such image: abcdef"},
		{"POST", "/v1.50/images/hello/tag?repo=UP/Per", "", 400, "invalid reference format"},
		{"POST", "/v1.50/images/hello/tag?repo=a&tag=b/c", "", 400, "invalid reference format"},
		{"POST", "/v1.50/images/hello/tag?repo=up/per", "", 404, "No such image"},
		{"GET", "/v1.50/events?since=yesterday", "", 400, "is not a time"},
		{"GET", "/v1.50/containers/x/logs", "", 404, "No such container"},
		{"POST", "/v1.50/containers/create", "", 400, "invalid JSON: got EOF"},
		{"POST", "/v1.50/containers/create", "{", 400, "invalid JSON: unexpected end of JSON input at byte 1"},
		{"POST", "/v1.50/containers/create", `{"Image":"app","HostConfig":{"Annotations":{"":"a"}}}`, 400, "the empty string is not permitted as an annotation key"},
		{"POST", "/v1.50/containers/create", "[]", 400, "the body must be an object, not array"},
		{"POST", "/v1.50/containers/create", `{"Image":"app"} {}`, 400, "after top-level value at byte 17"},
		{"POST", "/v1.50/containers/create", `{"Image":"app","Cmd":[1]}`, 400, "Cmd must be a string, not number"},
		{"POST", "/v1.50/containers/create", `{"Image":"app","HostConfig":{"Memory":"1g"}}`, 400, "Memory must be a whole number, not string"},
		{"POST", "/v1.50/containers/create", strings.Repeat("[", 100_000), 400, "exceeded max depth"},
		{"POST", "/v1.50/containers/create", create(`"Cmd":["` + strings.Repeat("x", 4<<20) + `"]`), 413, "send at most 4194304 bytes"},
		{"POST", "/v1.50/containers/create", create(`"Cmd":["a\u0000"]`), 400, "NUL byte"},
		{"POST", "/v1.50/containers/create", create(`"Env":["A=\u0000"]`), 400, "NAME=value"},
		{"POST", "/v1.50/containers/create", create(`"Labels":{"fre.tenant":"../x"}`), 400, "not a tenant's name"},
		{"POST", "/v1.50/containers/create?name=..", create(`"Tty":false`), 400, "not a container's name"},
		{"POST", "/v1.50/containers/create", `{"Image":"nothing"}`, 404, "No such image: nothing:latest"},
		{"POST", "/v1.50/containers/create", `{"Image":"a/../b"}`, 400, "invalid reference format"},
		{"POST", "/v1.50/auth", "{", 400, "invalid JSON"},
		{"POST", "/v1.50/images/create?fromImage=UPPER&tag=1", "", 400, "invalid reference format"},
		{"POST", "/v1.50/images/create?fromSrc=-&repo=app&tag=a/b", "", 400, "invalid reference format"},
		{"POST", "/v1.50/images/create?fromSrc=-&repo=app&platform=macos/arm64", "", 400, "the engine runs linux/"},
		{"GET", "/v1.50/images/get", "", 400, "name the images to save"},
		{"GET", "/v1.50/distribution/app/json", "", 501, "FRE has no look-ups"},
		{"POST", "/v1.50/containers/x/kill?signal=RTMAX%2B1", "", 400, "invalid signal"},
		{"POST", "/v1.50/containers/x/wait?condition=never", "", 400, "invalid condition"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), test.method, "http://docker"+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var body map[string]string
		err = json.NewDecoder(resp.Body).Decode(&body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != test.status || len(body) != 1 || !strings.Contains(body["message"], test.message) {
			t.Errorf("%s %s: %d %v (%v), want %d and a message with %q", test.method, test.path, resp.StatusCode, body, err, test.status, test.message)
		}
	}
	for missing := range strings.SplitSeq(missingObjects, "\n") {
		call, body, _ := strings.Cut(missing, " {")
		method, path, _ := strings.Cut(call, " ")
		if body != "" {
			body = "{" + body
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://docker/v1.50"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s, want 404", missing, resp.Status)
		}
	}
	w.run(t, []line{{words("ps -a -q"), 0, ``, ``}, {words("images -a -q"), 0, `^[0-9a-f]{12}\n$`, ``}}) // no object is kept
	// The version in the path is optional, and the header of the answer names it.
	resp, err := client.Head("http://docker/_ping")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	got := map[string]string{}
	for _, key := range []string{"Api-Version", "Ostype", "Docker-Experimental", "Builder-Version", "Swarm"} {
		got[key] = resp.Header.Get(key)
	}
	want := map[string]string{"Api-Version": "1.50", "Ostype": "linux", "Docker-Experimental": "false", "Builder-Version": "1", "Swarm": "inactive"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers of /_ping (-want +got):\n%s", diff)
	}
}

func TestVersions(t *testing.T) { each(t, nil, (*world).testVersions) }

// testVersions: the engine speaks every version in docs/docker.md that the client speaks, and no
// other.
func (w *world) testVersions(t *testing.T) {
	t.Helper()
	w.app(t)
	newest, err := strconv.Atoi(strings.TrimPrefix(w.ok(t, "version", "--format", "{{.Client.APIVersion}}"), "1."))
	if err != nil {
		t.Fatal(err)
	}
	id := w.ok(t, "images", "-q")
	for n := 41; n <= newest; n++ {
		version := fmt.Sprintf("1.%d", n)
		w.version = version
		w.run(t, []line{
			{words("version --format {{.Client.APIVersion}}"), 0, `^` + regexp.QuoteMeta(version) + `\n$`, ``},
			{words("images -q"), 0, `^` + id + `\n$`, ``},
			{words("run --name one --network none app"), 0, `^by\|default\n$`, ``},
			{words("logs one"), 0, `^by\|default\n$`, ``},
			{words("ps -a -s --format {{.Names}}"), 0, `^one\n$`, ``},
			{words("inspect --type image app --format {{.Id}}"), 0, `^sha256:` + id, ``},
			{words("system df --format {{.TotalCount}}"), 0, `^1\n1\n`, ``},
			{words("rm one"), 0, `^one\n$`, ``},
		})
	}
	w.version = "1.40"
	w.run(t, []line{{words("images -q"), 1, ``, `client version 1.40 is too old`}})
}

func TestAmbiguous(t *testing.T) { each(t, nil, (*world).testAmbiguous) }

// testAmbiguous: the prefix of several ids is an error; a full id names one container.
func (w *world) testAmbiguous(t *testing.T) {
	t.Helper()
	w.app(t)
	seen := map[string]string{}
	var same string
	for same == "" { // after 17 containers at the latest
		id := w.ok(t, words("create --network none app")...)
		if seen[id[:1]] != "" {
			same = id[:1]
		}
		seen[id[:1]] = id
	}
	const want = `multiple IDs found with provided prefix: `
	w.run(t, []line{
		{[]string{"inspect", "--type", "container", same}, 1, `^\[\]\n$`, want + same},
		{[]string{"start", same}, 1, ``, want + same},
		{[]string{"rm", same}, 1, ``, want + same},
		{[]string{"logs", same}, 1, ``, want + same},
		{[]string{"inspect", "--format", "{{.Id}}", seen[same]}, 0, `^` + seen[same] + `\n$`, ``},
	})
}

func TestLyingArchives(t *testing.T) { each(t, nil, (*world).testLyingArchives) }

// testLyingArchives: a malicious archive leaves no files, as a file system or as a layer of an
// image.
func (w *world) testLyingArchives(t *testing.T) {
	t.Helper()
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	for _, test := range []struct {
		name    string
		entries []tar.Header
		want    string
	}{
		{"dots", []tar.Header{file("../x")}, `path out of the root`},
		{"absolute link", []tar.Header{{Name: "x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}, `no file of the layer`},
		{"link out", []tar.Header{{Name: "x", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}}, `path out of the root`},
	} {
		layer := archive(t, test.entries, nil)
		digest := fmt.Sprintf("%x", sha256.Sum256(layer))
		image := archive(t, []tar.Header{file("config.json"), file("layer.tar"), file("manifest.json")}, [][]byte{
			fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}`, runtime.GOARCH, digest),
			layer,
			[]byte(`[{"Config":"config.json","RepoTags":["lie:1"],"Layers":["layer.tar"]}]`),
		})
		for _, in := range []struct {
			args  []string
			input []byte
		}{{words("import - lie:2"), layer}, {words("load"), image}} {
			r := w.dockerWith(t, string(in.input), in.args...)
			if r.code != 1 || !regexp.MustCompile(test.want).MatchString(r.stderr) {
				t.Errorf("docker %q of %s: exit status %d, want 1 and %q: %s%s", in.args, test.name, r.code, test.want, r.stdout, r.stderr)
			}
		}
	}
	for _, test := range []struct {
		args  []string
		input []byte
		want  string
	}{
		{words("import - lie:3"), archive(t, []tar.Header{file("x")}, [][]byte{make([]byte, 5000)})[:1000], `truncated`},
		{words("load"), archive(t, []tar.Header{file("manifest.json")}, [][]byte{[]byte(`[{"Config":"../../etc/passwd","RepoTags":["lie:5"],"Layers":[]}]`)}), `is named but missing`},
		{words("load"), archive(t, []tar.Header{file("manifest.json")}, [][]byte{bytes.Repeat([]byte("["), 1<<20)}), `exceeded max depth`},
	} {
		if r := w.dockerWith(t, string(test.input), test.args...); r.code != 1 || !regexp.MustCompile(test.want).MatchString(r.stderr) {
			t.Errorf("docker %q: exit status %d, want 1 and %q: %s%s", test.args, r.code, test.want, r.stdout, r.stderr)
		}
	}
	w.run(t, []line{
		{words("images -a -q"), 0, ``, ``},
		{[]string{"system", "df", "--format", "{{.Type}}:{{.Size}}"}, 0, `^Images:0B\n`, ``},
	})
}

// An archive that unpacks to more than the limit leaves no files.
func TestBomb(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	state := filepath.Join(daemontest.Dir(t), "state")
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("images:\n  max_size: 16MiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := daemontest.Start(t, testdaemon.Config{State: state, Args: []string{"--config", config}, Log: t.Output()})
	t.Cleanup(func() { daemontest.Stop(t, d) })
	w := &world{Daemon: d, client: clients(t)[0], config: t.TempDir()}
	bomb := gzipped(t, archive(t, []tar.Header{{Name: "x", Typeflag: tar.TypeReg}}, [][]byte{make([]byte, 64<<20)}))
	if r := w.dockerWith(t, string(bomb), words("import - bomb:1")...); r.code != 1 || !strings.Contains(r.stderr, "16777216 bytes") {
		t.Errorf("docker import of %d bytes: exit status %d, want 1 and the limit: %s%s", len(bomb), r.code, r.stdout, r.stderr)
	}
	w.run(t, []line{
		{words("images -a -q"), 0, ``, ``},
		{[]string{"system", "df", "--format", "{{.Type}}:{{.Size}}"}, 0, `^Images:0B\n`, ``},
	})
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// archive returns a tar of entries with the given contents of files.
func archive(t *testing.T, entries []tar.Header, content [][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, h := range entries {
		var b []byte
		if i < len(content) {
			b = content[i]
		}
		h.Size = int64(len(b))
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
