package client

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/freignore"
)

// selection selects the files of a template directory to upload: every file except .git and the
// files matched by the code's .freignore. Files that the build reads besides the code (package
// requests, a base archive) are uploaded even if .freignore matches.
type selection struct {
	code   string // path of the function's own files
	ignore freignore.List
	reads  map[string]bool
}

// maxRead is a bound, in bytes, above the size of any package request file.
const maxRead = 1 << 20

// selected asks the engine for the paths in the template. For an invalid template, selected
// selects all files, because the build reports the error.
func (c *Client) selected(ctx context.Context, root *os.Root) (*selection, error) {
	s := &selection{code: ".", reads: map[string]bool{}}
	src, err := root.ReadFile(api.TemplateFile)
	if err != nil {
		return s, nil //nolint:nilerr // the build says so
	}
	info, err := c.CheckTemplate(ctx, src)
	if err != nil {
		return s, nil //nolint:nilerr // the build says so
	}
	s.code = path.Clean(info.Code)
	for _, name := range info.Reads {
		s.read(root, path.Clean(name))
	}
	text, err := root.ReadFile(path.Join(s.code, freignore.File))
	if err != nil { // none; or the code is a file
		return s, nil //nolint:nilerr // the build says what is wrong with the code
	}
	if s.ignore, err = freignore.Parse(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(s.code, freignore.File), err)
	}
	return s, nil
}

var (
	// besideNames are files that a package tool reads beside another file.
	besideNames = []string{"package.json", "package-lock.json", "pyproject.toml", "uv.lock", "composer.json", "composer.lock", "Gemfile", "Gemfile.lock"}
	// namedFile matches the files named in a package request file: "-r other.txt", "url":
	// "./library".
	namedFile = regexp.MustCompile(`(?m)^\s*(?:-[rc]|--requirement|--constraint)[\s=]*(\S+)|"url"\s*:\s*"([^"]+)"`)
)

// read adds a file that the build reads, and the files named in it.
func (s *selection) read(root *os.Root, name string) {
	if s.reads[name] || name == "." || !filepath.IsLocal(name) {
		return
	}
	s.reads[name] = true
	info, err := root.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRead {
		return
	}
	for _, beside := range besideNames {
		s.reads[path.Join(path.Dir(name), beside)] = true
	}
	text, err := root.ReadFile(name)
	if err != nil {
		return
	}
	for _, m := range namedFile.FindAllStringSubmatch(string(text), -1) {
		s.read(root, path.Join(path.Dir(name), m[1]+m[2]))
	}
}

// sends reports whether the upload includes a path, given that the upload includes the parent.
func (s *selection) sends(name string, dir bool) bool {
	switch {
	case path.Base(name) == ".git":
		return false
	case name == "." || name == api.TemplateFile || name == api.LockFile || s.isRead(name, dir):
		return true
	}
	below, ok := name, s.code == "."
	if !ok {
		below, ok = strings.CutPrefix(name, s.code+"/")
	}
	return !ok || below == freignore.File || !s.ignored(below, dir)
}

// ignored reports whether .freignore matches a path of the code or one of its parent
// directories.
func (s *selection) ignored(below string, dir bool) bool {
	for i := range below {
		if below[i] == '/' && s.ignore.Match(below[:i], true) {
			return true
		}
	}
	return s.ignore.Match(below, dir)
}

// isRead reports whether the build reads a path, a parent of the path, or a file below the path.
func (s *selection) isRead(name string, dir bool) bool {
	for read := range s.reads {
		if name == read || strings.HasPrefix(name, read+"/") || dir && strings.HasPrefix(read, name+"/") {
			return true
		}
	}
	return false
}

// pack writes the files selected by s as a tar stream.
func pack(w io.Writer, root *os.Root, s *selection) error {
	t := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !s.sends(name, entry.IsDir()) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err := packEntry(t, root, name); err != nil {
			return fmt.Errorf("send %s: %w", filepath.Join(root.Name(), name), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.Close()
}

func packEntry(t *tar.Writer, root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(time.Second), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDir:
		if !utf8.ValidString(name) { // package fs cannot read such a directory
			return fmt.Errorf("the name is not UTF-8: rename the directory, or list the directory in %s", freignore.File)
		}
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		return t.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(name); err != nil {
			return err
		}
		return t.WriteHeader(h)
	case 0:
	default:
		return fmt.Errorf("is a %s: only files, directories and links can be sent; list the path in %s", freignore.Kind(info.Mode()), freignore.File)
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(t, f, h.Size); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("shrank during the read")
		}
		return err
	}
	return nil
}
