package python

import (
	"archive/zip"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

//go:embed source.py
var sourceProgram []byte

// sdist is the output of source.py's find.
type sdist struct {
	File     string   `json:"file"`
	Version  string   `json:"version"`
	Hash     string   `json:"hash"`     // "sha256:…"
	Requires []string `json:"requires"` // of its build system
	Native   bool     `json:"native"`   // the source has files for a compiler
	Error    string   `json:"error"`    // "none", "changed", "bad"
	Words    string   `json:"words"`
}

var (
	// wantsSource matches uv's name of a package that has no usable wheel.
	wantsSource = regexp.MustCompile("Wheels are required for `([A-Za-z0-9][A-Za-z0-9._-]*)`")
	wheelName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl$`)
)

// maxSources bounds the packages of a function that are built from source.
const maxSources = 32

// errNoSource: a package has no suitable source distribution.
var errNoSource = errors.New("no source distribution")

// fromSource returns the part of a package that comes as a source distribution, and its locked
// form: locked itself, or, if locked has no hash yet, the newest version that specifiers allow. A
// package's own code runs without network and credentials, and each package in a separate sandbox:
//
//	find, pin ─ network ──→ sdist/, env/: dependencies of its build, wheels only
//	requires, build ─────── env/ at /function, read-only ──→ dist/*.whl
//	install ─────────────── dist/*.whl ──→ out/, the part
//
// The dependencies of its build are locked.Requires. Without them fromSource finds them and returns
// them pinned.
func (s *site) fromSource(ctx context.Context, locked image.LockedPackage, specifiers []string) (image.LockedPackage, store.Part, error) {
	none := store.Part{}
	fetched, found, err := s.find(ctx, locked, specifiers)
	if err != nil {
		return locked, none, err
	}
	p := image.LockedPackage{Name: locked.Name, Version: found.Version, Hashes: []string{found.Hash}, Source: found.File, Requires: locked.Requires}
	s.step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, Message: "build from source"})
	tools := s.tools
	if found.Native {
		tools = slices.Concat(tools, s.compilers)
	}
	rootfs, err := s.step.Tools(ctx, "python", tools...)
	if err != nil {
		return p, none, err
	}
	if len(p.Requires) > 0 {
		err = s.environment(ctx, fetched, p.Requires)
	} else {
		fetched, p.Requires, err = s.requires(ctx, rootfs, p, fetched, found)
	}
	if err != nil {
		return p, none, err
	}
	if part, ok := s.step.Store.Part(s.key(p)); ok {
		part.Hash = found.Hash
		return p, part, nil
	}
	made, err := s.hook(ctx, rootfs, p, fetched, found, "build")
	if err != nil {
		return p, none, err
	}
	part, err := s.installWheel(ctx, p, made)
	return p, part, err
}

// requires returns the pinned dependencies of a source distribution's build, and the bench with the
// source.
func (s *site) requires(ctx context.Context, rootfs string, p image.LockedPackage, fetched *install.Bench, found *sdist) (*install.Bench, []image.LockedPackage, error) {
	pinned, err := s.pin(ctx, found.Requires)
	if err != nil {
		return nil, nil, err
	}
	if err := s.environment(ctx, fetched, pinned); err != nil {
		return nil, nil, err
	}
	made, err := s.hook(ctx, rootfs, p, fetched, found, "requires")
	if err != nil {
		return nil, nil, err
	}
	more, err := readRequires(made)
	if err != nil {
		return nil, nil, &image.PackageError{Site: "pip", Package: p.Name + " " + p.Version, Cause: image.PackageBad, Err: err}
	}
	if len(more) == 0 {
		return fetched, pinned, nil
	}
	// The package's code has run: use a fresh bench for the step with network.
	if fetched, found, err = s.find(ctx, p, nil); err != nil {
		return nil, nil, err
	}
	if pinned, err = s.pin(ctx, slices.Concat(found.Requires, more)); err != nil {
		return nil, nil, err
	}
	return fetched, pinned, s.environment(ctx, fetched, pinned)
}

// find fetches the source distribution to a new bench, at sdist/.
func (s *site) find(ctx context.Context, p image.LockedPackage, specifiers []string) (*install.Bench, *sdist, error) {
	rootfs, err := s.step.Tools(ctx, "python", s.tools...)
	if err != nil {
		return nil, nil, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, nil, err
	}
	job := map[string]any{"name": p.Name, "specifiers": append([]string{}, specifiers...), "hash": "", "file": p.Source}
	if p.Version != "" {
		job["specifiers"] = []string{"==" + p.Version}
	}
	if len(p.Hashes) == 1 {
		job["hash"] = p.Hashes[0]
	}
	env := append([]string{"PIP_NO_COLOR=1"}, image.SettingsOf[install.PipSettings](s.step.Settings).Env...)
	if index, err := s.indexOf(p.Name); err != nil {
		return nil, nil, err
	} else if index != "" {
		env = append(env, "PIP_INDEX_URL="+index, "PIP_EXTRA_INDEX_URL=")
	}
	words, err := s.source(ctx, b, install.Tool{Rootfs: rootfs, Network: true, Env: env}, "find", job)
	if err != nil {
		return nil, nil, install.PackageFailed(err, "pip", p.Name+": "+words, nil)
	}
	text, err := b.Read("found.json")
	if err != nil {
		return nil, nil, err
	}
	var found sdist
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, nil, fmt.Errorf("find a source distribution of %s: %w", p.Name, err)
	}
	if err := found.failed(p); err != nil {
		return nil, nil, err
	}
	return b, &found, nil
}

// failed returns the error of a search for p, or nil.
func (d *sdist) failed(p image.LockedPackage) error {
	fault := &image.PackageError{Site: "pip", Package: strings.TrimSpace(p.Name + " " + p.Version), Cause: image.PackageBad, Message: d.Words}
	switch d.Error {
	case "":
		return nil
	case "none":
		if p.Source == "" {
			return errNoSource
		}
		fault.Cause, fault.Message = image.PackageGone, "the index has no "+p.Source
	case "changed":
		fault.Cause = image.PackageChanged
	}
	return fault
}

// source runs source.py at a bench.
func (s *site) source(ctx context.Context, b *install.Bench, t install.Tool, verb string, job any) (words string, err error) {
	text, err := json.Marshal(job)
	if err == nil {
		err = errors.Join(b.Write("source.py", sourceProgram), b.Write("job.json", text))
	}
	if err != nil {
		return "", err
	}
	args := []string{"/usr/bin/python3", "/work/source.py", verb, "/work/job.json"}
	if verb != "find" { // find uses pip, which needs the site module
		args = slices.Insert(args, 1, "-S")
	}
	t.Args = args
	return b.Run(ctx, t)
}

// pin resolves the dependencies of a build, wheels only, without running their code.
func (s *site) pin(ctx context.Context, requires []string) ([]image.LockedPackage, error) {
	list, err := parseRequirements("build-system.requires", []byte(strings.Join(requires, "\n")))
	if err == nil && (len(list.files) > 0 || len(list.constraints) > 0) {
		err = errors.New("build-system.requires names files")
	}
	if err != nil {
		return nil, &image.PackageError{Site: "pip", Cause: image.PackageBad, Err: err}
	}
	if len(list.list) == 0 {
		return nil, nil
	}
	out, err := s.pinRequirements(ctx, requires, list.list)
	if err != nil {
		return nil, err
	}
	pinned, err := parsePinned(out)
	slices.SortFunc(pinned, func(a, b image.LockedPackage) int { return strings.Compare(a.Name, b.Name) })
	return pinned, err
}

// pinRequirements has uv pin the list of requirements of a build.
func (s *site) pinRequirements(ctx context.Context, requires []string, list []requirement) ([]byte, error) {
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	if err := b.Write("requirements.in", text(list)); err != nil {
		return nil, err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: s.step.Rootfs, Env: s.env("/run/uv"), Cache: "uv", Program: program, Network: true, Args: s.compileArgs(),
	})
	if err != nil {
		return nil, fmt.Errorf("build requirements (%s): %w", strings.Join(requires, ", "), failed(err, words))
	}
	out, err := b.Read("requirements.txt")
	if err != nil {
		return nil, fmt.Errorf("uv pip compile: %w", err)
	}
	return out, nil
}

// environment installs the dependencies of a build in env/ without running their code.
func (s *site) environment(ctx context.Context, b *install.Bench, pinned []image.LockedPackage) error {
	var lines, names []string
	for _, p := range pinned {
		lines, names = append(lines, pinnedLine(p)), append(names, p.Name+" "+p.Version)
	}
	if err := errors.Join(b.Mkdir("env"), b.Write("requires.txt", []byte(strings.Join(lines, "")))); err != nil || len(pinned) == 0 {
		return err
	}
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: s.step.Rootfs, Env: s.env(install.Private), Program: program, Network: true,
		Args: []string{
			"/function/uv", "pip", "install", "--quiet", "--no-progress", "--only-binary", ":all:", "--no-deps", "--require-hashes",
			"--python", s.python, "--target", "/work/env", "-r", "/work/requires.txt",
		},
	})
	if err != nil {
		return fmt.Errorf("build requirements (%s): %w", strings.Join(names, ", "), failed(err, words))
	}
	return linux.RemoveAll(filepath.Join(b.Dir, path.Base(install.Private)))
}

// unbuiltStep is the next step after a failed build of a package.
const unbuiltStep = "use a version with a wheel for the base, or check the needs of the package's build (docs/packages.md)"

// hook runs a package's own build at a new bench.
func (s *site) hook(ctx context.Context, rootfs string, p image.LockedPackage, fetched *install.Bench, found *sdist, verb string) (*install.Bench, error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	words, err := s.source(ctx, b, install.Tool{
		Rootfs: rootfs, Program: fetched.Dir,
		Env: []string{
			"PATH=/function/env/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH=/function/env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0",
			fmt.Sprintf("SOURCE_DATE_EPOCH=%d", install.Time.Unix()), "LC_ALL=C.UTF-8",
		},
	}, verb, found)
	lines := install.Lines(words, func(string) bool { return false })
	err = install.Failed(err, "", strings.Join(lines[max(0, len(lines)-buildLines):], "\n"))
	var exit *image.ExitError
	if errors.As(err, &exit) {
		err = &image.PackageError{Site: "pip", Package: p.Name + " " + p.Version, Cause: image.PackageUnbuilt, Message: exit.Output, Step: unbuiltStep, Err: err}
	}
	return b, err
}

// buildLines is the number of a build's last lines in an error.
const buildLines = 30

// readRequires reads the build's requirements beyond those in the package's file.
func readRequires(b *install.Bench) (more []string, err error) {
	raw, err := b.Read("requires.json")
	if err == nil {
		err = json.Unmarshal(raw, &more)
	}
	if err == nil && len(more) > 100 {
		err = fmt.Errorf("%d requirements", len(more))
	}
	if err != nil {
		return nil, fmt.Errorf("requirements of the build: %w", err)
	}
	return more, nil
}

// installWheel makes the part of the single wheel that a build has left in dist/.
func (s *site) installWheel(ctx context.Context, p image.LockedPackage, made *install.Bench) (store.Part, error) {
	bad := func(err error) error { return install.Unpacked(err, "pip", p.Name+" "+p.Version) }
	b, err := install.NewBench(s.step)
	if err != nil {
		return store.Part{}, err
	}
	if err := b.Mkdir("dist", "out"); err != nil {
		return store.Part{}, err
	}
	if err := takeWheel(made, filepath.Join(b.Dir, "dist")); err != nil {
		return store.Part{}, bad(err)
	}
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return store.Part{}, err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: s.step.Rootfs, Program: program,
		Env: []string{"UV_CACHE_DIR=" + install.Private, "UV_LINK_MODE=copy", "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never", "NO_COLOR=1"},
		Args: []string{
			"/function/uv", "pip", "install", "--quiet", "--no-progress", "--no-deps", "--no-index", "--find-links", "/work/dist",
			"--python", s.python, "--target", "/work/out", p.Name + "==" + p.Version,
		},
	})
	if err != nil {
		return store.Part{}, bad(fmt.Errorf("the built wheel: %w", failed(err, words)))
	}
	if err := compile(ctx, b, s.step.Rootfs, []compileJob{{Root: "/work/out", Place: "/" + prefix}}); err != nil {
		return store.Part{}, err
	}
	part, err := b.Put(ctx, s.key(p), store.Part{Kind: "pip", Name: p.Name, Version: p.Version, Prefix: prefix, Hash: p.Hashes[0]}, "out", skip)
	if err != nil {
		return store.Part{}, bad(err)
	}
	s.step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, End: true})
	return part, nil
}

// takeWheel copies the single wheel of a build to the directory to.
func takeWheel(made *install.Bench, to string) error {
	from, err := made.Open("dist")
	if err != nil {
		return errors.New("the build left no directory of wheels")
	}
	defer func() { _ = from.Close() }()
	entries, err := fs.ReadDir(from.FS(), ".")
	if err != nil {
		return err
	}
	if len(entries) != 1 || !wheelName.MatchString(entries[0].Name()) || !entries[0].Type().IsRegular() {
		return fmt.Errorf("the build left %d files instead of a wheel", len(entries))
	}
	return copyWheel(from, entries[0].Name(), filepath.Join(to, entries[0].Name()))
}

func copyWheel(from *os.Root, name, to string) error {
	src, err := from.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	const most = 1 << 30
	n, err := io.Copy(dst, io.LimitReader(src, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("%s: %w", name, install.ErrTooLarge)
	}
	return errors.Join(err, dst.Close())
}

var metadataPath = regexp.MustCompile(`^[^/]+\.dist-info/METADATA$`)

// stub returns a wheel with only the metadata of a part, for uv to resolve with, and its file name.
func (s *site) stub(p image.LockedPackage, part store.Part) (name string, wheel []byte, err error) {
	tree, err := s.step.Store.Tree(part.Tree)
	if err != nil {
		return "", nil, err
	}
	i := slices.IndexFunc(tree.Entries, func(e store.Entry) bool { return metadataPath.MatchString(e.Path) })
	if i < 0 {
		return "", nil, fmt.Errorf("the part of %s %s has no metadata", p.Name, p.Version)
	}
	f, err := s.step.Store.OpenFile(&tree.Entries[i])
	if err != nil {
		return "", nil, err
	}
	metadata, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", nil, err
	}
	stem := strings.ReplaceAll(normalName(p.Name), "-", "_") + "-" + p.Version
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, file := range []struct {
		name string
		text []byte
	}{
		{"METADATA", metadata},
		{"WHEEL", []byte("Wheel-Version: 1.0\nGenerator: fre\nRoot-Is-Purelib: true\nTag: py3-none-any\n")},
		{"RECORD", []byte(stem + ".dist-info/RECORD,,\n")},
	} {
		// Stored, with the size in front: readable from front to back.
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: stem + ".dist-info/" + file.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(file.text),
			CompressedSize64: uint64(len(file.text)), UncompressedSize64: uint64(len(file.text)),
		})
		if err == nil {
			_, err = w.Write(file.text)
		}
		if err != nil {
			return "", nil, err
		}
	}
	if err := z.Close(); err != nil {
		return "", nil, err
	}
	return stem + "-py3-none-any.whl", out.Bytes(), nil
}

// specifiers returns the versions of a package that the request and the resolver's output allow:
// "==1.0", ">=2,<3".
func (r *request) specifiers(name, words string) []string {
	var out []string
	for _, q := range slices.Concat(r.list, r.constraints) {
		m := requirementPattern.FindStringSubmatch(q.text)
		if m == nil || normalName(m[1]) != normalName(name) {
			continue
		}
		of, _, _ := strings.Cut(m[3], ";")
		if of = strings.Trim(of, " ()"); of != "" {
			out = append(out, of)
		}
	}
	said := regexp.MustCompile(`(?:depends on|you require) ` + regexp.QuoteMeta(name) + `(?:\[[^\]]*\])?([<>=!~][^\s,]*)`)
	for _, m := range said.FindAllStringSubmatch(words, -1) {
		if !slices.Contains(out, m[1]) {
			out = append(out, m[1])
		}
	}
	return out
}
