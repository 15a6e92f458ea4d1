package docker_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

// ordinary is a file system for docker import, with a program, a user list, and a directory open to
// all.
func ordinary(t *testing.T) string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(fretest.Rootfs(t), "bin/prog"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, mode int64, content string) {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(name, "/") {
			kind = tar.TypeDir
		}
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Mode: mode, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("bin/", 0o755, "")
	add("bin/prog", 0o755, string(program))
	add("etc/", 0o755, "")
	add("etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\nworker:x:12:34::/home:/bin/sh\n")
	add("etc/group", 0o644, "root:x:0:\nworkers:x:34:\n")
	add("locked/", 0o700, "")
	add("data/", 0o777, "")
	add("data/file", 0o666, "from the image")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// app imports the file system as app:latest.
func (w *world) app(t *testing.T) {
	t.Helper()
	r := w.dockerWith(t, ordinary(t), "import", "-c", `ENTRYPOINT ["/bin/prog"]`, "-c", `CMD ["args", "by", "default"]`, "-c", "ENV FROM=image", "-c", "LABEL kind=app", "-", "app")
	if r.code != 0 || !regexp.MustCompile(`(?m)^sha256:[0-9a-f]{64}$`).MatchString(r.stdout) {
		t.Fatalf("docker import: exit status %d: %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestTravel(t *testing.T) { each(t, nil, (*world).testTravel) }

// testTravel: images come and go as archives.
func (w *world) testTravel(t *testing.T) {
	t.Helper()
	w.app(t)
	id := w.ok(t, "images", "-q", "--no-trunc")
	w.run(t, []line{
		{[]string{"inspect", "--format", "{{json .Config.Entrypoint}} {{json .Config.Cmd}} {{.Config.Labels.kind}}", "app"}, 0, `^\["/bin/prog"\] \["args","by","default"\] app\n$`, ``},
		{words("images -q --no-trunc --filter label=kind=app"), 0, `^` + id + `\n$`, ``},
		{words("history -q --no-trunc app"), 0, `^` + id, ``},
		{words("tag app localhost:1/team/app:2"), 0, ``, ``},
	})
	archive := filepath.Join(t.TempDir(), "app.tar")
	w.run(t, []line{
		{words("save -o " + archive + " app localhost:1/team/app:2"), 0, ``, ``},
		{words("save -o " + archive + ".none nothing"), 1, ``, `(?i)no such image: nothing`},
		{words("rmi app localhost:1/team/app:2"), 0, `Deleted: ` + id, ``},
		{words("load -q -i " + archive), 0, `Loaded image: app:latest\n`, ``},
		{words("run --rm --network none localhost:1/team/app:2"), 0, `^by\|default\n$`, ``},
		{words("images -q --no-trunc app"), 0, `^` + id + `\n$`, ``},
		{words("pull localhost:1/nothing:1"), 1, ``, `(?i)localhost:1`},
		{words("push localhost:1/team/app:2"), 1, `.*`, `(?i)localhost:1`},
		{words("push nothing:1"), 1, `.*`, `An image does not exist locally with the tag: nothing`},
		{words("pull -a app"), 1, ``, `FRE has no pull of all tags`},
		{words("import http://localhost:1/x.tar x"), 1, ``, `FRE has no import from URLs`},
	})
	for _, bad := range []string{"no archive at all", ""} {
		if r := w.dockerWith(t, bad, "load"); r.code != 1 || r.stderr == "" {
			t.Errorf("docker load of %q: exit status %d: %s%s", bad, r.code, r.stdout, r.stderr)
		}
	}
	if r := w.dockerWith(t, "no archive at all", "import", "-", "bad"); r.code != 1 {
		t.Errorf("docker import of no archive: exit status %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if got := w.ok(t, "images", "-q", "bad"); got != "" {
		t.Errorf("a bad archive left image %s", got)
	}
}
