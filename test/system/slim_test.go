package system_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testSlim: a slimmed image holds the files that the function opens, and the function answers as
// before, errors and parked interpreters included. If an answer differs, the engine refuses the
// slimmed image and removes all of it.
func (w *world) testSlim(t *testing.T) {
	w.needsNetwork(t)
	dir := filepath.Join(t.TempDir(), "slimmed")
	write := func(files map[string]string) {
		t.Helper()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.cli(t, "new", "python", dir)
	write(map[string]string{
		"main.py": `import os

def handle(event, context):
    path = event.path
    if path == "/fail":
        raise ValueError("no such colour")
    if path == "/late":
        import csv
    if path == "/outside":
        for name in "/proc/1/root/etc/shadow", "/work/../etc/shadow", "/proc/self/fd/../../../root/usr/bin/dash":
            try:
                open(name).close()
            except OSError:
                pass
    return {"zones": os.path.exists("/usr/share/zoneinfo/zone.tab") if path == "/looks" else None}
`,
		"test/event.json": `{"path": "/outside"}`, "test/expect.json": `{"body_json": {"zones": null}}`,
	})
	if out := w.cli(t, "image", "slim", "--trace", dir, "--dry-run"); !strings.Contains(out, "  usr/lib/python3") {
		t.Errorf("a dry run lists nothing of Python's library:\n%s", out)
	}
	if out := w.cli(t, "image", "slim", "--trace", dir); !strings.HasPrefix(out, "slimmed:0.1.0-slim ") {
		t.Errorf("fre image slim says %q", out)
	}
	write(map[string]string{
		"test/fail.event.json": `{"path": "/fail"}`, "test/fail.expect.json": `{"error": "ValueError"}`,
		"test/late.event.json": `{"path": "/late"}`, "test/late.expect.json": `{"error": "ModuleNotFoundError"}`,
	})
	w.cli(t, "deploy", "--image", "slimmed:0.1.0-slim")
	w.cli(t, "test", dir, "--function", "slimmed")
	until(t, func() error { // interpreters started ahead have their files as well
		if out := w.cli(t, "function", "inspect", "slimmed", "--format", "{{.ParkedInterpreters.Ready}}"); strings.TrimSpace(out) == "0" {
			return errors.New("no interpreter is parked")
		}
		return nil
	})
	w.cli(t, "deploy", "--image", "slimmed:0.1.0-slim")
	w.cli(t, "test", dir, "--function", "slimmed")
	w.cli(t, "deploy", "--image", "slimmed:0.1.0") // back to the whole image
	w.cli(t, "function", "rm", "slimmed")

	// `--keep` keeps files of the original image.
	write(map[string]string{"test/late.expect.json": `{"any_body": true}`})
	w.cli(t, "image", "slim", "--trace", dir, "--run", "event", "--keep", "usr/lib/python3*/csv.py", "--keep", "usr/lib/python3*/io.py", "-t", "slimmed:kept")
	w.cli(t, "image", "rm", "slimmed:kept")

	// The trace does not record a file that the function only looks at.
	write(map[string]string{"test/looks.event.json": `{"path": "/looks"}`, "test/looks.expect.json": `{"any_body": true}`})
	w.cli(t, "build", dir)
	before := w.cli(t, "images", "-q")
	w.refused(t, []string{"the slimmed image answers looks differently from the original image", "--keep"}, "image", "slim", "--trace", dir, "--run", "looks")
	if after := w.cli(t, "images", "-q"); after != before {
		t.Errorf("images before:\n%safter a refusal:\n%s", before, after)
	}
	w.cli(t, "image", "slim", "--trace", dir, "--run", "looks", "--keep", "usr/share/zoneinfo/zone.tab")

	// A Java runtime stays whole. The order of an answer's members may differ.
	java := filepath.Join(t.TempDir(), "java-slim")
	w.cli(t, "new", "java", java)
	if out := w.cli(t, "image", "slim", "--trace", java, "--dry-run"); strings.Contains(out, "usr/lib/java/") || !strings.Contains(out, "usr/bin/dash") {
		t.Errorf("what a dry run lists of Java's:\n%s", out)
	}
	w.cli(t, "image", "slim", "--trace", java)
}
