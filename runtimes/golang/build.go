package golang

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// Builds returns true: every function of this runtime is compiled. toolchain names the versions of
// Go and of the library.
func (Runtime) Builds(_ *template.Template, _ []string) (string, bool) {
	return toolchain.Version + " " + libraryVersion(), true
}

// libraryVersion identifies the library that functions are linked with.
func libraryVersion() string {
	files := library()
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_, _ = fmt.Fprintf(h, "%s %d\n%s", name, len(files[name]), files[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Module paths of the library. Until it had a module of its own, the library was a part of
// formerModule, and go.mod files of older functions require formerModule. All imports of functions
// begin with libraryModule since the first version.
const (
	libraryModule = "github.com/fre-engine/fre/function"
	formerModule  = "github.com/fre-engine/fre"
)

// library returns the files of libraryModule, without its tests: path → content.
func library() map[string][]byte {
	files := map[string][]byte{}
	err := fs.WalkDir(function.Module, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		files[p], err = function.Module.ReadFile(p)
		return err
	})
	if err != nil {
		panic(err) // impossible: the files are part of the program
	}
	return files
}

// BuildCode compiles the handler to a static program and returns a directory with the program and
// the code's remaining files.
func (r Runtime) BuildCode(ctx context.Context, s *image.Step, t *template.Template, _ *image.Lock, source string) (string, error) {
	goroot, err := toolchain.Fetch(ctx, s, r.Tools)
	if err != nil {
		return "", fmt.Errorf("toolchain of the runtime go: %w", err)
	}
	b, err := install.NewBench(s)
	if err != nil {
		return "", err
	}
	if err := os.Rename(source, filepath.Join(b.Dir, "src")); err != nil {
		return "", err
	}
	root, err := b.Open("src")
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	workspace, dir, err := prepare(b, root, t)
	if err != nil {
		return "", err
	}

	s.Report(image.Progress{Step: "code", Name: t.ID, Message: "go build"})
	if words, err := compile(ctx, s, b, goroot, workspace, dir); err != nil {
		return "", buildFault(err, t, words)
	}
	if err := pinned(b, workspace); err != nil {
		return "", err
	}
	if err := errors.Join(strip(root), root.Mkdir(programDir, 0o755)); err != nil {
		return "", err
	}
	top, err := b.Open(".")
	if err != nil {
		return "", err
	}
	defer func() { _ = top.Close() }()
	return filepath.Join(b.Dir, "src"), top.Rename("program", path.Join("src", program(t)))
}

// lacking matches the go command's messages about modules outside the cache.
var lacking = regexp.MustCompile(`GOPROXY=off|verifying (module|go\.mod)|dial (tcp|udp)`)

// compile builds the program. A separate step fetches missing modules, because the assembler
// includes any file that the source or a module names: the compiling step has neither a network nor
// files or variables with access to package sites.
func compile(ctx context.Context, s *image.Step, b *install.Bench, goroot, workspace, dir string) (words string, err error) {
	run := func(network bool, env []string, verb string, args ...string) (string, error) {
		return b.Run(ctx, install.Tool{
			Rootfs: s.Rootfs, Cache: "go", Program: goroot, Network: network,
			Env: append([]string{
				"GOROOT=/function", "GOENV=off", "GOTOOLCHAIN=local", "GOTELEMETRY=off", "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=", "GOWORK=" + workspace,
				"GOMODCACHE=/run/mod", "GOCACHE=/run/build", "GOPATH=/tmp/go",
			}, env...),
			Args: slices.Concat([]string{"/function/bin/go", verb, "-C", "/work/src"}, args, []string{"./" + dir}),
		})
	}
	build := func() (string, error) {
		return run(false, []string{"GOPROXY=off"}, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", "/work/program")
	}
	var exit *image.ExitError
	if words, err = build(); !errors.As(err, &exit) || !lacking.MatchString(words) {
		return words, err
	}
	settings := image.SettingsOf[Settings](s.Settings)
	if settings.Netrc != "" { // go looks for .netrc in the home directory
		text, err := os.ReadFile(settings.Netrc)
		if err != nil {
			return "", err
		}
		if err := b.Write(".netrc", text); err != nil {
			return "", err
		}
	}
	words, err = run(true, settings.Env, "list", "-deps", "-f", `{{""}}`)
	if err := b.Write(".netrc", nil); err != nil {
		return "", err
	}
	if err != nil {
		return words, err
	}
	return build()
}

// prepare makes a module of code without go.mod, wraps the handler, and puts the library beside it,
// joined by a workspace (go.dev/ref/mod#workspaces). It returns the value of GOWORK and the
// directory to build. Code with a vendor directory that holds the library is built without a
// workspace.
func prepare(b *install.Bench, root *os.Root, t *template.Template) (workspace, dir string, err error) {
	vendored := vendors(root)
	module, err := prepareModule(root, "function/"+t.ID, vendored)
	if err != nil {
		return "", "", err
	}
	if module == formerModule || strings.HasPrefix(module, libraryModule) {
		return "", "", &template.FieldError{Field: "code.path", Message: "go.mod: the module " + module + " is FRE's own: choose another module name"}
	}
	if dir, err = wrap(root, module, t.Handler, t.Contract); err != nil {
		return "", "", err
	}
	if vendored {
		return "off", dir, nil
	}
	files := map[string][]byte{
		"go.work": fmt.Appendf(nil, "go %s\n\nuse (\n\t./src\n\t./library\n\t./former\n)\n", toolchain.Version),
		// A module that the code requires may require formerModule itself.
		"former/go.mod": []byte("module " + formerModule + "\n"),
	}
	for name, text := range library() {
		files[path.Join("library", name)] = text
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Join(b.Dir, path.Dir(name)), 0o755); err != nil {
			return "", "", err
		}
		if err := b.Write(name, text); err != nil {
			return "", "", err
		}
	}
	return "/work/go.work", dir, nil
}

// prepareModule returns the path of the code's module. Code without go.mod becomes the module
// fallback.
func prepareModule(root *os.Root, fallback string, vendored bool) (module string, err error) {
	text, err := root.ReadFile("go.mod")
	if errors.Is(err, fs.ErrNotExist) {
		return fallback, root.WriteFile("go.mod", fmt.Appendf(nil, "module %s\n\ngo %s\n", fallback, toolchain.Version), 0o644)
	}
	if err != nil {
		return "", image.FileFault("go.mod", err)
	}
	m := moduleLine.FindSubmatch(text)
	if m == nil {
		return "", &template.FieldError{Field: "code.path", Message: "go.mod: no module line: write for example module " + fallback}
	}
	if !vendored { // vendor/modules.txt must agree with go.mod
		// The workspace provides the library; go.mod's version serves editors only.
		err = root.WriteFile("go.mod", libraryLine.ReplaceAll(text, nil), 0o644)
	}
	return string(m[1]), err
}

// vendors reports whether the code has a vendor directory that holds the library.
func vendors(root *os.Root) bool {
	text, err := root.ReadFile("vendor/modules.txt")
	return err == nil && (strings.Contains(string(text), "# "+libraryModule+" ") || strings.Contains(string(text), "# "+formerModule+" "))
}

// pinned refuses a build with modules that go.sum does not hold. In a workspace the go command
// accepts such modules, if the checksum database knows them, and records them in go.work.sum. A
// module with only a go.mod line there is not linked.
func pinned(b *install.Bench, workspace string) error {
	if workspace == "off" {
		return nil
	}
	text, err := b.Read("go.work.sum")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var missing []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && !strings.HasSuffix(f[1], "/go.mod") {
			missing = append(missing, f[0]+" "+f[1])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &template.FieldError{Field: "code.path", Message: fmt.Sprintf(
		"go.sum lacks %s: run go get %s in the directory of go.mod", strings.Join(missing, ", "), strings.ReplaceAll(missing[0], " ", "@"))}
}

// moduleLine is the module directive of a go.mod (go.dev/ref/mod#go-mod-file-module).
var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+"?([^\s"]+)"?[ \t]*(?://.*)?$`)

// libraryLine requires or replaces libraryModule or formerModule in a go.mod.
var libraryLine = regexp.MustCompile(`(?m)^[ \t]*(?:(?:require|replace)[ \t]+)?` + regexp.QuoteMeta(formerModule) + `(?:/function)?[ \t]+(?:v|=>).*$`)

// strip removes the compiler's inputs from the code, and directories that are empty afterwards. The
// rest stays for the function to open: pages, fonts, certificates.
func strip(root *os.Root) error {
	if err := errors.Join(root.RemoveAll("vendor"), root.RemoveAll(programDir), root.RemoveAll(generatedDir)); err != nil {
		return err
	}
	var dirs []string
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if p != "." {
				dirs = append(dirs, p)
			}
			return nil
		case strings.HasSuffix(p, ".go"), slices.Contains([]string{"go.mod", "go.sum", "go.work", "go.work.sum"}, path.Base(p)):
			return root.Remove(p)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = root.Remove(dir) // fails for a directory with contents
	}
	return err
}

// maxFaults is the number of the compiler's lines in an error.
const maxFaults = 20

// ofModule matches the go command's messages about fetching a module:
//
//	go: example.org/a@v1.0.0: reading https://proxy.example.org/example.org/a/@v/v1.0.0.mod: 404 Not Found
//		server response: not found
//	main.go:4:2: verifying example.org/a@v1.0.0: checksum mismatch
//		downloaded: h1:…
//		go.sum:     h1:…
var ofModule = regexp.MustCompile(`(?m)([A-Za-z0-9][A-Za-z0-9._~/-]*)@(v[0-9][A-Za-z0-9.+_-]*)(?:/go\.mod)?: .+(?:\n[ \t]+.+)*`)

// moduleFault returns the error for the first module that cannot be fetched or differs from go.sum;
// nil if the output has another cause.
func moduleFault(err error, words string) error {
	for _, m := range ofModule.FindAllStringSubmatch(words, -1) {
		lines := install.Lines(m[0], func(string) bool { return false })
		fault := install.PackageFailed(err, "go", strings.Join(lines, "\n"), nil)
		var e *image.PackageError
		if errors.As(fault, &e) {
			e.Package, e.Place, e.Step = m[1]+" "+m[2], "go.mod", moduleSteps[e.Cause]
			return e
		}
		if errors.Is(fault, unix.ENOSPC) {
			return fault
		}
	}
	if m := badZip.FindStringSubmatch(words); m != nil {
		return &image.PackageError{Site: "go", Place: "go.mod", Cause: image.PackageBad, Message: "the module that " + m[1] + " imports: " + m[2]}
	}
	return nil
}

// moduleSteps are the next steps that only modules have: go.sum is their lock.
var moduleSteps = map[image.PackageCause]string{
	image.PackageChanged: "the module was not kept: if the author republished the version, delete the module's lines in go.sum and run go mod tidy; if not, ask the operator of the module proxy",
	image.PackageGone:    "use another version (go get), or set GOPROXY on the engine's host to a proxy with the module, and GOPRIVATE for private modules: builds have no git (docs/go.md)",
}

// badZip matches the go command's message about a broken archive. The message names the importing
// file, not the module.
var badZip = regexp.MustCompile(`(?m)^(\S+\.go:\d+:\d+): (zip: .+)$`)

// buildFault makes an error from the go command's output and attributes it to the module, the code
// or the handler.
func buildFault(err error, t *template.Template, words string) error {
	if fault := moduleFault(err, words); fault != nil {
		return fault
	}
	lines := install.Lines(words, func(l string) bool {
		return strings.HasPrefix(l, "# ") || strings.HasPrefix(l, "go: downloading ")
	})
	if len(lines) > maxFaults {
		lines = append(lines[:maxFaults], "…")
	}
	field := "code.path"
	for _, l := range lines {
		if strings.Contains(l, generated) {
			field = "handler"
			lines = append(lines, fmt.Sprintf("(handler %q must be func(context.Context, function.Event) (any, error), func(http.ResponseWriter, *http.Request), func() http.Handler, or a variable that is an http.Handler)", t.Handler))
			break
		}
	}
	words = strings.ReplaceAll(strings.Join(lines, "\n"), "/work/src/", "")
	if m := newer.FindStringSubmatch(words); m != nil {
		words = fmt.Sprintf("go.mod: the module needs Go %s: FRE compiles with Go %s", m[1], toolchain.Version)
	}
	switch {
	case unreachable.MatchString(words):
		field = ""
	case strings.Contains(words, "package "+formerModule+"/channel"):
		words += "\n(import " + libraryModule + "/channel: the package has moved)"
	case strings.Contains(words, "missing go.sum entry"), strings.Contains(words, "updates to go.mod needed"), strings.Contains(words, "no required module"):
		words += "\n(run go get beside go.mod: the build changes neither go.mod nor go.sum)"
	}
	return install.Failed(err, field, words)
}

// newer matches the message about a module that requires a newer Go.
var newer = regexp.MustCompile(`requires go >= ([0-9.a-z]+)`)

// unreachable matches messages about the network or the host, not about the code.
var unreachable = regexp.MustCompile(`(?i)dial tcp|no such host|connection refused|i/o timeout|TLS handshake|certificate|\b(401|403|407|429|5\d\d) |no space left|out of memory`)
