package system_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// function is a template of the tests: code is a directory below testdata, yaml the part of
// fret.yaml after id, version and code.
type function struct{ name, code, yaml string }

// functions lists the functions that the tests deploy, besides templates/.
var functions = []function{
	{"probe", "probe", "base: python\ninstances: {concurrency: 8, max: 2}\nresources: {memory: 512MiB, timeout: 120s}\n"},
	{"narrow", "probe", "base: python\ninstances: {concurrency: 1, max: 2}\n"},
	{"crowd", "probe", "base: python\ninstances: {concurrency: 64, max: 32}\n"},
	{"kept", "probe", "base: python\ninstances: {min: 1, max: 2, idle: 1s}\n"},
	{"brief", "probe", "base: python\ninstances: {idle: 1s}\n"},
	{"patient", "probe", "base: python\ninstances: {isolation: event}\nresources: {timeout: 120s}\n"},
	{"unforked", "probe", "base: python\ninstances: {fork: never}\n"},
	{"red-one", "probe", "base: python\ntenant: red\n"},
	{"red-two", "probe", "base: python\ntenant: red\n"},
	{"blue", "probe", "base: python\ntenant: blue\n"},
	{"chaos", "chaos", "base: python\ninstances: {isolation: event}\nresources: {memory: 64MiB, pids: 32, files: 64, tmp: 4MiB, timeout: 5s}\n"},
	{"unloadable", "chaos", "base: python\nhandler: unloadable.handle\n"},
	{"flood", "chaos", "base: python\nresources: {timeout: 120s}\n"},
	{"sockets", "sockets", "base: node\nruntime: http\nhandler: node server.js\npackages: {npm: [ws@8.18.0]}\ninstances: {concurrency: 16, max: 1}\n"},
	{"calls", "calls", "base: python\nhandler: main.handle\n"},
	{"calls-async", "calls", "base: python\nhandler: main.handle_async\ninstances: {concurrency: 4}\n"},
	{"calls-slow", "calls", "base: python\nhandler: main.handle\ntenant: slow\ninstances: {concurrency: 32}\n"},
	{"calls-node", "calls-node", "base: node\nhandler: main.handle\ninstances: {isolation: event}\n"},
	{"calls-lambda", "calls-contracts", "base: python\ncontract: lambda\nlambda: {event: http}\nhandler: main.handler\n"},
	{"calls-lambda-node", "calls-contracts", "base: node\ncontract: lambda\nlambda: {event: http}\n"},
	{"calls-asgi", "calls-contracts", "base: python\ncontract: asgi\ninstances: {concurrency: 16}\n"},
	{"calls-wsgi", "calls-contracts", "base: python\ncontract: wsgi\nhandler: main.wsgi\n"},
	{"shell", "shell", "base: native\nhandler: shell.sh\nresources: {memory: 32MiB, pids: 16, timeout: 5s}\n"},
	{"shell-flood", "shell", "base: native\nhandler: shell.sh\nresources: {memory: 32MiB, pids: 16, timeout: 120s}\n"},
}

// qualified returns the function's qualified name.
func (f function) qualified() string {
	if _, rest, ok := strings.Cut(f.yaml, "tenant: "); ok {
		tenant, _, _ := strings.Cut(rest, "\n")
		return f.name + "." + tenant
	}
	return f.name
}

// write makes the template's directory below dir and returns it.
func (f function) write(t testing.TB, dir string) string {
	t.Helper()
	dst := filepath.Join(dir, f.name)
	if err := f.writeTo(dst); err != nil {
		t.Fatal(err)
	}
	return dst
}

func (f function) writeTo(dst string) error {
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(dst, "src"), os.DirFS(filepath.Join("testdata", f.code))); err != nil {
		return err
	}
	yaml := "id: " + f.name + "\nversion: 1.0.0\ncode: {path: src}\n" + f.yaml
	return os.WriteFile(filepath.Join(dst, "fret.yaml"), []byte(yaml), 0o644)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// templates copies the directories of templates/ below dir and returns the copies, so that lock
// files stay out of the source tree.
func templates(t testing.TB, dir string) []string {
	t.Helper()
	sources, err := filepath.Glob("../../templates/*/fret.yaml")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	var copies []string
	for _, path := range sources {
		src := filepath.Dir(path)
		abs, err := filepath.Abs(src)
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(dir, filepath.Base(src))
		if os.Getenv("FRE_SYSTEM_STATE") != "" { // without builds, the test's files are enough
			err = os.CopyFS(dst, os.DirFS(abs))
		} else {
			err = testdaemon.CopyTemplate(t.Context(), abs, dst)
		}
		if err != nil {
			t.Fatal(err)
		}
		copies = append(copies, dst)
	}
	return copies
}

// ref is the image reference that a template's fret.yaml gives: "id:version".
func ref(t testing.TB, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "fret.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"version": "latest"}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			values[key] = strings.TrimSpace(value)
		}
	}
	return values["id"] + ":" + values["version"]
}
