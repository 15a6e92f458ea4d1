package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/freignore"
	"github.com/fre-engine/fre/template"
)

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
