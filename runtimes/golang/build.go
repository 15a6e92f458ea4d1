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

	"github.com/fre-engine/fre"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// Builds says that code with Go files is built; other code is none of this
// runtime's.
func (Runtime) Builds(_ *image.Template, _ []string) (string, bool) {
	return toolchain.Version + " " + libraryVersion(), true
}

// libraryVersion names what functions are linked with.
func libraryVersion() string {
	files := fre.FunctionModule()
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_, _ = fmt.Fprintf(h, "%s %d\n%s", name, len(files[name]), files[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// BuildCode compiles the handler to a static program and returns a directory that
// holds it beside the code's other files.
func (r Runtime) BuildCode(ctx context.Context, s *image.Step, t *image.Template, _ *image.Lock, source string) (string, error) {
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

	s.Report(image.Event{Step: "code", Name: t.ID, Message: "go build"})
	if words, err := compile(ctx, s, b, goroot, workspace, dir); err != nil {
		return "", buildFault(err, t, words)
	}
	if err := pinned(b, workspace); err != nil {
		return "", err
	}
	if err := strip(root); err != nil {
		return "", err
	}
	if err := root.Mkdir(programDir, 0o755); err != nil {
		return "", err
	}
	top, err := b.Open(".")
	if err != nil {
		return "", err
	}
	defer func() { _ = top.Close() }()
	return filepath.Join(b.Dir, "src"), top.Rename("program", path.Join("src", program(t)))
}

// lacking is how the go command says that modules are not in its cache.
var lacking = regexp.MustCompile(`GOPROXY=off|verifying (module|go\.mod)|dial (tcp|udp)`)

// compile builds the program. Modules that are not in the cache are fetched in a
// step of their own, since the assembler includes any file that the source or a
// module names: where it runs there is neither a network, nor a file or a variable
// that opens package sites.
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
	if s.Settings.Netrc != "" { // go looks for it in its home directory
		text, err := os.ReadFile(s.Settings.Netrc)
		if err != nil {
			return "", err
		}
		if err := b.Write(".netrc", text); err != nil {
			return "", err
		}
	}
	words, err = run(true, s.Settings.GoEnv, "list", "-deps", "-f", `{{""}}`)
	if err := b.Write(".netrc", nil); err != nil {
		return "", err
	}
	if err != nil {
		return words, err
	}
	return build()
}

// prepare makes a module of the code where it is none, wraps its handler, and
// puts the library beside it. It returns what GOWORK has to be and the directory to
// build. A vendor directory that has the library is taken as it is.
func prepare(b *install.Bench, root *os.Root, t *image.Template) (workspace, dir string, err error) {
	module := "function/" + t.ID
	switch text, err := root.ReadFile("go.mod"); {
	case errors.Is(err, fs.ErrNotExist):
		if err := root.WriteFile("go.mod", fmt.Appendf(nil, "module %s\n\ngo %s\n", module, toolchain.Version), 0o644); err != nil {
			return "", "", err
		}
	case err != nil:
		return "", "", image.FileFault("go.mod", err)
	default:
		m := moduleLine.FindSubmatch(text)
		if m == nil {
			return "", "", &image.FieldError{Field: "code.path", Message: "go.mod: no module line: write one such as module " + module}
		}
		module = string(m[1])
		// The workspace has the library, whatever version editors were told of.
		if err := root.WriteFile("go.mod", libraryLine.ReplaceAll(text, nil), 0o644); err != nil {
			return "", "", err
		}
	}
	if module == fre.ModulePath || strings.HasPrefix(module, fre.ModulePath+"/function") {
		return "", "", &image.FieldError{Field: "code.path", Message: "go.mod: the module " + module + " is FRE's own: name it otherwise"}
	}
	if dir, err = wrap(root, module, t.Handler, t.Contract); err != nil {
		return "", "", err
	}
	if vendored, err := root.ReadFile("vendor/modules.txt"); err == nil && strings.Contains(string(vendored), "# "+fre.ModulePath+" ") {
		return "off", dir, nil
	}
	for name, text := range fre.FunctionModule() {
		name = path.Join("fre", name)
		if err := os.MkdirAll(filepath.Join(b.Dir, path.Dir(name)), 0o755); err != nil {
			return "", "", err
		}
		if err := b.Write(name, text); err != nil {
			return "", "", err
		}
	}
	work := fmt.Sprintf("go %s\n\nuse (\n\t./src\n\t./fre\n)\n", toolchain.Version)
	return "/work/go.work", dir, b.Write("go.work", []byte(work))
}

// pinned refuses a build with modules that go.sum does not hold: in a workspace the
// go command takes them, if the checksum database knows them, and notes them in
// go.work.sum. Lines of go.mod files alone are about modules that are not linked.
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
	return &image.FieldError{Field: "code.path", Message: fmt.Sprintf(
		"go.sum does not hold %s: run go get %s beside go.mod, which writes go.sum", strings.Join(missing, ", "), strings.ReplaceAll(missing[0], " ", "@"))}
}

// moduleLine is the module directive of a go.mod (go.dev/ref/mod#go-mod-file-module).
var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+"?([^\s"]+)"?[ \t]*(?://.*)?$`)

// libraryLine requires or replaces FRE's module in a go.mod.
var libraryLine = regexp.MustCompile(`(?m)^[ \t]*(?:(?:require|replace)[ \t]+)?` + regexp.QuoteMeta(fre.ModulePath) + `[ \t]+(?:v|=>).*$`)

// strip removes from the code what only the compiler reads, and directories that
// are empty then. The rest is the function's to open: pages, fonts, certificates.
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
		_ = root.Remove(dir) // fails on those that hold something
	}
	return err
}

// maxFaults are the lines of the compiler's that are told.
const maxFaults = 20

// ofModule are the go command's words about fetching a module:
//
//	go: example.org/a@v1.0.0: reading https://proxy.example.org/example.org/a/@v/v1.0.0.mod: 404 Not Found
//		server response: not found
//	main.go:4:2: verifying example.org/a@v1.0.0: checksum mismatch
//		downloaded: h1:…
//		go.sum:     h1:…
var ofModule = regexp.MustCompile(`(?m)([A-Za-z0-9][A-Za-z0-9._~/-]*)@(v[0-9][A-Za-z0-9.+_-]*)(?:/go\.mod)?: .+(?:\n[ \t]+.+)*`)

// moduleFault is the error of the first module that cannot be had, or is not what
// go.sum says; nil where the words are of something else.
func moduleFault(err error, words string) error {
	for _, m := range ofModule.FindAllStringSubmatch(words, -1) {
		lines := install.Lines(m[0], func(string) bool { return false })
		fault := install.PackageFailed(err, "go", strings.Join(lines, "\n"), nil)
		var e *image.PackageError
		if errors.As(fault, &e) {
			e.Package = m[1] + " " + m[2]
			return e
		}
		if errors.Is(fault, unix.ENOSPC) {
			return fault
		}
	}
	if m := badZip.FindStringSubmatch(words); m != nil {
		return &image.PackageError{Site: "go", Cause: image.PackageBad, Message: "the module that " + m[1] + " imports: " + m[2]}
	}
	return nil
}

// badZip is what the go command says of an archive that is none: not of which module,
// but where it is imported.
var badZip = regexp.MustCompile(`(?m)^(\S+\.go:\d+:\d+): (zip: .+)$`)

// buildFault makes the go command's words the fault of what they are about.
func buildFault(err error, t *image.Template, words string) error {
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
	case strings.Contains(words, "missing go.sum entry"), strings.Contains(words, "updates to go.mod needed"), strings.Contains(words, "no required module"):
		words += "\n(run go get beside go.mod: the build changes neither go.mod nor go.sum)"
	}
	return install.Failed(err, field, words)
}

// newer are words about a module that asks for a newer Go.
var newer = regexp.MustCompile(`requires go >= ([0-9.a-z]+)`)

// unreachable are words about the way to the modules, not about the code.
var unreachable = regexp.MustCompile(`(?i)dial tcp|no such host|connection refused|i/o timeout|TLS handshake|certificate|\b(401|403|407|429|5\d\d) |no space left|out of memory`)
