package system_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// testBadBuild: a build of a wrong template or an unknown package fails with a clear message.
func (w *world) testBadBuild(t *testing.T) {
	images := w.cli(t, "images", "-q")
	for _, c := range []struct {
		name, yaml string
		want       []string // in the message
		offline    bool     // the build fails before any download
	}{
		{"unknown key", "id: bad\nbase: python\nnonsense: 1\n", []string{"fret.yaml:3:1", "nonsense"}, true},
		{"wrong type", "id: bad\nbase: python\ninstances: {max: many}\n", []string{"fret.yaml:3:", "max", "many"}, true},
		{"bad unit", "id: bad\nbase: python\nresources:\n  memory: 12XB\n", []string{"fret.yaml:4:", "memory: 12XB"}, true},
		{"no YAML", "id: [\n", []string{"fret.yaml:"}, true},
		{"unknown base", "id: bad\nbase: cobol\n", []string{"fret.yaml:2:", "cobol", "python"}, true},
		{"packages for another base", "id: bad\nbase: python\npackages: {maven: [\"a:b:1\"]}\n", []string{"fret.yaml:3:", "packages.maven needs the base java"}, true},
		{"unknown pip package", "id: bad\nbase: python\npackages: {pip: [fre-has-no-such-package]}\n", []string{"fret.yaml:3:17", "fre-has-no-such-package was not found in the package registry"}, false},
		{"unknown pip version", "id: bad\nbase: python\npackages: {pip: [lxml==999.0]}\n", []string{"fret.yaml:3:17", "there is no version of lxml==999.0"}, false},
		{"unknown npm package", "id: bad\nbase: node\npackages: {npm: [fre-has-no-such-package]}\n", []string{"fret.yaml:3:17", "404", "'fre-has-no-such-package@*' is not in this registry"}, false},
		{"unknown npm version", "id: bad\nbase: node\npackages: {npm: [\"js-yaml@999.0.0\"]}\n", []string{"fret.yaml:3:17", "No matching version found for js-yaml@999.0.0"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.offline {
				w.needsNetwork(t)
			}
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "fret.yaml"), c.yaml)
			writeFile(t, filepath.Join(dir, "main.py"), "def handle(event, context): pass\n")
			w.refused(t, c.want, "deploy", dir, "--name", "bad")
			a, err := w.call(t.Context(), "bad", "", "")
			if err != nil || a.Status != 404 {
				t.Errorf("the function that could not be built: got %+v, error %v, want 404", a, err)
			}
		})
	}
	t.Run("hash mismatch", w.testHashMismatch)
	t.Run("disk full", w.testDiskFull)
	// Builds may add a base environment, but remove no image.
	now := strings.Fields(w.cli(t, "images", "-q"))
	for image := range strings.FieldsSeq(images) {
		if !slices.Contains(now, image) {
			t.Errorf("image %s is gone after builds that failed", image)
		}
	}
	w.healthy(t)
}

// testHashMismatch changes a hash in the lock file of a finished build and builds again. The build
// fails because the download does not match the lock, although the store holds the package under
// the right hash.
func (w *world) testHashMismatch(t *testing.T) {
	w.needsNetwork(t)
	for _, c := range []struct {
		name, yaml, was, forged string
		want                    []string
	}{
		{
			"pip", "base: python\npackages: {pip: [toml==0.10.2]}\n", `sha256:[0-9a-f]{64}`, "sha256:" + strings.Repeat("0", 64),
			[]string{"Hash mismatch for `toml==0.10.2`", "sha256:" + strings.Repeat("0", 64), "fret.lock"},
		},
		{
			"npm", "base: node\npackages: {npm: [js-yaml@4.1.0]}\n", `sha512-[A-Za-z0-9+/]{8}`, "sha512-AAAAAAAA",
			[]string{"EINTEGRITY", "want AAAAAAAA", "fret.lock"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "fret.yaml"), "id: forged\n"+c.yaml)
			writeFile(t, filepath.Join(dir, "main.py"), "def handle(event, context): pass\n")
			writeFile(t, filepath.Join(dir, "index.js"), "exports.handle = async () => null;\n")
			w.cli(t, "build", dir)
			path := filepath.Join(dir, "fret.lock")
			lock, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			forged := regexp.MustCompile(c.was).ReplaceAllString(string(lock), c.forged)
			if forged == string(lock) {
				t.Fatalf("no hash in the lock file:\n%s", lock)
			}
			writeFile(t, path, forged)
			w.refused(t, c.want, "deploy", dir, "--name", "forged")
			if a, err := w.call(t.Context(), "forged", "", ""); err != nil || a.Status != http.StatusNotFound {
				t.Errorf("the function that could not be built: got %+v, error %v, want 404", a, err)
			}
			w.cli(t, "image", "rm", "forged")
		})
	}
}

// testDiskFull: a build on a full file system fails with the reason, and succeeds once the disk has
// room.
func (w *world) testDiskFull(t *testing.T) {
	w.needsNetwork(t)
	small := filepath.Join(w.dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("fre-test", small, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	d := daemontest.Start(t, testdaemon.Config{
		Bin: w.bin, State: filepath.Join(small, "state"), Socket: filepath.Join(w.dir, "small.sock"), Log: w.log,
	})
	t.Cleanup(func() { daemontest.Stop(t, d) })
	shell := functions[slices.IndexFunc(functions, func(f function) bool { return f.name == "shell" })]
	dir := shell.write(t, t.TempDir())
	out, err := d.CLI(t.Context(), "deploy", dir)
	checkRefused(t, out, err, []string{"no space left"})
	if out, err := d.CLI(t.Context(), "functions", "-q"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("functions after a build that failed: got %q, error %v, want none", out, err)
	}
	if err := unix.Mount("fre-test", small, "tmpfs", unix.MS_REMOUNT, "size=1g"); err != nil {
		t.Fatal(err)
	}
	if out, err := d.CLI(t.Context(), "deploy", dir); err != nil {
		t.Errorf("with room again: %v\n%s", err, out)
	}
}

// testLeaks compares the engine's file descriptors and goroutines after equal loads. Pools grow
// with the first loads and then stop; a leak grows with each load.
func (w *world) testLeaks(t *testing.T) {
	load := func() {
		for range 5 {
			w.all(t, 8, "chaos", "/well", "")
			w.all(t, 8, "probe", "/echo", "x")
			w.all(t, 8, "shell", "/well", "")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = w.call(ctx, "patient", "/slow", "100") // cancelled
			}()
			until(t, w.busy("patient"))
			cancel()
			<-done
			w.untilGone(t, "patient")
		}
		w.untilGone(t, "chaos")
		w.untilGone(t, "shell")
		w.client.CloseIdleConnections()
	}
	// settled returns the lowest counts within three seconds, because background work ends
	// meanwhile. It returns early once the counts are within the given bounds.
	settled := func(mostFDs, mostGoroutines int) (fds, goroutines int) {
		fds, goroutines = w.holds(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_ = testdaemon.Until(ctx, func() error {
			if fds <= mostFDs && goroutines <= mostGoroutines {
				return nil
			}
			f, g := w.holds(t)
			fds, goroutines = min(fds, f), min(goroutines, g)
			return errors.New("there are more")
		})
		return fds, goroutines
	}
	load()
	fds, goroutines := settled(0, 0)
	for range 6 {
		load()
		f, g := settled(fds, goroutines)
		if f <= fds && g <= goroutines {
			return
		}
		t.Logf("%d file descriptors and %d goroutines, %d and %d after the load before", f, g, fds, goroutines)
		fds, goroutines = max(f, fds), max(g, goroutines)
	}
	t.Error("the engine holds more after each load")
}

// holds counts the engine's file descriptors and goroutines.
func (w *world) holds(t testing.TB) (fds, goroutines int) {
	t.Helper()
	// An idle connection of the test is no leak.
	w.client.CloseIdleConnections()
	once := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := once.Get(w.d.URL("/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(strings.NewReader(readAll(t, resp)))
	number := regexp.MustCompile(`^go_goroutines (\d+)`)
	for lines.Scan() {
		if m := number.FindStringSubmatch(lines.Text()); m != nil {
			if goroutines, err = strconv.Atoi(m[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if goroutines == 0 {
		t.Fatal("GET /metrics: no go_goroutines")
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries), goroutines
}
