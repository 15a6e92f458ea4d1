package python

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// uv resolves and installs. Its wheel holds the program at bin/uv.
var uv = install.Program{
	Name: "uv", Version: "0.13.8", Dir: "bin", Keep: func(path string) bool { return path == "uv" },
	Hashes: map[string]string{
		"amd64": "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984",
		"arm64": "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
	},
}

// site is a package index seen from one base environment.
type site struct {
	step    *image.Step
	python  string   // path of the interpreter
	version string   // of the interpreter, "3.11"
	tools   []string // Debian packages of pip

	compilers []string // and of a compiler for native code

	index map[string]string // package → name of its index: packages.pip_index
}

// key names the part of a package version in the store.
func (s *site) key(p image.LockedPackage) string {
	h := sha256.New()
	for _, hash := range slices.Sorted(slices.Values(p.Hashes)) {
		_, _ = fmt.Fprintln(h, hash)
	}
	_, _ = io.WriteString(h, p.Source)
	for _, r := range p.Requires {
		_, _ = fmt.Fprintf(h, "\n%s %s %q", r.Name, r.Version, slices.Sorted(slices.Values(r.Hashes)))
	}
	platform := runtime.GOARCH
	if s.step.Platform != "" { // a wheel for one libc may not run with another
		platform += "-" + s.step.Platform
	}
	return fmt.Sprintf("pip:%s==%s:cp%s:%s:%s", p.Name, p.Version, strings.ReplaceAll(s.version, ".", ""), platform, hex.EncodeToString(h.Sum(nil)[:16]))
}

// env is uv's environment. uv does not see the host's uv.toml.
func (s *site) env(cache string) []string {
	return append([]string{
		"UV_CACHE_DIR=" + cache, "UV_LINK_MODE=hardlink", "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never", "NO_COLOR=1",
	}, image.SettingsOf[install.PipSettings](s.step.Settings).Env...)
}

// compileArgs have uv pin the requirements of /work/requirements.in, wheels only, in
// /work/requirements.txt.
func (s *site) compileArgs() []string {
	return []string{
		"/function/uv", "pip", "compile", "--no-progress", "--generate-hashes", "--no-header", "--no-annotate",
		"--no-emit-index-url", "--no-emit-find-links", "--only-binary", ":all:",
		"--python", s.python, "--python-version", s.version,
		"--output-file", "/work/requirements.txt", "/work/requirements.in",
	}
}

// line is the requirement for exactly one locked package.
func line(p image.LockedPackage) string {
	words := []string{p.Name + "==" + p.Version}
	for _, h := range p.Hashes {
		words = append(words, "--hash="+h)
	}
	return strings.Join(words, " ") + "\n"
}

// resolve asks uv for the versions and hashes of all required packages.
func (s *site) resolve(ctx context.Context, r *template.Requests) ([]image.LockedPackage, error) {
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return nil, err
	}
	q, err := s.request(ctx, r)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Write("requirements.in", text(q.list)), b.Write("constraints.txt", text(q.constraints))); err != nil {
		return nil, err
	}
	args := s.compileArgs()
	if len(s.index) > 0 {
		if err := b.Mkdir("index"); err != nil {
			return nil, err
		}
		args = append(args, "/work/index/pyproject.toml")
	}
	if len(q.constraints) > 0 {
		args = append(args, "--constraint", "/work/constraints.txt")
	}
	if q.complete {
		args = append(args, "--no-deps")
	}
	if q.pre {
		args = append(args, "--prerelease", "allow")
	}
	built := map[string]image.LockedPackage{} // from source, by normal name
	var words string
	for {
		if len(s.index) > 0 {
			project, err := s.indexProject(built)
			if err != nil {
				return nil, err
			}
			if err := b.Write("index/pyproject.toml", project); err != nil {
				return nil, err
			}
		}
		words, err = b.Run(ctx, install.Tool{
			Rootfs: s.step.Rootfs, Env: s.env("/run/uv"), Cache: "uv", Program: program, Network: true, Args: args,
		})
		if err == nil {
			break
		}
		m := wantsSource.FindStringSubmatch(words)
		if m != nil && q.binary.onlyBinary(m[1]) {
			return nil, &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf("%s has no wheel for the base, and --only-binary forbids source distributions: use another version, or remove the option", m[1])}
		}
		if m == nil || built[normalName(m[1])].Name != "" || len(built) == maxSources || s.step.Platform != "" {
			return nil, failed(err, s.nameIndex(words))
		}
		// uv itself would run the package's code with access to the index's credentials.
		p, part, sourceErr := s.fromSource(ctx, image.LockedPackage{Name: m[1]}, q.specifiers(m[1], words))
		if errors.Is(sourceErr, errNoSource) {
			return nil, failed(err, s.nameIndex(words))
		}
		if sourceErr != nil {
			return nil, sourceErr
		}
		name, wheel, err := s.stub(p, part)
		if err != nil {
			return nil, err
		}
		if len(built) == 0 {
			if err := b.Mkdir("wheels"); err != nil {
				return nil, err
			}
			args = append(args, "--find-links", "/work/wheels")
		}
		if err := b.Write("wheels/"+name, wheel); err != nil {
			return nil, err
		}
		built[normalName(p.Name)] = p
	}
	for _, m := range yanked.FindAllStringSubmatch(words, -1) {
		s.step.Report(image.Progress{Step: "warning", Name: m[1], Message: m[0]})
	}
	out, err := b.Read("requirements.txt")
	if err != nil {
		return nil, fmt.Errorf("uv pip compile: %w", err)
	}
	packages, err := parsePinned(out)
	if err != nil {
		return nil, err
	}
	for i, p := range packages {
		if own := built[normalName(p.Name)]; own.Version == p.Version {
			packages[i] = own
			continue
		}
		if q.binary.noBinary(p.Name) {
			if packages[i], err = s.sourceOf(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return packages, q.honour(packages, cmp.Or(r.File, "packages.pip"))
}

// sourceOf returns the locked form of a package that --no-binary names.
func (s *site) sourceOf(ctx context.Context, p image.LockedPackage) (image.LockedPackage, error) {
	fail := func(why string) (image.LockedPackage, error) {
		return p, &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf("--no-binary: %s %s %s", p.Name, p.Version, why)}
	}
	if s.step.Platform != "" {
		return fail("cannot be built for a foreign base: remove the option")
	}
	source, _, err := s.fromSource(ctx, image.LockedPackage{Name: p.Name, Version: p.Version}, nil)
	if errors.Is(err, errNoSource) {
		return fail("has no source distribution: remove the option for the package, or use another version")
	}
	return source, err
}

// yanked matches uv's message that an author has withdrawn a version.
var yanked = regexp.MustCompile("`([^`\n]+)` is yanked( \\(reason: [^\n]*\\))?")

// noAnswer matches uv's messages about a faulty request, not a faulty network.
var noAnswer = regexp.MustCompile(`No solution found|Couldn't parse requirement|Failed to parse|not a valid|Expected `)

// noWheel matches uv's messages that a package has only a source distribution.
var noWheel = regexp.MustCompile(`no usable wheels|building from source is disabled|no wheels with a matching|has no wheels`)

// failed makes the user's error from uv's output.
func failed(err error, words string) error {
	frame := strings.NewReplacer("╰─▶", "", "├─▶", "", "│", "", "×", "", "error: ", "")
	lines := install.Lines(frame.Replace(words), func(l string) bool { return strings.HasPrefix(l, "warning: ") })
	words = strings.Join(lines, "\n")
	if noWheel.MatchString(words) {
		words += "\n(no source distribution to build for the base, either)"
	}
	return install.PackageFailed(err, "pip", words, noAnswer)
}

var pinned = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*) *== *([^ ;\\]+)`)

// parsePinned reads the output of uv pip compile --generate-hashes:
//
//	name==version \
//	    --hash=sha256:… \
//	    --hash=sha256:…
func parsePinned(src []byte) ([]image.LockedPackage, error) {
	r, err := parseRequirements("uv pip compile", src)
	if err != nil {
		return nil, err
	}
	if len(r.files) > 0 || len(r.constraints) > 0 {
		return nil, errors.New("uv pip compile: the answer names further files")
	}
	var out []image.LockedPackage
	for _, q := range r.list {
		m := pinned.FindStringSubmatch(q.text)
		if m == nil || len(q.hashes) == 0 {
			return nil, fmt.Errorf("uv pip compile: no version or no hash for %q", q.text)
		}
		out = append(out, image.LockedPackage{Name: m[1], Version: m[2], Hashes: q.hashes})
	}
	return out, nil
}

// install makes the parts of the packages with the indexes missing. It compiles and stores finished
// packages during the download of the rest.
func (s *site) install(ctx context.Context, packages []image.LockedPackage, parts []store.Part, missing []int) error {
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return err
	}
	type job struct {
		Dir          string `json:"dir"`
		Requirements string `json:"requirements"`
		Index        string `json:"index"` // URL of the index to look into first, or ""
	}
	var jobs []job
	for _, i := range missing {
		p, dir := packages[i], outDir(i)
		if err := b.Mkdir(dir); err != nil {
			return err
		}
		name := fmt.Sprintf("requirements-%d.txt", i)
		if err := b.Write(name, []byte(line(p))); err != nil {
			return err
		}
		index, err := s.indexOf(p.Name)
		if err != nil {
			return err
		}
		jobs = append(jobs, job{"/work/" + dir, "/work/" + name, index})
	}
	s.step.Report(image.Progress{Step: "packages", Message: "install"})
	var (
		group, running = errgroup.WithContext(ctx)
		installed      = make(chan int, len(missing))
	)
	group.Go(func() error {
		defer close(installed)
		waiting := slices.Clone(missing)
		words, err := run(running, b, install.Tool{
			Rootfs: s.step.Rootfs, Env: s.env(install.Private), Program: program, Network: true,
			Said: func(line string) { // the number of a job, once
				if n, err := strconv.Atoi(line); err == nil && n >= 0 && n < len(waiting) && waiting[n] >= 0 {
					installed <- waiting[n]
					waiting[n] = -1
				}
			},
		}, "install", jobs)
		if err == nil && slices.ContainsFunc(waiting, func(i int) bool { return i >= 0 }) {
			err = errors.New("uv pip install: ended early")
		}
		return failed(err, words)
	})
	group.Go(func() error { return s.store(running, b, packages, parts, installed) })
	return group.Wait()
}

// store compiles packages and makes their parts, until installed is closed. Each pass takes all
// indexes that installed holds.
func (s *site) store(ctx context.Context, b *install.Bench, packages []image.LockedPackage, parts []store.Part, installed <-chan int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for batch := next(installed); len(batch) > 0; batch = next(installed) {
		var jobs []compileJob
		for _, i := range batch {
			jobs = append(jobs, compileJob{Root: "/work/" + outDir(i), Place: "/" + prefix})
		}
		if err := compile(ctx, b, s.step.Rootfs, jobs); err != nil {
			return cmp.Or(group.Wait(), err) // group's error may be the cause of err
		}
		for _, i := range batch {
			group.Go(func() (err error) {
				p := packages[i]
				part := store.Part{Kind: "pip", Name: p.Name, Version: p.Version, Prefix: prefix, Hash: verifiedBy(b, p)}
				if parts[i], err = b.Put(ctx, s.key(p), part, outDir(i), skip); err != nil {
					return install.Unpacked(err, "pip", p.Name+" "+p.Version)
				}
				s.step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, End: true})
				return nil
			})
		}
	}
	return group.Wait()
}

// verifiedBy returns the locked hash that the installed file has. uv notes the verified hash in its
// cache (uv-client's DataWithCachePolicy):
//
//	[MessagePack: an id, hashes, the file's name][the answer's headers][their length, 8 bytes, little-endian]
//
// The result is "" if the hash is ambiguous.
func verifiedBy(b *install.Bench, p image.LockedPackage) string {
	if len(p.Hashes) == 1 {
		return p.Hashes[0]
	}
	cache, err := b.Open(path.Base(install.Private))
	if err != nil {
		return ""
	}
	defer func() { _ = cache.Close() }()
	var found []string
	for _, index := range []string{"pypi", "index/*"} {
		notes, _ := fs.Glob(cache.FS(), "wheels-v*/"+index+"/"+normalName(p.Name)+"/*.http") // the pattern is well-formed
		for _, note := range notes {
			text, err := readNote(cache, note)
			if err != nil {
				return ""
			}
			for _, h := range p.Hashes {
				if bytes.Contains(text, []byte(strings.TrimPrefix(h, "sha256:"))) && !slices.Contains(found, h) {
					found = append(found, h)
				}
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// maxNote is above the size of uv's notes.
const maxNote = 1 << 20

// readNote reads a file of uv's cache without the headers of the index's answer.
func readNote(cache *os.Root, name string) ([]byte, error) {
	info, err := cache.Lstat(name)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxNote) {
		err = fmt.Errorf("%s: not a file of uv's: %w", name, fs.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	text, err := cache.ReadFile(name)
	if err != nil {
		return nil, err
	}
	note, ok := withoutHeaders(text)
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrInvalid)
	}
	return note, nil
}

func withoutHeaders(note []byte) ([]byte, bool) {
	end := len(note) - 8
	if end < 0 {
		return nil, false
	}
	headers := binary.LittleEndian.Uint64(note[end:])
	if headers > uint64(end) {
		return nil, false
	}
	return note[:end-int(headers)], true
}

// outDir is a bench's directory of the package with an index.
func outDir(i int) string { return fmt.Sprintf("out/%d", i) }

// next waits for a value and returns it with all further buffered values; an empty result means
// that c is closed.
func next(c <-chan int) (batch []int) {
	for i := range c {
		if batch = append(batch, i); len(c) == 0 {
			break
		}
	}
	return batch
}
