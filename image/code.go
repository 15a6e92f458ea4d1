package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/freignore"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

const (
	codePrefix      = "function" // the function's files, in the image
	bootstrapPrefix = "opt/fre"
	maxIgnoreBytes  = 64 << 10
)

// code makes the part with the function's files. Modes are normalised. File times are kept, because
// caches of languages compare them; directory times are not, because an editor's temporary file
// changes them. On the way code checks the handler, in the code and in the base. source.go makes
// the output of a [CodeBuilder].
func (b *Builder) code(ctx context.Context, of *buildOf, runtime Runtime) (store.Part, error) {
	part := store.Part{Kind: "code", Name: of.t.ID, Version: of.t.Version, Prefix: codePrefix}
	err := b.withSource(ctx, of, func(source *os.Root) (err error) {
		if of.t.Code.Build != nil {
			part.Tree, err = b.runBuild(ctx, of, source)
			return err
		}
		if builder, ok := runtime.(CodeBuilder); ok && !OptionsOf(ctx).AsIs {
			if built, err := b.built(ctx, of, source, builder); err != nil || built.Tree != "" {
				part.Tree = built.Tree
				return err
			}
		}
		part.Tree, err = b.codeTree(ctx, of, source, of.t.Code.Path)
		return err
	})
	if err == nil {
		err = b.checkSyntax(ctx, of, runtime, part.Tree)
	}
	if of.t.Code.Git != nil && err == nil {
		part.Hash = "git:" + of.lock.Git.Commit
	}
	return part, err
}

// codeTree makes a tree of the code at name below dir.
func (b *Builder) codeTree(ctx context.Context, of *buildOf, dir *os.Root, name string) (store.Digest, error) {
	w, err := b.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	c := codeTree{ctx: ctx, w: w, id: of.t.ID, report: of.report, entries: map[string]codeEntry{}}
	err = c.add(dir, name, func() error { return b.checkHandler(of.t, &c, b.Store.Rootfs(of.base.Digest)) })
	if err != nil {
		return "", err
	}
	return w.Commit(ctx)
}

type codeTree struct {
	ctx    context.Context
	w      debian.Writer
	id     string // of the template
	report func(Progress)
	ignore freignore.List
	files  int64
	size   codeSize

	entries map[string]codeEntry                // by path in the part
	open    func(path string) (*os.File, error) // opens a file of the source
}

// codeSize counts the size of code. A build step or a git server may produce any amount, and sparse
// files take no space until they are copied.
type codeSize struct {
	bytes   int64
	entries int
}

// Limits of fetched or built code, as for a package.
const (
	maxBuiltBytes   = 4 << 30
	maxBuiltEntries = 250_000
)

func (s *codeSize) add(field string, bytes int64) error {
	s.bytes += bytes
	if s.entries++; s.entries > maxBuiltEntries || s.bytes > maxBuiltBytes || s.bytes < 0 {
		return &template.FieldError{Field: field, Message: fmt.Sprintf("%s: the code has more than %d files or %s", field, maxBuiltEntries, template.FormatBytes(maxBuiltBytes))}
	}
	return nil
}

// addAll adds all files below root.
func (s *codeSize) addAll(ctx context.Context, field string, root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(_ string, e fs.DirEntry, err error) error {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return s.add(field, info.Size())
	})
}

type codeEntry struct {
	mode fs.FileMode
	size int64
	link string
}

// add copies the code at name, and calls check before the sources close.
func (c *codeTree) add(dir *os.Root, name string, check func() error) error {
	info, err := dir.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("code.path %q: no such file or directory", name)}
	case err != nil && !ofHost(err):
		return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("code.path %q: %s", name, whyUnread(err))}
	case err != nil:
		return fmt.Errorf("code: %w", err)
	case !info.IsDir():
		c.open = func(string) (*os.File, error) { return dir.Open(name) }
		if err := c.file(dir, name, path.Base(name)); err != nil {
			return err
		}
		return check()
	}
	root, err := dir.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("code: %w", err)
	}
	defer root.Close()
	text, err := readSmall(root, freignore.File, maxIgnoreBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.ignore, err = freignore.Parse(text); err != nil {
		return template.Errors{{File: freignore.File, Message: err.Error()}}
	}
	err = fs.WalkDir(root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("code: %w", err)
		}
		return c.entry(root, p, e)
	})
	if err != nil {
		return err
	}
	if c.files == 0 {
		return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("code.path %q holds no files", name)}
	}
	c.open = root.Open
	return check()
}

func (c *codeTree) entry(root *os.Root, p string, e fs.DirEntry) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if p == "." {
		return nil
	}
	if e.Name() == ".git" || p == LockFile || p == freignore.File || c.ignore.Match(p, e.IsDir()) {
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if e.Type() != 0 {
		if err := c.size.add("code.path", 0); err != nil {
			return err
		}
	}
	switch e.Type() {
	case fs.ModeDir:
		if !utf8.ValidString(p) { // package fs does not read the directory
			return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("the name of the directory %q in the code is not UTF-8: rename the directory, or list the directory in %s", p, freignore.File)}
		}
		c.entries[p] = codeEntry{mode: fs.ModeDir}
		return c.w.Directory(p, 0o755, systemTime)
	case fs.ModeSymlink:
		target, err := root.Readlink(p)
		if err != nil {
			return fmt.Errorf("code: %w", err)
		}
		if at := path.Join(path.Dir(p), target); path.IsAbs(target) || at == ".." || strings.HasPrefix(at, "../") {
			return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("the symlink %s in the code leads outside, to %s: replace the symlink by a copy, or list the symlink in %s", p, target, freignore.File)}
		}
		c.files++
		c.entries[p] = codeEntry{mode: fs.ModeSymlink, link: target}
		return c.w.Symlink(p, target, systemTime)
	case 0:
		return c.file(root, p, p)
	}
	return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s in the code is a %s: only files, directories and symlinks can be in an image; list the path in %s", p, freignore.Kind(e.Type()), freignore.File)}
}

var errIrregular = errors.New("not a regular file")

// openRegular opens the regular file name below dir. Because the file may be replaced meanwhile,
// openRegular opens it without waiting for a FIFO's other end, and checks the type afterwards.
// Errors: errIrregular.
func openRegular(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errIrregular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// file copies p below root to the tree.
func (c *codeTree) file(root *os.Root, p, to string) error {
	f, err := openRegular(root, p)
	if err != nil {
		return FileFault(p, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("code: %w", err)
	}
	if err := c.size.add("code.path", info.Size()); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	c.files++
	c.entries[to] = codeEntry{mode: mode, size: info.Size()}
	if err := c.w.File(to, mode, info.ModTime(), f); err != nil {
		return err
	}
	c.report(Progress{Step: "code", Name: c.id, Done: c.files, Unit: UnitItems})
	return nil
}

// bootstrap makes or finds the part below /opt/fre.
func (b *Builder) bootstrap(ctx context.Context, of *buildOf, runtime Runtime, files map[string][]byte) (store.Part, error) {
	names := slices.Sorted(maps.Keys(files))
	h := sha256.New()
	for _, name := range names {
		_, _ = fmt.Fprintf(h, "%q %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	compiler, compiled := runtime.(Compiler)
	if compiled {
		_, _ = fmt.Fprintln(h, of.base.Digest)
	}
	hash := hex.EncodeToString(h.Sum(nil))
	key := "bootstrap:" + runtime.Name() + ":" + hash
	if part, ok := b.Store.Part(key); ok {
		return part, nil
	}
	part := store.Part{}
	var err error
	if compiled {
		err = b.step(of, func(s *Step) (err error) {
			part, err = compiler.CompileBootstrap(ctx, s)
			return err
		})
	} else {
		part.Tree, err = b.filesTree(ctx, names, files)
	}
	if err != nil {
		return store.Part{}, err
	}
	part.Kind, part.Name, part.Version, part.Prefix = "bootstrap", runtime.Name(), hash[:12], bootstrapPrefix
	return part, b.Store.PutPart(ctx, key, part)
}

func (b *Builder) filesTree(ctx context.Context, names []string, files map[string][]byte) (store.Digest, error) {
	w, err := b.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	for _, name := range names {
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(files[name], []byte(elf.ELFMAG)) {
			mode = 0o755
		}
		if err := w.File(name, mode, systemTime, bytes.NewReader(files[name])); err != nil {
			return "", err
		}
	}
	return w.Commit(ctx)
}
