package adapter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// path resolves a client's path.
func (a *agent) path(p string) string {
	if !filepath.IsAbs(p) {
		p = filepath.Join(a.home, p)
	}
	return filepath.Clean(p)
}

// named is the path of a query.
func (a *agent) named(q url.Values) (string, error) {
	p := q.Get("path")
	if p == "" || strings.ContainsRune(p, 0) {
		return "", refuse("path: name a file, for example main.py for %s/main.py", a.home)
	}
	return a.path(p), nil
}

func count(q url.Values, name string) (int64, error) {
	s := q.Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, refuse("%s: %q is no number of bytes", name, s)
	}
	return n, nil
}

func modeOf(q url.Values, usual fs.FileMode) (fs.FileMode, error) {
	s := q.Get("mode")
	if s == "" {
		return usual, nil
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 {
		return 0, refuse("mode: %q is not a mode, for example 644 or 755", s)
	}
	return fs.FileMode(n), nil
}

// part is a file's content, or a part of it.
type part struct {
	io.Reader
	io.Closer
}

func (a *agent) read(q url.Values) (*channel.Answer, error) {
	path, err := a.named(q)
	if err != nil {
		return nil, err
	}
	offset, err := count(q, "offset")
	if err != nil {
		return nil, err
	}
	length, err := count(q, "length")
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a fifo must not block
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refuse("%s is not a regular file: list the directory", path)
	}
	if err == nil && offset > 0 {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	body := part{f, f}
	if q.Get("length") != "" {
		body.Reader = io.LimitReader(f, length)
	}
	return &channel.Answer{Headers: [][2]string{{"content-type", "application/octet-stream"}}, Body: body}, nil
}

// write makes or replaces a file, whole or not at all.
func (a *agent) write(q url.Values, body io.Reader) (_ *channel.Answer, err error) {
	path, err := a.named(q)
	if err != nil {
		return nil, err
	}
	usual := fs.FileMode(0o644)
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return nil, refuse("%s is a directory", path)
	} else if err == nil && info.Mode().IsRegular() { // a replaced script stays executable
		usual = info.Mode().Perm()
	}
	mode, err := modeOf(q, usual)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".fre-*")
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(f, body)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return &channel.Answer{Status: 204}, nil
}

func (a *agent) remove(q url.Values) (*channel.Answer, error) {
	path, err := a.named(q)
	if err != nil {
		return nil, err
	}
	if path == "/" || path == a.home {
		return nil, refuse("%s cannot be removed: remove the files inside, or the sandbox", path)
	}
	if _, err := os.Lstat(path); err != nil {
		return nil, err
	}
	if q.Get("recursive") == "true" {
		err = os.RemoveAll(path)
	} else {
		err = os.Remove(path)
	}
	if errors.Is(err, syscall.ENOTEMPTY) {
		err = &refusal{400, "bad_request", path + " is not empty", "use recursive=true"}
	}
	if err != nil {
		return nil, err
	}
	return &channel.Answer{Status: 204}, nil
}

func (a *agent) mkdir(q url.Values) (*channel.Answer, error) {
	path, err := a.named(q)
	if err != nil {
		return nil, err
	}
	mode, err := modeOf(q, 0o755)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, err
	}
	return &channel.Answer{Status: 204}, nil
}

// file is an entry of a list.
type file struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"` // "file", "directory", "symlink", "other"
	Size     int64     `json:"size"`
	Mode     string    `json:"mode"` // "644"
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a symlink
}

func fileOf(path string, info fs.FileInfo) file {
	f := file{Name: strings.ToValidUTF8(info.Name(), "\ufffd"), Type: "other", Size: info.Size(), Mode: fmt.Sprintf("%o", info.Mode().Perm()), Modified: info.ModTime().UTC()}
	switch {
	case info.Mode().IsRegular():
		f.Type = "file"
	case info.IsDir():
		f.Type = "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		f.Type = "symlink"
		f.Target, _ = os.Readlink(path) // the link may be gone
	}
	return f
}

// mostListed bounds a directory's list.
const mostListed = 10_000

// list describes the file at a path and, for a directory, its entries.
func (a *agent) list(q url.Values) (*channel.Answer, error) {
	path := a.path(q.Get("path"))
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	out := struct {
		file
		Path      string `json:"path"`
		Entries   []file `json:"entries,omitempty"`
		Truncated bool   `json:"truncated,omitempty"` // the directory has more entries
	}{file: fileOf(path, info), Path: path}
	if !info.IsDir() {
		return answerJSON(200, out), nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(mostListed + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if out.Truncated = len(names) > mostListed; out.Truncated {
		names = names[:mostListed]
	}
	slices.Sort(names)
	for _, name := range names {
		at := filepath.Join(path, name)
		if info, err := os.Lstat(at); err == nil { // otherwise the file is gone
			out.Entries = append(out.Entries, fileOf(at, info))
		}
	}
	return answerJSON(200, out), nil
}
