package runtimes_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/runtimes/python"
	"github.com/fre-engine/fre/template"
)

// wheel makes a wheel of a package with one module and further files, by path.
func wheel(t *testing.T, name string, more map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	info := name + "-1.0.dist-info/"
	files := map[string]string{
		name + ".py":      "answer = 42\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	}
	maps.Copy(files, more)
	var record strings.Builder
	record.WriteString(info + "RECORD,,\n")
	for p, text := range files {
		e, err := w.Create(p)
		if err == nil {
			_, err = e.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		record.WriteString(p + ",,\n")
	}
	e, err := w.Create(info + "RECORD")
	if err == nil {
		_, err = e.Write([]byte(record.String()))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// index is a package index (PEP 503) on loopback with a password. The package's name selects a
// fault.
type index struct {
	t      *testing.T
	server *httptest.Server
	wheels map[string][]byte // by package

	sources map[string][]byte // source distributions, by package

	mu    sync.Mutex
	asked map[string]bool // last elements of the requested paths
}

// source makes a source distribution that builds itself with backend as the body of build_wheel,
// which gets the path of the wheel.
func source(t *testing.T, name, backend string) []byte {
	t.Helper()
	return sdist(t, "fretest_"+name+"-1.0", map[string]string{
		"PKG-INFO":       "Metadata-Version: 2.1\nName: fretest_" + name + "\nVersion: 1.0\n",
		"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"own\"\nbackend-path = [\".\"]\n",
		"own.py": `import os, socket, zipfile

def write(path, name, text):
    info = name + "-1.0.dist-info/"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(name + ".py", text)
        z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n")
        z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(info + "RECORD", "")

def build_wheel(dir, config_settings=None, metadata_directory=None):
    path = os.path.join(dir, "fretest_` + name + `-1.0-py3-none-any.whl")
` + backend + `
    return os.path.basename(path)
`,
	})
}

// curious looks for a password and a way out, which a package's build must not find.
const curious = `    seen = [k for k, v in os.environ.items() if "` + password + `" in v]
    for top in ("/function", "/work", "/run", "/tmp"):
        for at, _, names in os.walk(top):
            for n in names:
                try:
                    text = open(os.path.join(at, n), "rb").read()
                except OSError:
                    continue
                if ("s3cret" + "-of-the-index").encode() in text and n != "own.py":
                    seen.append(os.path.join(at, n))
    try:
        socket.create_connection(("127.0.0.1", %s), 1)
        seen.append("the network")
    except OSError:
        pass
    write(path, "fretest_curious", "seen = %%r" %% seen)`

const password = "s3cret-of-the-index"

// elsewhere is the hash of a wheel for another kind of machine.
var elsewhere = strings.Repeat("e", 64)

func newIndex(t *testing.T) *index {
	t.Helper()
	x := &index{t: t, wheels: map[string][]byte{}, asked: map[string]bool{}}
	for _, name := range []string{"good", "yanked", "lying", "short", "busy"} {
		x.wheels[name] = wheel(t, "fretest_"+name, nil)
	}
	x.wheels["escaping"] = wheel(t, "fretest_escaping", map[string]string{"../../../../../../work/escaped": "x", "../escaped.py": "x"})
	x.server = httptest.NewServer(x)
	t.Cleanup(x.server.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(x.server.URL, "http://"), ":")
	x.sources = map[string][]byte{
		"curious":  source(t, "curious", fmt.Sprintf(curious, port)),
		"broken":   source(t, "broken", `    raise SystemExit("no header of fretest.h")`),
		"impostor": source(t, "impostor", `    write(path, "six", "")`),
	}
	return x
}

func (x *index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	x.asked[path.Base(r.URL.Path)] = true
	x.mu.Unlock()
	_, name, _ := strings.Cut(strings.ReplaceAll(strings.TrimSuffix(path.Base(r.URL.Path), "/"), "_", "-"), "fretest-")
	name, _, _ = strings.Cut(name, "-")
	if _, word, _ := r.BasicAuth(); word != password || name == "locked" {
		w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	status := map[string]int{"forbidden": http.StatusForbidden, "limited": http.StatusTooManyRequests, "down": http.StatusServiceUnavailable}[name]
	body, file := x.wheels[name], "fretest_"+name+"-1.0-py3-none-any.whl"
	if body == nil {
		body, file = x.sources[name], "fretest_"+name+"-1.0.tar.gz"
	}
	switch {
	case status != 0:
		http.Error(w, "no", status)
	case name == "mac":
		_, _ = fmt.Fprint(w, `<a href="/files/fretest_mac-1.0-cp311-cp311-macosx_11_0_arm64.whl">fretest_mac-1.0-cp311-cp311-macosx_11_0_arm64.whl</a>`)
	case body == nil:
		http.NotFound(w, r)
	case strings.HasPrefix(r.URL.Path, "/files/"):
		switch name {
		case "lying":
			body = wheel(x.t, "fretest_lying", map[string]string{"other.py": ""})
		case "short":
			w.Header().Set("Content-Length", fmt.Sprint(len(body)+100))
		}
		_, _ = w.Write(body)
	default:
		attribute := ""
		if name == "yanked" {
			attribute = ` data-yanked="it eats files"`
		}
		if name == "good" {
			_, _ = fmt.Fprintf(w, `<a href="/files/%[1]s#sha256=%[2]s">%[1]s</a>`, "fretest_good-1.0-cp311-cp311-macosx_11_0_arm64.whl", elsewhere)
		}
		_, _ = fmt.Fprintf(w, `<a href="/files/%s#sha256=%x"%s>%s</a>`, file, sha256.Sum256(body), attribute, file)
	}
}

// TestIndex builds from a private package index and from a misbehaving one. The password in the
// host's configuration reaches the index, and no stored file or message.
func TestIndex(t *testing.T) {
	w := newWorkshop(t)
	x := newIndex(t)
	began := time.Now().Add(-time.Second)
	address := strings.Replace(x.server.URL, "//", "//me:"+password+"@", 1) + "/simple"
	settings, err := new(runtimes.PackagesConfig).Settings(image.Host{Getenv: func(name string) string { return map[string]string{"PIP_INDEX_URL": address}[name] }})
	if err != nil {
		t.Fatal(err)
	}
	pip := image.SettingsOf[install.PipSettings](settings)
	pip.Env = append(pip.Env, "UV_HTTP_RETRIES=1") // its pauses grow to many seconds
	hosts := w.Settings
	if _, _, err := w.build(t, "id: f\nbase: python\npackages: {pip: [six==1.16.0]}\n", "main.py", nil); err != nil { // fetches the tools
		t.Fatal(err)
	}
	w.Settings = settings.With(pip)
	defer func() { w.Settings = hosts }()

	const fret = "id: f\nbase: python\npackages:\n  pip: [fretest-%s]\n"
	var said strings.Builder
	var mu sync.Mutex
	w.report = func(e image.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(&said).Encode(e); err != nil {
			t.Error(err)
		}
	}
	img, lock, err := w.build(t, fmt.Sprintf(fret, "good==1.0"), "main.py", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	if out := w.inside(t, img, []string{"PYTHONPATH=/opt/python"}, "/usr/bin/python3", "-S", "-c", "import fretest_good; print(fretest_good.answer)"); out != "42" {
		t.Errorf("printed %q", out)
	}
	// The record names the installed file among the files in the lock.
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(x.wheels["good"]))
	if got := section[*python.Locked](lock, "pip").Packages[0].Hashes; len(got) != 2 || !slices.Contains(got, sum) {
		t.Errorf("locked %q", got)
	}
	if diff := cmp.Diff(map[string]string{"opt/python fretest-good": sum}, hashesOf(img, "pip")); diff != "" {
		t.Error(diff)
	}
	_, lock, err = w.build(t, fmt.Sprintf(fret, "yanked==1.0"), "main.py", nil)
	if err != nil || !strings.Contains(said.String(), "is yanked (reason: \\\"it eats files\\\")") {
		t.Errorf("a yanked version: %v, said %s", err, &said)
	}
	said.Reset()
	if _, _, err := w.build(t, fmt.Sprintf(fret, "yanked==1.0"), "main.py", lock); err != nil || strings.Contains(said.String(), "yanked (") {
		t.Errorf("a yanked version that is locked: %v, said %s", err, &said)
	}

	// uv skips paths out of a wheel.
	img, _, err = w.build(t, fmt.Sprintf(fret, "escaping==1.0"), "main.py", nil)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(w.Store.Rootfs(img.Digest), func(p string, _ fs.DirEntry, err error) error {
		if strings.Contains(p, "escaped") {
			t.Errorf("in the image is %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	// A build from source sees neither the password nor the network.
	img, lock, err = w.build(t, fmt.Sprintf(fret, "curious"), "main.py", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	if out := w.inside(t, img, []string{"PYTHONPATH=/opt/python"}, "/usr/bin/python3", "-S", "-c", "import fretest_curious; print(fretest_curious.seen)"); out != "[]" {
		t.Errorf("its build saw %s", out)
	}
	if p := section[*python.Locked](lock, "pip").Packages[0]; p.Source != "fretest_curious-1.0.tar.gz" || len(p.Hashes) != 1 {
		t.Errorf("locked: %+v", p)
	}
	forged := lockOf("pip", &python.Locked{Request: section[*python.Locked](lock, "pip").Request, Packages: slices.Clone(section[*python.Locked](lock, "pip").Packages)})
	section[*python.Locked](forged, "pip").Packages[0].Hashes = []string{"sha256:" + strings.Repeat("0", 64)}
	var changed *image.PackageError
	if _, _, err := w.build(t, fmt.Sprintf(fret, "curious"), "main.py", forged); !errors.As(err, &changed) || changed.Cause != image.PackageChanged {
		t.Errorf("a source distribution that is not the locked one: %v", err)
	}

	for name, tt := range map[string]struct {
		want  string
		cause image.PackageCause // 0: the template is at fault
	}{
		"unknown":   {"fretest-unknown was not found", 0},
		"locked":    {"401 Unauthorized", image.SiteRefused},
		"forbidden": {"403 Forbidden", image.SiteRefused},
		"limited":   {"429 Too Many Requests", image.SiteBusy},
		"down":      {"503 Service Unavailable", image.SiteDown},
		"lying":     {"Hash mismatch", image.PackageChanged},
		"short":     {"fretest", image.SiteDown},
		"mac":       {"macosx_11_0_arm64", 0},
		"broken":    {"no header of fretest.h", image.PackageUnbuilt},
		"impostor":  {"fretest-impostor", image.PackageBad},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.build(t, fmt.Sprintf(fret, name+"==1.0"), "main.py", nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			var e *image.PackageError
			var placed template.Errors
			if errors.As(err, &e) != (tt.cause != 0) || e != nil && e.Cause != tt.cause || errors.As(err, &placed) != (tt.cause == 0) {
				t.Errorf("got %+v, want the cause %d", e, tt.cause)
			}
			if err != nil {
				t.Log(err)
				said.WriteString(err.Error())
			}
		})
	}
	if strings.Contains(said.String(), password) {
		t.Errorf("the password was said: %s", &said)
	}
	kept := filepath.Dir(w.Store.Dir())
	err = filepath.WalkDir(kept, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.ModTime().Before(began) {
			return err
		}
		text, err := os.ReadFile(p)
		if bytes.Contains(text, []byte(password)) {
			t.Errorf("the password is in %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestIndexNamed takes the packages that the template assigns to a named index from this index
// only, as a wheel and built from source. The index's password stays secret.
func TestIndexNamed(t *testing.T) {
	w := newWorkshop(t)
	x := newIndex(t)
	settings := w.Settings
	defer func() { w.Settings = settings }()
	w.Settings = settings.With(install.PipSettings{Env: image.SettingsOf[install.PipSettings](settings).Env, Indexes: map[string]string{"team": strings.Replace(x.server.URL, "//", "//me:"+password+"@", 1) + "/simple", "other": "https://other.example/simple"}})
	var said strings.Builder
	var mu sync.Mutex
	w.report = func(e image.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(&said).Encode(e); err != nil {
			t.Error(err)
		}
	}
	const fret = "id: f\nbase: python\npackages:\n  pip: [six==1.16.0, Fretest_Good==1.0, fretest-curious]\n  pip_index: {fretest.good: %s, fretest-curious: team}\n"
	img, lock, err := w.build(t, fmt.Sprintf(fret, "team"), "main.py", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	if diff := cmp.Diff(map[string]string{"fretest-good": "team", "fretest-curious": "team"}, section[*python.Locked](lock, "pip").Index); diff != "" {
		t.Errorf("locked: -want +got:\n%s", diff)
	}
	out := w.inside(t, img, []string{"PYTHONPATH=/opt/python"}, "/usr/bin/python3", "-S", "-c",
		"import six, fretest_good, fretest_curious; print(six.__version__, fretest_good.answer, fretest_curious.seen)")
	if out != "1.16.0 42 []" {
		t.Errorf("printed %q", out)
	}
	if x.asked["six"] || !x.asked["fretest-good"] || !x.asked["fretest-curious"] {
		t.Errorf("the named index was asked for %v", slices.Sorted(maps.Keys(x.asked)))
	}

	// The package has another index now: the lock does not match.
	_, _, err = w.build(t, fmt.Sprintf(fret, "nobodys"), "main.py", lock)
	var placed template.Errors
	if !errors.As(err, &placed) || placed[0].Line != 5 || !strings.Contains(placed[0].Message, `no package index "nobodys" (known: other, team)`) {
		t.Errorf("an index that the configuration has not: %v", err)
	}
	_, _, err = w.build(t, "id: f\nbase: python\npackages:\n  pip: [fretest-locked]\n  pip_index: {fretest-locked: team}\n", "main.py", nil)
	if err == nil || !strings.Contains(err.Error(), `asked index: "team"; the index may need other credentials`) {
		t.Errorf("an index that refuses: %v", err)
	}
	_, _ = fmt.Fprint(&said, err)
	if strings.Contains(said.String(), password) {
		t.Errorf("the password was said: %s", &said)
	}
}
