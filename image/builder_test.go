package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// tinyArchive is an archive of packages with one file each, and a shell.
type tinyArchive struct {
	unpacks atomic.Int64
	block   chan struct{} // if not nil, Unpack waits for it or for ctx
	entered chan struct{} // if not nil, notified when Unpack begins
}

func (a *tinyArchive) Codename() string { return "tiny" }

func (a *tinyArchive) Resolve(_ context.Context, roots, exclude []string) ([]debian.Package, error) {
	var list []debian.Package
	for _, name := range roots {
		if name == "of-another-release" {
			return nil, debian.ErrUnresolved
		}
		if !slices.Contains(exclude, name) {
			list = append(list, debian.Package{Name: name, Version: "1.0-1", Architecture: "all", InstalledSize: 1000, SHA256: tinySum(name)})
		}
	}
	return list, nil
}

func (a *tinyArchive) ResolveOver(ctx context.Context, requests []string, installed map[string]string, exclude []string) ([]debian.Package, error) {
	list, err := a.Resolve(ctx, requests, exclude)
	return slices.DeleteFunc(list, func(p debian.Package) bool { return installed[p.Name] != "" }), err
}

func (a *tinyArchive) ResolveLibraries(ctx context.Context, sonames []string, installed map[string]string, exclude []string, _ func(string) bool) ([]debian.Package, error) {
	return a.ResolveOver(ctx, sonames, installed, exclude)
}

func (a *tinyArchive) Find(_ context.Context, name, version string) (debian.Package, error) {
	return debian.Package{Name: name, Version: version, Architecture: "all", SHA256: tinySum(name)}, nil
}

func tinySum(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func (a *tinyArchive) Extract(_ context.Context, p debian.Package, w debian.Writer, _ func(string) bool) ([]string, error) {
	return nil, w.File(p.Name, 0o644, time.Unix(1e9, 0), strings.NewReader(p.Version))
}

func (a *tinyArchive) Unpack(ctx context.Context, pkgs []debian.Package, w debian.Writer, keep func(string) bool, report func(string, int64, int64)) error {
	a.unpacks.Add(1)
	if a.entered != nil {
		a.entered <- struct{}{}
	}
	if a.block != nil {
		select {
		case <-a.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	old := time.Unix(1e9, 0)
	err := errors.Join(
		w.Directory("usr", 0o755, old), w.Directory("usr/bin", 0o755, old), w.Symlink("bin", "usr/bin", old),
		w.File("usr/bin/dash", 0o755, old, strings.NewReader("#! the shell")),
		w.Symlink("usr/bin/sh", "/usr/bin/dash", old), w.Directory("usr/lib", 0o755, old),
	)
	for i, p := range pkgs {
		if name := "usr/lib/" + p.Name; keep(name) {
			err = errors.Join(err, w.File(name, 0o644, old, strings.NewReader(p.Name)))
		} else if d, ok := w.(debian.Dropper); ok {
			d.Dropped(name, int64(len(p.Name)))
		}
		report(p.Name, int64(i+1), int64(len(pkgs)))
	}
	return err
}

// hostRunner takes the place of the sandbox: it knows the commands of tinyPython and runs them on
// the host.
type hostRunner struct {
	mu   sync.Mutex
	runs []string
}

func (r *hostRunner) Run(_ context.Context, c Command) error {
	r.mu.Lock()
	r.runs = append(r.runs, strings.Join(c.Args, " "))
	r.mu.Unlock()
	if _, err := os.Stat(c.Rootfs); err != nil {
		return err
	}
	out := c.Binds[0].Source
	switch c.Args[0] {
	case "compile":
		return os.WriteFile(filepath.Join(out, "all.pyc"), []byte("bytecode"), 0o644)
	case "install":
		name, version, _ := strings.Cut(c.Args[1], "==")
		if name == "missing" {
			return &ExitError{Args: c.Args, Status: 1, Output: "no matching distribution found for missing\n"}
		}
		return os.WriteFile(filepath.Join(out, name+".py"), []byte("version = "+version), 0o644)
	}
	return fmt.Errorf("unknown command %v", c.Args)
}

// tinyPython is a complete runtime on tinyArchive and hostRunner.
type tinyPython struct{ named }

// tinyBase is the base of tinyPython.
func tinyBase() Base {
	return Base{
		Name: "python", Finish: finishTiny,
		Spec: BaseSpec{Roots: []string{"python", "docs", "left-out"}, Exclude: []string{"left-out"}, Drop: []string{"usr/lib/docs"}},
	}
}

func (tinyPython) ForkServer() {}

func (tinyPython) CheckHandler(t *template.Template, code CodeFiles) error {
	module, _, dotted := strings.Cut(t.Handler, ".")
	if !dotted || !t.Packages.Of("pip").None() {
		return nil
	}
	return code.CheckModule(t.Handler, module, ".py")
}

func (tinyPython) Bootstrap() map[string][]byte {
	return map[string][]byte{"bootstrap.py": []byte("serve()")}
}

func (tinyPython) Command(t *template.Template) (args, env []string, err error) {
	if !strings.Contains(t.Handler, ".") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf("handler %q has no dot", t.Handler)}
	}
	return []string{"/usr/bin/python3", "/opt/fre/bootstrap.py", t.Handler}, []string{"PYTHONPATH=/opt/python", "LANG=C.UTF-8"}, nil
}

func (tinyPython) Parked(_ *template.Template, env []string) *ParkedInterpreter {
	s := &ParkedInterpreter{Args: []string{"/usr/bin/python3", "/opt/fre/bootstrap.py"}, Env: []string{"LANG=C.UTF-8"}, Mounts: []string{"/function", "/opt/python"}}
	if !s.Fits(env, []string{"PYTHON"}, []string{"PYTHONPATH"}) {
		return nil
	}
	return s
}

func finishTiny(ctx context.Context, s *Step) ([]store.Part, error) {
	part, err := made(ctx, s, "compile", s.Rootfs, "")
	part.Kind = "base"
	return []store.Part{part}, err
}

// tinyPip is tinyPython's package site.
type tinyPip struct{ emptySite }

func (tinyPip) Packages(ctx context.Context, s *Step, t *template.Template, lock *Lock) ([]store.Part, error) {
	section, ok := lock.Sites["pip"].(*LockedPackages)
	if !ok {
		section = &LockedPackages{Request: t.Packages.Of("pip").Key()}
		lock.Sites["pip"] = section
		for _, r := range t.Packages.Of("pip").List {
			name, version, _ := strings.Cut(r, "==")
			sum := sha256.Sum256([]byte(r))
			section.Packages = append(section.Packages, LockedPackage{name, version, []string{"sha256:" + hex.EncodeToString(sum[:])}, "", nil})
		}
	}
	var parts []store.Part
	for _, locked := range section.Packages {
		r := locked.Name + "==" + locked.Version
		part, ok := s.Store.Part("pip:" + r)
		if !ok {
			tools, err := s.Tools(ctx, "python", "pip")
			if err != nil {
				return nil, err
			}
			if part, err = made(ctx, s, "install "+r, tools, "opt/python"); err != nil {
				return nil, err
			}
			if err := s.Store.PutPart(ctx, "pip:"+r, part); err != nil {
				return nil, err
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// made runs a command that writes to scratch, and makes a part of the output.
func made(ctx context.Context, s *Step, command, rootfs, prefix string) (store.Part, error) {
	out, err := os.MkdirTemp(s.Scratch, "out-")
	if err != nil {
		return store.Part{}, err
	}
	if err := s.Run.Run(ctx, Command{Rootfs: rootfs, Args: strings.Fields(command), Binds: []Bind{{Source: out, Target: "/work", Writable: true}}}); err != nil {
		return store.Part{}, err
	}
	root, err := os.OpenRoot(out)
	if err != nil {
		return store.Part{}, err
	}
	defer root.Close()
	w, err := s.Store.Create()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()
	if err := w.AddDir(root, ""); err != nil {
		return store.Part{}, err
	}
	tree, err := w.Commit(ctx)
	return store.Part{Kind: "pip", Name: command, Tree: tree, Prefix: prefix}, err
}

type builderRig struct {
	*Builder
	archive *tinyArchive
	runner  *hostRunner
	dir     string
	root    *os.Root
}

func newRig(t *testing.T, files map[string]string) *builderRig {
	t.Helper()
	return newRigIn(t, t.TempDir(), files)
}

// newRigIn keeps the store in dir.
func newRigIn(t *testing.T, dir string, files map[string]string) *builderRig {
	t.Helper()
	s, err := store.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A file left in tmp/ by a build is a leak.
		if list, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(list) > 0 {
			t.Errorf("left in tmp: %v %v", list, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &builderRig{archive: &tinyArchive{}, runner: &hostRunner{}, dir: t.TempDir()}
	r.write(t, files)
	if r.root, err = os.OpenRoot(r.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.root.Close() })
	r.Builder = &Builder{
		Store: s, Bases: []Base{tinyBase(), {Name: "native"}}, Runtimes: []Runtime{tinyPython{"python"}, programs{"native"}},
		Sites: []Site{tinyPip{emptySite{"pip", "python"}}, emptySite{"npm", "node"}}, Run: r.runner,
		Archive: func(string) (Archive, error) { return r.archive, nil },
	}
	return r
}

func (r *builderRig) write(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		mode := fs.FileMode(0o640)
		if strings.HasPrefix(content, "#!") || strings.HasPrefix(content, "\x7fELF") {
			mode = 0o750
		}
		name = filepath.Join(r.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
}

// list shows a linked image: path, mode, and content or target.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case e.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(p)
			out = append(out, rel+" -> "+target)
		case e.Type() == 0:
			text, _ := os.ReadFile(p)
			out = append(out, fmt.Sprintf("%s %o %s", rel, info.Mode().Perm(), strings.ReplaceAll(string(text), "\n", "|")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(out, func(s string) bool { return strings.HasPrefix(s, "etc/") })
}

const pythonTemplate = "id: hello\nversion: 0.1.0\nbase: python\npackages: {pip: [lib==1.0, other==2]}\nenv: {LANG: C, B: 1}\n"

// TestBuild: A build makes an image of the base, the packages and the code, and records the
// verified hash of each package.
func TestBuild(t *testing.T) {
	ctx := t.Context()
	r := newRig(t, map[string]string{
		"fret.yaml": pythonTemplate, "main.py": "def handle(): pass\n", "bin/tool": "#!/bin/sh\n",
		"sub/data.txt": "data", ".git/config": "secret", "note.tmp": "x", "keep.tmp": "y", "build/out": "z", ".freignore": "# comment\n*.tmp\n!keep.tmp\nbuild/\n",
	})
	if err := os.Symlink("sub/data.txt", filepath.Join(r.dir, "link")); err != nil {
		t.Fatal(err)
	}
	steps := map[string]int{}
	img, lock, err := r.Build(ctx, r.root, func(e Progress) { steps[e.Step]++ })
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bin -> usr/bin", "all.pyc 644 bytecode",
		"function/bin/tool 755 #!/bin/sh|", "function/fret.yaml 644 " + strings.ReplaceAll(pythonTemplate, "\n", "|"),
		"function/keep.tmp 644 y", "function/link -> sub/data.txt", "function/main.py 644 def handle(): pass|", "function/sub/data.txt 644 data",
		"opt/fre/bootstrap.py 644 serve()", "opt/python/lib.py 644 version = 1.0", "opt/python/other.py 644 version = 2",
		"usr/bin/dash 755 #! the shell", "usr/bin/sh -> /usr/bin/dash", "usr/lib/python 644 python",
	}
	slices.Sort(want)
	got := list(t, r.Store.Rootfs(img.Digest))
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("image: -want +got:\n%s", diff)
	}
	for _, step := range []string{"base", "packages", "code", "link"} {
		if steps[step] == 0 {
			t.Errorf("no progress reported for step %q: %v", step, steps)
		}
	}
	config, err := ConfigOf(img)
	if err != nil {
		t.Fatal(err)
	}
	wantConfig := Config{
		Base: "python", Runtime: "python", Handler: "main.handle", Args: []string{"/usr/bin/python3", "/opt/fre/bootstrap.py", "main.handle"},
		Env: []string{"PYTHONPATH=/opt/python", "B=1", "LANG=C"}, Protocol: ProtocolChannel, Tenant: "default", Network: template.Network{Mode: template.NetworkNone}, Forks: true,
		Instances: template.Instances{Isolation: template.IsolationInstance, Fork: template.ForkAuto, Concurrency: 1, Max: 64, Idle: 5 * time.Minute},
		Resources: template.Resources{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 64, TmpBytes: 64 << 20, Files: 1024, Timeout: 30 * time.Second},
		LeftOut:   &LeftOut{Packages: []string{"left-out"}, PackageBytes: 1000, Files: []LeftOutFiles{{Pattern: "usr/lib/docs", Files: 1, Bytes: 4, Names: []string{"docs"}}}},
	}
	if diff := cmp.Diff(wantConfig, config); diff != "" {
		t.Errorf("config: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(LockedBase{Name: "python", Packages: map[string]string{"python": "1.0-1", "docs": "1.0-1"}}, lock.Base); diff != "" {
		t.Errorf("lock: -want +got:\n%s", diff)
	}
	if got := packagesOf(lock, "pip"); len(got.Packages) != 2 {
		t.Errorf("lock: %+v", got)
	}
	base, err := r.Base(ctx, "python", nil)
	if err != nil {
		t.Fatal(err)
	}
	baseConfig, err := ConfigOf(base)
	if diff := cmp.Diff(map[string]string{"python": "sha256:" + tinySum("python"), "docs": "sha256:" + tinySum("docs")}, baseConfig.PackageHashes); err != nil || diff != "" {
		t.Errorf("hashes of the base's packages: %v, -want +got:\n%s", err, diff)
	}
	if _, err := r.Store.Image("tools/python-unpacked"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unpacked base is still there: %v", err)
	}

	// Only the code changes: the build neither unpacks nor installs again.
	if err := WriteLock(r.root, lock); err != nil {
		t.Fatal(err)
	}
	runs, unpacks := len(r.runner.runs), r.archive.unpacks.Load()
	if want := []string{"compile", "install lib==1.0", "install other==2"}; !slices.Equal(r.runner.runs, want) {
		t.Errorf("commands: %v, want %v", r.runner.runs, want)
	}
	again, _, err := r.Build(ctx, r.root, nil)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("the same input made another image: %v", err)
	}
	r.write(t, map[string]string{"main.py": "def handle(): return 1\n"})
	changed, second, err := r.Build(ctx, r.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Digest == img.Digest {
		t.Error("changed code made the same image")
	}
	if diff := cmp.Diff(lock, second, cmp.AllowUnexported(Lock{})); diff != "" {
		t.Errorf("lock changed: %s", diff)
	}
	if len(r.runner.runs) != runs || r.archive.unpacks.Load() != unpacks {
		t.Errorf("ran %v again, unpacked %d times", r.runner.runs[runs:], r.archive.unpacks.Load()-unpacks)
	}
	same := 0
	for i, p := range changed.Parts {
		if p == img.Parts[i] {
			same++
		}
	}
	if same != len(img.Parts)-1 {
		t.Errorf("%d of %d parts are the same, want all but the code", same, len(img.Parts))
	}
}

// TestBuildHonoursLock: A build installs exactly the packages of the lock.
func TestBuildHonoursLock(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [lib]}\n", "main.py": ""})
	lock := &Lock{Version: 1, Sites: map[string]Section{"pip": &LockedPackages{Request: []string{"lib"}, Packages: []LockedPackage{{"lib", "0.9", []string{hashA}, "", nil}}}}}
	if err := WriteLock(r.root, lock); err != nil {
		t.Fatal(err)
	}
	_, got, err := r.Build(t.Context(), r.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lock.Sites, got.Sites); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !slices.Contains(r.runner.runs, "install lib==0.9") {
		t.Errorf("the locked version was not installed: %v", r.runner.runs)
	}
	r.write(t, map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [lib==1]}\n"})
	if _, got, err = r.Build(t.Context(), r.root, nil); err != nil || packagesOf(got, "pip").Packages[0].Version != "1" {
		t.Errorf("another request still has the old lock: %+v, %v", got, err)
	}
}

// TestBuildErrors: The error for a faulty template or code names the place and the reason.
func TestBuildErrors(t *testing.T) {
	elf := func(machine byte) string {
		return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + string(machine) + "\x00\x01" + strings.Repeat("\x00", 31) +
			"\x40\x00\x38\x00\x00\x00\x40\x00\x00\x00\x00\x00"
	}
	native := func(handler string) string { return "id: f\nbase: native\nhandler: " + handler + "\n" }
	for _, c := range []struct {
		name  string
		files map[string]string
		links map[string]string
		want  string // part of the error
	}{
		{"no template", map[string]string{"main.py": ""}, nil, "fre new"},
		{"bad template", map[string]string{"fret.yaml": "id: f\nbase: python\nx: 1\n"}, nil, `fret.yaml:3:1: unknown key "x"`},
		{"bad lock", map[string]string{"fret.yaml": "id: f\nbase: python\n", "fret.lock": "{"}, nil, "fret.lock:1:"},
		{"unknown base", map[string]string{"fret.yaml": "id: f\nbase: ruby\n"}, nil, `fret.yaml:2:7: base "ruby" is not known: the bases are native, python`},
		{"npm on python", map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {npm: [a]}\n"}, nil, "fret.yaml:3:17: packages.npm needs the base node"},
		{"handler the runtime refuses", map[string]string{"fret.yaml": "id: f\nbase: python\nhandler: main\n"}, nil, `fret.yaml:3:10: handler "main" has no dot`},
		{"package that fails", map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [missing]}\n", "main.py": ""}, nil, "no matching distribution found for missing"},
		{"no module", map[string]string{"fret.yaml": "id: f\nbase: python\nhandler: app.run\n", "main.py": ""}, nil, `fret.yaml:3:10: handler "app.run": no app.py in the code: add the module, or name an existing module (found: fret.yaml, main.py)`},
		{"no code directory", map[string]string{"fret.yaml": "id: f\nbase: python\ncode: {path: src}\n"}, nil, `fret.yaml:3:14: code.path "src": no such file`},
		{"empty code directory", map[string]string{"fret.yaml": "id: f\nbase: python\ncode: {path: src}\n", "src/.git/x": ""}, nil, `code.path "src" holds no files`},
		{"symlink out", map[string]string{"fret.yaml": "id: f\nbase: python\n", "main.py": ""}, map[string]string{"sub": "../x"}, "fret.yaml: the symlink sub in the code leads outside, to ../x"},
		{"absolute symlink", map[string]string{"fret.yaml": "id: f\nbase: python\n", "main.py": ""}, map[string]string{"a": "/etc/passwd"}, "the symlink a in the code leads outside"},
		{"code outside by a symlink", map[string]string{"fret.yaml": "id: f\nbase: python\ncode: {path: out}\n"}, map[string]string{"out": "/etc"}, "path escapes"},
		{"bad ignore pattern", map[string]string{"fret.yaml": "id: f\nbase: python\n", ".freignore": "a\n[\n"}, nil, ".freignore: line 2"},
		{"a directory that is not UTF-8", map[string]string{"fret.yaml": "id: f\nbase: python\n", "a\xff/main.py": ""}, nil, `the name of the directory "a\xff" in the code is not UTF-8`},
		{"no program", map[string]string{"fret.yaml": native("bin/clock")}, nil, `fret.yaml:3:10: handler "bin/clock": no such file in the code: build the program first`},
		{"program is a directory", map[string]string{"fret.yaml": native("bin"), "bin/x": ""}, nil, "is a directory"},
		{"program not executable", map[string]string{"fret.yaml": native("x"), "x": "text"}, nil, "chmod +x"},
		{"script without interpreter", map[string]string{"fret.yaml": native("x"), "x": "#!/usr/bin/env -S perl -w\n"}, nil, "interpreter /usr/bin/perl is missing in the base native"},
		{"script from Windows", map[string]string{"fret.yaml": native("x"), "x": "#!/bin/sh\r\n"}, nil, "carriage return"},
		{"other machine", map[string]string{"fret.yaml": native("x"), "x": elf(2)}, nil, "program for EM_SPARC"},
		{"damaged program", map[string]string{"fret.yaml": native("x"), "x": "\x7fELF\x02"}, nil, "damaged ELF"},
		{"program of the base", map[string]string{"fret.yaml": native("/usr/bin/none")}, nil, "not a program of the base native"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.files)
			for name, target := range c.links {
				if err := os.Symlink(target, filepath.Join(r.dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			img, _, err := r.Build(t.Context(), r.root, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got  %v %v\nwant %s", img, err, c.want)
			}
			if _, err := r.Store.Image("f"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an image was made: %v", err)
			}
		})
	}
}

// TestBadFiles: If a build's file is a directory, a link or a fifo, the error names the file and is
// the template author's.
func TestBadFiles(t *testing.T) {
	const base = "id: f\nbase: python\nhandler: main.handle\n"
	for file, fret := range map[string]string{
		"fret.yaml": "", "fret.lock": base, ".freignore": base, "reqs.txt": base + "packages: {pip: reqs.txt}\n",
		"a.zip": base + "code: {archive: a.zip}\n", "src": base + "code: {path: src/x}\n",
		"b": "id: f\nbase: dir:b/x\nruntime: native\nhandler: x\n",
	} {
		for kind, make := range map[string]func(name string) error{
			"directory": func(name string) error { return os.MkdirAll(filepath.Join(name, "y"), 0o755) },
			"link out":  func(name string) error { return os.Symlink("/etc/passwd", name) },
			"link loop": func(name string) error { return os.Symlink(filepath.Base(name), name) },
			"fifo":      func(name string) error { return unix.Mkfifo(name, 0o644) },
		} {
			t.Run(file+" "+kind, func(t *testing.T) {
				r := newRig(t, map[string]string{"main.py": ""})
				if fret != "" {
					r.write(t, map[string]string{"fret.yaml": fret})
				}
				if err := make(filepath.Join(r.dir, file)); err != nil {
					t.Fatal(err)
				}
				_, _, err := r.Build(t.Context(), r.root, nil)
				var fault *template.Error
				if !errors.As(err, &fault) || !strings.Contains(err.Error(), file) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// TestBuildNative: A native handler is a program of the code or of the base.
func TestBuildNative(t *testing.T) {
	for handler, fret := range map[string]string{
		"run.sh": "", "./run.sh": "", "/function/run.sh": "", "/bin/sh": "", "link": "", "env": "code: {path: env}\n",
	} {
		t.Run(handler, func(t *testing.T) {
			r := newRig(t, map[string]string{
				"fret.yaml": "id: f\nbase: native\nhandler: " + handler + "\n" + fret,
				"run.sh":    "#! /bin/sh -e\n", "env": "#!/usr/bin/env sh\n",
			})
			if err := os.Symlink("run.sh", filepath.Join(r.dir, "link")); err != nil {
				t.Fatal(err)
			}
			img, _, err := r.Build(t.Context(), r.root, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c, err := ConfigOf(img); err != nil || c.Protocol != ProtocolStdio || c.Instances.Isolation != template.IsolationEvent {
				t.Errorf("config %+v, %v", c, err)
			}
		})
	}
}

func TestConcurrentBuildsShareTheBase(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: python\n", "main.py": ""})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if _, _, err := r.Build(t.Context(), r.root, nil); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := r.archive.unpacks.Load(); n != 1 {
		t.Errorf("unpacked %d times, want once", n)
	}
	if len(r.locks) != 0 {
		t.Errorf("locks left: %v", r.locks)
	}
}

func TestCancelledBuildLeavesNothingAndAnotherTakesOver(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: python\n", "main.py": ""})
	r.archive.block, r.archive.entered = make(chan struct{}), make(chan struct{}, 2)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, _, err := r.Build(ctx, r.root, nil); first <- err }()
	<-r.archive.entered
	go func() { _, _, err := r.Build(t.Context(), r.root, nil); second <- err }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	<-r.archive.entered // the second build makes it now
	close(r.archive.block)
	if err := <-second; err != nil {
		t.Error(err)
	}
	if got := len(r.Store.Images()); got != 2 {
		t.Errorf("%d images, want the base and the function", got)
	}
}

func TestFailedFinishLeavesNoBase(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: python\n", "main.py": ""})
	r.Run = failingRunner{}
	if _, err := r.Base(t.Context(), "python", nil); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v", err)
	}
	if got := r.Store.Images(); len(got) != 0 {
		t.Errorf("images left: %v", got)
	}
}

func TestFullDiskKeepsTheOldImage(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("FRE_TEST_ROOT") == "1" {
			t.Fatal("FRE_TEST_ROOT=1, but not root")
		}
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	r := newRigIn(t, dir, map[string]string{"fret.yaml": "id: f\nbase: python\n", "main.py": "old"})
	old, _, err := r.Build(t.Context(), r.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, map[string]string{"main.py": "new", "model": strings.Repeat("0123456789abcdef", 1<<19)})
	if _, _, err := r.Build(t.Context(), r.root, nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want %v", err, unix.ENOSPC)
	}
	if img, err := r.Store.Image("f"); err != nil || img.Digest != old.Digest {
		t.Errorf("the old image is gone: %v %v", img, err)
	}
	if err := os.Remove(filepath.Join(r.dir, "model")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Build(t.Context(), r.root, nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

type failingRunner struct{}

func (failingRunner) Run(context.Context, Command) error { return errors.New("boom") }

// TestSlim: A template can have the packages and files that its base leaves out, in a base beside
// the shared one. Each base lists the parts it left out.
func TestSlim(t *testing.T) {
	const fret = "id: f\nbase: python\n"
	r := newRig(t, map[string]string{"main.py": "", "fret.yaml": fret})
	spec := &r.Bases[0].Spec
	spec.Also, spec.SlimDrop = []string{"more", "of-another-release"}, []string{"usr/lib/python"}
	for _, c := range []struct {
		more string
		docs bool
		left *LeftOut
	}{
		{"", false, &LeftOut{Packages: []string{"left-out"}, PackageBytes: 1000, Files: []LeftOutFiles{{Pattern: "usr/lib/docs", Files: 1, Bytes: 4, Names: []string{"docs"}}}}},
		{"keep: [usr/lib/d*]\n", true, &LeftOut{Packages: []string{"left-out"}, PackageBytes: 1000}},
		{"slim: true\n", false, &LeftOut{Packages: []string{"left-out", "more"}, PackageBytes: 2000, Files: []LeftOutFiles{
			{Pattern: "usr/lib/docs", Files: 1, Bytes: 4, Names: []string{"docs"}}, {Pattern: "usr/lib/python", Files: 1, Bytes: 6, Names: []string{"python"}},
		}}},
		{"slim: true\nkeep: [usr/lib/python]\n", false, &LeftOut{Packages: []string{"left-out", "more"}, PackageBytes: 2000, Files: []LeftOutFiles{
			{Pattern: "usr/lib/docs", Files: 1, Bytes: 4, Names: []string{"docs"}},
		}}},
		{"slim: false\n", true, &LeftOut{Packages: []string{"left-out"}, PackageBytes: 1000}},
		{"", false, &LeftOut{Packages: []string{"left-out"}, PackageBytes: 1000, Files: []LeftOutFiles{{Pattern: "usr/lib/docs", Files: 1, Bytes: 4, Names: []string{"docs"}}}}},
	} {
		r.write(t, map[string]string{"fret.yaml": fret + c.more})
		img, _, err := r.Build(t.Context(), r.root, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(filepath.Join(r.Store.Rootfs(img.Digest), "usr/lib/docs"))
		if got := err == nil; got != c.docs {
			t.Errorf("%q: docs in the image: %v, want %v", c.more, got, c.docs)
		}
		own, err := ConfigOf(img)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.left, own.LeftOut); diff != "" {
			t.Errorf("%q: left out of the function's image: -want +got:\n%s", c.more, diff)
		}
		for _, base := range r.Store.Images() {
			if base.Parts[0].Tree != img.Parts[0].Tree || base.Digest == img.Digest {
				continue
			}
			config, err := ConfigOf(base)
			if err != nil {
				t.Fatal(err)
			}
			if config.Labels[LabelKind] != KindBase {
				continue
			}
			// Two bases with equal files still list their own reasons.
			if diff := cmp.Diff(c.left, config.LeftOut); diff != "" {
				t.Errorf("%q: left out of %s: -want +got:\n%s", c.more, base.Built, diff)
			}
		}
	}
	if got := r.archive.unpacks.Load(); got != 5 {
		t.Errorf("unpacked %d times, want one for each kind of base", got)
	}
	if img, err := r.Store.Image("base/python:tiny"); err != nil || img.Name != "base/python" {
		t.Errorf("the base that functions share: %v, %v", img, err)
	}
}

// The tools of a build contain the left-out packages that the build names.
func TestToolsNamed(t *testing.T) {
	r := newRig(t, nil)
	defer r.Store.Hold()()
	for _, names := range [][]string{{"pip"}, {"pip", "left-out"}} {
		img, err := r.tools(t.Context(), template.BaseRef{Name: "python"}, names, func(Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"pip", "left-out"} {
			_, err := os.Stat(filepath.Join(r.Store.Rootfs(img.Digest), "usr/lib", name))
			if want := slices.Contains(names, name); (err == nil) != want {
				t.Errorf("tools %q: %s is there: %v, want %v", names, name, err == nil, want)
			}
		}
	}
}

// Build builds the template in dir.
func (r *builderRig) Build(ctx context.Context, dir *os.Root, report func(Progress)) (*store.Image, *Lock, error) {
	t, err := r.Template(dir)
	if err != nil {
		return nil, nil, err
	}
	return r.Builder.Build(ctx, dir, t, report)
}
