package python

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

// uv is fetched by pip from the host's own index, as the wheel of these
// hashes and no other.
const uvVersion = "0.13.8"

func uvHash() (string, error) {
	switch runtime.GOARCH {
	case "amd64":
		return "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984", nil
	case "arm64":
		return "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d", nil
	}
	return "", fmt.Errorf("packages.pip on %s: %w", runtime.GOARCH, errors.ErrUnsupported)
}

// site is a package index seen from one base environment.
type site struct {
	step    *image.Step
	version string   // of the interpreter, "3.11"
	tools   []string // Debian packages that make pip
}

// key names the part of a package version in the store.
func (s *site) key(p image.LockedPackage) string {
	h := sha256.New()
	for _, hash := range slices.Sorted(slices.Values(p.Hashes)) {
		_, _ = fmt.Fprintln(h, hash)
	}
	return fmt.Sprintf("pip:%s==%s:cp%s:%s:%s", p.Name, p.Version, strings.ReplaceAll(s.version, ".", ""), runtime.GOARCH, hex.EncodeToString(h.Sum(nil)[:16]))
}

// env is uv's. What the host's uv.toml says is not there to be read.
func (s *site) env(cache string) []string {
	return append([]string{
		"UV_CACHE_DIR=" + cache, "UV_LINK_MODE=copy", "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never", "NO_COLOR=1",
	}, s.step.Settings.PipEnv...)
}

// resolve asks uv for the versions and hashes of everything requests need.
func (s *site) resolve(ctx context.Context, requests []string) ([]image.LockedPackage, error) {
	program, err := s.uv(ctx)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	if err := b.Write("requirements.in", []byte(strings.Join(requests, "\n")+"\n")); err != nil {
		return nil, err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: s.step.Rootfs, Env: s.env("/run/uv"), Cache: "uv", Program: program, Network: true,
		Args: []string{
			"/function/uv", "pip", "compile", "--quiet", "--no-progress", "--generate-hashes", "--no-header", "--no-annotate",
			"--no-emit-index-url", "--no-emit-find-links", "--only-binary", ":all:",
			"--python", "/usr/bin/python3", "--python-version", s.version,
			"--output-file", "/work/requirements.txt", "/work/requirements.in",
		},
	})
	if err != nil {
		return nil, failed(err, "packages.pip", words)
	}
	out, err := b.Read("requirements.txt")
	if err != nil {
		return nil, fmt.Errorf("uv pip compile: %w", err)
	}
	return parseRequirements(out)
}

// noAnswer is how uv says that the request, not the network, is at fault.
var noAnswer = regexp.MustCompile(`No solution found|Couldn't parse requirement|Failed to parse|not a valid|Expected `)

// noWheel is how uv says that only a source distribution would do.
var noWheel = regexp.MustCompile(`no usable wheels|building from source is disabled|no wheels with a matching|has no wheels`)

// failed turns what uv said into the error the user sees.
func failed(err error, field, words string) error {
	frame := strings.NewReplacer("╰─▶", "", "├─▶", "", "│", "", "×", "", "error: ", "")
	lines := install.Lines(frame.Replace(words), func(string) bool { return false })
	words = strings.Join(lines, "\n")
	if !noAnswer.MatchString(words) {
		field = ""
	}
	switch {
	case noWheel.MatchString(words):
		words += "\n(building from source is not supported yet: only packages with a wheel for this base can be installed)"
	case strings.Contains(words, "Hash mismatch"):
		words += "\n(nothing was kept; if the package was published anew on purpose, delete " + image.LockFile + ")"
	}
	return install.Failed(err, field, words)
}

var pinned = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)==([^ ;\\]+)`)

// parseRequirements reads what uv pip compile --generate-hashes writes:
//
//	name==version \
//	    --hash=sha256:… \
//	    --hash=sha256:…
func parseRequirements(src []byte) ([]image.LockedPackage, error) {
	var out []image.LockedPackage
	for line := range bytes.Lines(src) {
		text := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(line)), `\`))
		hash, isHash := strings.CutPrefix(text, "--hash=")
		switch m := pinned.FindStringSubmatch(text); {
		case text == "" || text[0] == '#':
		case m != nil:
			out = append(out, image.LockedPackage{Name: m[1], Version: m[2]})
		case isHash && len(out) > 0:
			last := &out[len(out)-1]
			last.Hashes = append(last.Hashes, hash)
		default:
			return nil, fmt.Errorf("uv pip compile: unexpected line %q", text)
		}
	}
	for _, p := range out {
		if len(p.Hashes) == 0 {
			return nil, fmt.Errorf("uv pip compile: no hash for %s==%s", p.Name, p.Version)
		}
	}
	return out, nil
}

// install makes the parts of those packages whose indexes are missing.
func (s *site) install(ctx context.Context, packages []image.LockedPackage, parts []store.Part, missing []int) error {
	program, err := s.uv(ctx)
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
	}
	var jobs []job
	var compiles []compileJob
	for _, i := range missing {
		p, dir := packages[i], fmt.Sprintf("out/%d", i)
		if err := mkdir(b, dir); err != nil {
			return err
		}
		line := []string{p.Name + "==" + p.Version}
		for _, h := range p.Hashes {
			line = append(line, "--hash="+h)
		}
		name := fmt.Sprintf("requirements-%d.txt", i)
		if err := b.Write(name, []byte(strings.Join(line, " ")+"\n")); err != nil {
			return err
		}
		jobs = append(jobs, job{"/work/" + dir, "/work/" + name})
		compiles = append(compiles, compileJob{Root: "/work/" + dir, Place: "/" + prefix})
	}
	s.step.Report(image.Event{Step: "packages", Message: "install", Total: int64(len(missing))})
	words, err := run(ctx, b, install.Tool{Rootfs: s.step.Rootfs, Env: s.env(install.Private), Program: program, Network: true}, "install", jobs)
	if err != nil {
		return failed(err, "packages.pip", words)
	}
	if err := compile(ctx, b, s.step.Rootfs, compiles); err != nil {
		return err
	}
	for n, i := range missing {
		p := packages[i]
		part := store.Part{Kind: "pip", Name: p.Name, Version: p.Version, Prefix: prefix}
		parts[i], err = b.Put(ctx, s.key(p), part, fmt.Sprintf("out/%d", i), skip)
		if err != nil {
			return err
		}
		s.step.Report(image.Event{Step: "packages", Name: p.Name + " " + p.Version, Done: int64(n + 1), Total: int64(len(missing))})
	}
	return nil
}

// uv returns the directory that holds the program, fetched at the first call
// on this machine.
func (s *site) uv(ctx context.Context) (string, error) {
	hash, err := uvHash()
	if err != nil {
		return "", err
	}
	programs, err := install.Cache(s.step.Store, "programs")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(programs, "uv-"+uvVersion+"-"+runtime.GOARCH)
	if _, err := os.Stat(filepath.Join(dir, "uv")); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	s.step.Report(image.Event{Step: "packages", Name: "uv " + uvVersion, Message: "fetch"})
	rootfs, err := s.step.Tools(ctx, "python", s.tools...)
	if err != nil {
		return "", err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return "", err
	}
	if err := b.Write("uv.txt", fmt.Appendf(nil, "uv==%s --hash=sha256:%s\n", uvVersion, hash)); err != nil {
		return "", err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: rootfs, Network: true, Env: append([]string{"PIP_NO_COLOR=1"}, s.step.Settings.PipEnv...),
		Args: []string{
			"/usr/bin/python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
			"--require-hashes", "--only-binary", ":all:", "--no-compile", "--target", "/work/uv", "-r", "/work/uv.txt",
		},
	})
	if err != nil {
		words = strings.Join(install.Lines(words, func(l string) bool { return strings.HasPrefix(l, "WARNING:") }, "ERROR: "), "\n")
		return "", fmt.Errorf("fetch uv %s: %w", uvVersion, install.Failed(err, "", words))
	}
	root, err := b.Open("uv/bin")
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	return dir, keepProgram(root, "uv", dir)
}

// keepProgram copies the program name out of from into the new directory dir.
func keepProgram(from *os.Root, name, dir string) error {
	src, err := from.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	aside, err := os.MkdirTemp(filepath.Dir(dir), "."+name+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(aside) }()
	dst, err := os.OpenFile(filepath.Join(aside, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = dst.ReadFrom(src)
	if err := errors.Join(err, dst.Sync(), dst.Close(), os.Chmod(aside, 0o755)); err != nil {
		return err
	}
	if err := os.Rename(aside, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another build was faster
		return err
	}
	return nil
}
