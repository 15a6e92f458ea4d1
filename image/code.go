package image

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
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

	"github.com/fre-engine/fre/store"
)

const (
	codePrefix      = "function" // the function's own files, in the image
	bootstrapPrefix = "opt/fre"
	ignoreFile      = ".freignore"
	maxIgnoreBytes  = 64 << 10
)

// code makes the part that holds the function's own files: modes normalised,
// file times kept (a language's caches compare them), directory times not (an
// editor's temporary file changes them). The handler is looked for on the way,
// in the code and in base.
func (b *Builder) code(ctx context.Context, dir *os.Root, t *Template, base *store.Image, report func(Event)) (store.Part, error) {
	w, err := b.Store.Create()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()
	c := codeTree{ctx: ctx, w: w, report: report, entries: map[string]codeEntry{}}
	err = c.add(dir, t.Code.Path, func() error { return c.checkHandler(t, b.Store.Rootfs(base.Digest)) })
	if err != nil {
		return store.Part{}, err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return store.Part{}, err
	}
	return store.Part{Kind: "code", Name: t.ID, Version: t.Version, Tree: tree, Prefix: codePrefix}, nil
}

type codeTree struct {
	ctx    context.Context
	w      *store.Writer
	report func(Event)
	ignore ignoreList
	files  int64

	entries map[string]codeEntry                // by path in the part
	open    func(path string) (*os.File, error) // a file's source
}

type codeEntry struct {
	mode fs.FileMode
	size int64
	link string
}

// add copies what name stands for and calls check before the sources close.
func (c *codeTree) add(dir *os.Root, name string, check func() error) error {
	info, err := dir.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &FieldError{"code.path", fmt.Sprintf("code.path %q: there is no such file or directory beside the template", name)}
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
	text, err := readSmall(root, ignoreFile, maxIgnoreBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.ignore, err = parseIgnore(string(text)); err != nil {
		return err
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
		return &FieldError{"code.path", fmt.Sprintf("code.path %q holds no files", name)}
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
	if e.Name() == ".git" || p == LockFile || p == ignoreFile || c.ignore.match(p, e.IsDir()) {
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	switch e.Type() {
	case fs.ModeDir:
		c.entries[p] = codeEntry{mode: fs.ModeDir}
		return c.w.Directory(p, 0o755, systemTime)
	case fs.ModeSymlink:
		target, err := root.Readlink(p)
		if err != nil {
			return fmt.Errorf("code: %w", err)
		}
		if at := path.Join(path.Dir(p), target); path.IsAbs(target) || at == ".." || strings.HasPrefix(at, "../") {
			return &FieldError{"code.path", fmt.Sprintf("the symlink %s in the code leads outside, to %s: replace it by a copy or name it in %s", p, target, ignoreFile)}
		}
		c.files++
		c.entries[p] = codeEntry{mode: fs.ModeSymlink, link: target}
		return c.w.Symlink(p, target, systemTime)
	case 0:
		return c.file(root, p, p)
	}
	return &FieldError{"code.path", fmt.Sprintf("%s in the code is a %s: only files, directories and symlinks can be in an image; name it in %s", p, kindName(e.Type()), ignoreFile)}
}

func kindName(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "fifo"
	case mode&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

// file copies p below root to the tree. The file may be swapped while we look:
// it is opened without waiting for a fifo's other end, and looked at after.
func (c *codeTree) file(root *os.Root, p, to string) error {
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("code: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("code: %w", err)
	}
	if !info.Mode().IsRegular() {
		return &FieldError{"code.path", fmt.Sprintf("%s is not a regular file", p)}
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
	c.report(Event{Step: "code", Name: to, Done: c.files})
	return nil
}

// bootstrap makes the part below /opt/fre, or finds it.
func (b *Builder) bootstrap(ctx context.Context, runtime string, files map[string][]byte) (store.Part, error) {
	names := slices.Sorted(maps.Keys(files))
	h := sha256.New()
	for _, name := range names {
		_, _ = fmt.Fprintf(h, "%q %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	hash := hex.EncodeToString(h.Sum(nil))
	key := "bootstrap:" + runtime + ":" + hash
	if part, ok := b.Store.Part(key); ok {
		return part, nil
	}
	w, err := b.Store.Create()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()
	for _, name := range names {
		if err := w.File(name, 0o644, systemTime, bytes.NewReader(files[name])); err != nil {
			return store.Part{}, err
		}
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return store.Part{}, err
	}
	part := store.Part{Kind: "bootstrap", Name: runtime, Version: hash[:12], Tree: tree, Prefix: bootstrapPrefix}
	return part, b.Store.PutPart(ctx, key, part)
}

// ignoreList holds the patterns of a .freignore: as in .gitignore, one a line;
// # begins a comment, ! takes back, a slash at the end means directories only,
// a slash elsewhere ties the pattern to the top, ** stands for any depth. The
// last line that matches counts. What is below an ignored directory stays out.
type ignoreList []ignorePattern

type ignorePattern struct {
	segments []string
	dirOnly  bool
	keep     bool
}

func parseIgnore(text string) (ignoreList, error) {
	var list ignoreList
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		p := ignorePattern{}
		line, p.keep = strings.CutPrefix(line, "!")
		line, p.dirOnly = strings.CutSuffix(line, "/")
		if !strings.Contains(line, "/") {
			line = "**/" + line
		}
		p.segments = strings.Split(strings.TrimPrefix(line, "/"), "/")
		for _, s := range p.segments {
			if _, err := path.Match(s, ""); err != nil || s == "" {
				return nil, fmt.Errorf("%s line %d: %q: %w", ignoreFile, n, line, cmp.Or(err, path.ErrBadPattern))
			}
		}
		list = append(list, p)
	}
	return list, nil
}

func (l ignoreList) match(p string, dir bool) bool {
	segments := strings.Split(p, "/")
	for _, pattern := range slices.Backward(l) {
		if (dir || !pattern.dirOnly) && matchSegments(pattern.segments, segments) {
			return !pattern.keep
		}
	}
	return false
}

func matchSegments(pattern, segments []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for i := range len(segments) + 1 {
				if matchSegments(pattern[1:], segments[i:]) {
					return true
				}
			}
			return false
		}
		if len(segments) == 0 {
			return false
		}
		if ok, _ := path.Match(pattern[0], segments[0]); !ok { // patterns were checked
			return false
		}
		pattern, segments = pattern[1:], segments[1:]
	}
	return len(segments) == 0
}
