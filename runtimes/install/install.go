// Package install is the common part of runtimes that run a package tool in a build step: the
// working directory, the environment, the tool's messages for the user, and the import of its
// results into the store.
//
// A step sees its own directory at /work (writable); while resolving, a cache that all builds of
// the tool share at /run (writable); and a read-only directory of FRE's own at /function: mount
// points that every image has.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// caBundle is the path of the host's certificates in a build step with network.
const caBundle = "/etc/ssl/certs/ca-certificates.crt"

// Time is the time stamp of all installed files: the same package gives the same tree on every host
// and at every time.
var Time = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// Bench is the working directory of one tool, /work in the sandbox.
type Bench struct {
	Dir     string // on the host
	step    *image.Step
	counter *Counter // of imported files
}

// NewBench makes a bench in the step's scratch directory.
func NewBench(step *image.Step) (*Bench, error) {
	dir, err := os.MkdirTemp(step.Scratch, "bench-")
	if err != nil {
		return nil, err
	}
	// The sandbox's user has no name on the host.
	return &Bench{Dir: dir, step: step, counter: NewCounter()}, os.Chmod(dir, 0o777)
}

// Remove removes the bench, which would otherwise go with the step's scratch directory.
func (b *Bench) Remove() error { return linux.RemoveAll(b.Dir) }

// Write writes a file on the bench and replaces a tool's file of the same name.
func (b *Bench) Write(name string, data []byte) error {
	root, err := b.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	// Do not write through the old file: it may be a link or a fifo.
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Mkdir makes directories on the bench that tools may write to, with parents that tools may not
// write to.
func (b *Bench) Mkdir(names ...string) error {
	root, err := b.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range names {
		// The sandbox's user has no name on the host.
		if err := errors.Join(root.MkdirAll(name, 0o755), root.Chmod(name, 0o777)); err != nil {
			return err
		}
	}
	return nil
}

// Program finds a program of the base environment ([image.Step.Program]).
func (b *Bench) Program(name string) (string, error) { return b.step.Program(name) }

// Open opens a directory that the tool made. The tool is not trusted: symbolic links do not lead
// out of the bench.
func (b *Bench) Open(name string) (*os.Root, error) {
	top, err := os.OpenRoot(b.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = top.Close() }()
	return top.OpenRoot(name)
}

// Read reads a file that the tool made, of at most 16 MiB.
func (b *Bench) Read(name string) ([]byte, error) {
	root, err := b.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > 16<<20 {
		return nil, fmt.Errorf("read %s: not a file of at most 16 MiB", name)
	}
	return root.ReadFile(name)
}

// Tool is one run of a tool at a bench.
type Tool struct {
	Rootfs  string
	Args    []string
	Dir     string // working directory below the bench; "" is the top
	Env     []string
	Cache   string // name of the shared cache at /run, "" for none: see [Private]
	Program string // host directory at /function, "" for none
	Parks   bool   // see [image.Command]
	Network bool
	Said    func(line string) // unless nil, gets each line of stdout at once
}

// Run runs the tool with HOME at the bench, and with the host's settings if it has network. If the
// tool exits non-zero, words is its stderr, or its stdout if stderr is empty, and err is an
// *image.ExitError.
func (b *Bench) Run(ctx context.Context, t Tool) (words string, err error) {
	c := image.Command{
		Rootfs: t.Rootfs, Args: t.Args, Dir: path.Join("/work", t.Dir), Network: t.Network, Parks: t.Parks,
		Env:   append([]string{"PATH=/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8"}, t.Env...),
		Binds: []image.Bind{{Source: b.Dir, Target: "/work", Writable: true}},
	}
	if t.Network {
		c.Env = append(c.Env, b.step.Settings.Env...)
		if b.step.Settings.CACerts != "" {
			c.Env = append(c.Env, "SSL_CERT_FILE="+caBundle, "PIP_CERT="+caBundle, "NODE_EXTRA_CA_CERTS="+caBundle, "npm_config_cafile="+caBundle)
		}
	}
	if t.Cache != "" {
		dir, err := Cache(b.step.Store, t.Cache)
		if err != nil {
			return "", err
		}
		c.Binds = append(c.Binds, image.Bind{Source: dir, Target: "/run", Writable: true})
	}
	if t.Program != "" {
		c.Binds = append(c.Binds, image.Bind{Source: t.Program, Target: "/function"})
	}
	var stdout, stderr tail
	c.Stdout, c.Stderr = &stdout, &stderr
	if t.Said != nil {
		c.Stdout = io.MultiWriter(&stdout, &lines{said: t.Said})
	}
	err = b.step.Run.Run(ctx, c)
	if words = stderr.String(); strings.TrimSpace(words) == "" {
		words = stdout.String()
	}
	return words, err
}

// lines calls said for each line of its input up to maxLine bytes.
type lines struct {
	said func(string)
	rest []byte
}

const maxLine = 4 << 10

func (l *lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte{'\n'})
		if l.rest = append(l.rest, line...); len(l.rest) > maxLine {
			l.rest = l.rest[:maxLine+1]
		}
		if ended {
			if len(l.rest) <= maxLine {
				l.said(string(l.rest))
			}
			l.rest = l.rest[:0]
		}
		rest = after
	}
	return len(p), nil
}

// tail keeps the end of its input.
type tail struct{ b bytes.Buffer }

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b.Write(p)
	if over := t.b.Len() - 2*tailSize; over > 0 {
		t.b.Next(t.b.Len() - tailSize)
	}
	return len(p), nil
}

// colours matches escape sequences, which some tools write without a terminal too.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

func (t *tail) String() string {
	return colours.ReplaceAllString(strings.ToValidUTF8(t.b.String(), "\ufffd"), "")
}

// Failed is the error of a tool that printed words. It names about, a field of the template, if
// about is not empty.
func Failed(err error, about, words string) error {
	var exit *image.ExitError
	if !errors.As(err, &exit) || words == "" {
		return err
	}
	if about != "" {
		return &template.FieldError{Field: about, Message: words}
	}
	return &image.ExitError{Args: exit.Args[:min(1, len(exit.Args))], Status: exit.Status, Output: words}
}

// Private is the cache directory of a step that unpacks packages: on the step's bench, and removed
// with it. A hostile package might make the unpacker write into a cache, and uv does not verify its
// cache again. The cache that builds share only holds indexes and metadata.
const Private = "/work/.cache"

// Cache is a directory beside the store that outlives builds. Its contents may be removed at any
// time.
func Cache(s *store.Store, name string) (string, error) {
	dir := filepath.Join(filepath.Dir(s.Dir()), "cache", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, nil
}

// Lay writes the files of a tree to the directory name of the bench and replaces its contents: the
// reverse of [Bench.Import]. No tool can change the files.
func (b *Bench) Lay(ctx context.Context, d store.Digest, name string) error {
	tree, err := b.step.Store.Tree(d)
	if err != nil {
		return err
	}
	top, err := b.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	if err := errors.Join(top.RemoveAll(name), top.MkdirAll(name, 0o755)); err != nil {
		return err
	}
	root, err := top.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for i := range tree.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.layEntry(root, &tree.Entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) layEntry(root *os.Root, e *store.Entry) error {
	switch {
	case e.Aside:
		return nil
	case e.Kind == store.KindDir:
		return errors.Join(root.MkdirAll(e.Path, 0o755), root.Chmod(e.Path, 0o755))
	case e.Kind == store.KindSymlink:
		return root.Symlink(e.Link, e.Path)
	}
	return b.layFile(root, e, fs.FileMode(e.Mode))
}

func (b *Bench) layFile(root *os.Root, e *store.Entry, mode fs.FileMode) error {
	src, err := b.step.Store.OpenFile(e)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err := errors.Join(err, dst.Chmod(mode), dst.Close()); err != nil {
		return err
	}
	at := time.Unix(e.MTime, 0)
	return root.Chtimes(e.Path, at, at)
}

// Import makes one tree of the directory name of the bench, without the paths (relative to it) that
// skip selects. Modes become 0644 or 0755, time stamps become Time. No tool may write there any
// more: the files become the store's. Errors: [ErrTooLarge], store.ErrFileType for devices and the
// like.
func (b *Bench) Import(ctx context.Context, name string, skip func(path string) bool) (store.Digest, error) {
	root, err := b.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	w, err := b.step.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	counter := b.counter.Package("what was made")
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
			return err
		case p == ".":
			return nil
		case skip(p):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return importEntry(w, root, name, p, d, counter)
	})
	if err != nil {
		return "", err
	}
	return w.Commit(ctx)
}

// importEntry adds the path p of root, the directory name of a bench, to w.
func importEntry(w *store.Writer, root *os.Root, name, p string, d fs.DirEntry, counter *Counter) error {
	switch {
	case d.IsDir():
		return errors.Join(counter.Add(0), w.Directory(p, 0o755, Time))
	case d.Type() == fs.ModeSymlink:
		if err := counter.Add(0); err != nil {
			return err
		}
		target, err := root.Readlink(p)
		if err != nil {
			return err
		}
		return w.Symlink(p, target, Time)
	case d.Type().IsRegular():
		return importFile(w, root, p, counter)
	}
	return fmt.Errorf("import %s: %w", path.Join(name, p), store.ErrFileType)
}

func importFile(w *store.Writer, root *os.Root, p string, counter *Counter) error {
	f, err := root.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := counter.Add(info.Size()); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return w.Adopt(p, mode, Time, f)
}

// Put imports as Import does and stores the part under key.
func (b *Bench) Put(ctx context.Context, key string, part store.Part, name string, skip func(path string) bool) (store.Part, error) {
	tree, err := b.Import(ctx, name, skip)
	if err != nil {
		return store.Part{}, fmt.Errorf("import %s %s: %w", part.Name, part.Version, err)
	}
	part.Tree = tree
	return part, b.step.Store.PutPart(ctx, key, part)
}

// Lines returns the distinct non-empty lines of words, without the prefixes and surrounding spaces.
// drop selects lines to leave out.
func Lines(words string, drop func(line string) bool, prefixes ...string) []string {
	var out []string
	for line := range strings.Lines(words) {
		for _, p := range prefixes {
			line = strings.TrimPrefix(line, p)
		}
		if line = strings.TrimSpace(line); line != "" && !drop(line) && !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}
