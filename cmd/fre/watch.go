package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client/functest"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/freignore"
)

// watchQuiet is the time without a change before wait returns: an editor writes a file in several
// steps. watchPatience bounds the wait for quiet.
const (
	watchQuiet    = 30 * time.Millisecond
	watchPatience = 500 * time.Millisecond
)

// watcher reports changes below a directory. inotify watches single directories, so watcher scans
// each new directory itself. Changes in the new directory before the scan are not missed, because
// the creation of the directory counts as a change.
type watcher struct {
	dir   string
	fs    *fsnotify.Watcher
	rules watchRules
	seen  map[string]bool // watched directories
	moved bool            // a watched directory has another path now
}

func newWatcher(dir string) (*watcher, error) {
	dir, err := filepath.EvalSymlinks(dir) // WalkDir does not follow a symlink
	if err != nil {
		return nil, err
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &watcher{dir: dir, fs: w, seen: map[string]bool{}}, nil
}

func (w *watcher) close() { _ = w.fs.Close() }

// look watches all files that count by the rules. After a directory has moved, it starts again: the
// watches below the directory moved along and report old paths.
func (w *watcher) look(rules watchRules) error {
	if w.moved {
		w.close()
		anew, err := newWatcher(w.dir)
		if err != nil {
			return err
		}
		*w = *anew
	}
	w.rules = rules
	return w.add(w.dir)
}

// add watches a directory and all directories below. A directory that has vanished is no error.
func (w *watcher) add(dir string) error {
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !e.IsDir():
			return nil
		case p != w.dir && !w.rules.counts(w.relative(p), true):
			return fs.SkipDir
		case w.seen[p]:
			return nil
		}
		if err := w.fs.Add(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if errors.Is(err, unix.ENOSPC) {
				err = failure.Hint(errors.New("too many directories: this user's limit of inotify watches is reached"), "raise fs.inotify.max_user_watches (sysctl), or list directories in .freignore")
			}
			return err
		}
		w.seen[p] = true
		return nil
	})
	return err
}

func (w *watcher) relative(p string) string {
	rel, err := filepath.Rel(w.dir, p)
	if err != nil {
		return p
	}
	return filepath.ToSlash(rel)
}

// wait returns one changed path after a quiet moment; "" at the end of ctx.
func (w *watcher) wait(ctx context.Context) (changed string, err error) {
	var settled, late <-chan time.Time
	for {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return "", fs.ErrClosed
			}
			rel := w.relative(e.Name)
			info, err := os.Lstat(e.Name)
			isDir := err == nil && info.IsDir() || w.seen[e.Name]
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				w.moved = w.moved || e.Has(fsnotify.Rename) && w.seen[e.Name]
				delete(w.seen, e.Name) // inotify has dropped the watch
			}
			if e.Op == fsnotify.Chmod && isDir || rel != "." && !w.rules.counts(rel, isDir) {
				continue
			}
			if isDir && e.Has(fsnotify.Create) {
				if err := w.add(e.Name); err != nil {
					return "", err
				}
			}
			changed = rel
			settled = time.After(watchQuiet)
			if late == nil {
				late = time.After(watchPatience)
			}
		case err := <-w.fs.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return "", err
			}
			if err := w.add(w.dir); err != nil {
				return "", err
			}
			return "many files", nil
		case <-settled:
			return changed, nil
		case <-late:
			return changed, nil
		case <-ctx.Done():
			return "", nil
		}
	}
}

// watchRules decide which paths of a template's directory count.
type watchRules struct {
	test   bool           // the tests' files count
	code   string         // path of the function's own files
	ignore freignore.List // of the function's own files
}

// read reads the .freignore of the code at that path below dir. A missing or malformed file ignores
// nothing: the build reports the error.
func (r *watchRules) read(dir, code string) {
	r.code = path.Clean(code)
	text, err := os.ReadFile(filepath.Join(dir, r.code, freignore.File))
	if err != nil {
		return
	}
	if list, err := freignore.Parse(text); err == nil {
		r.ignore = list
	}
}

// counts reports whether a path relative to the template's directory counts.
func (r *watchRules) counts(rel string, dir bool) bool {
	segments := strings.Split(rel, "/")
	switch {
	case slices.Contains(segments, ".git"):
		return false
	case rel == api.TemplateFile:
		return true
	case strings.HasPrefix(path.Base(rel), api.LockFile), strings.HasPrefix(path.Base(rel), "."+api.LockFile): // written by the build
		return false
	case segments[0] == functest.Dir:
		return r.test
	}
	below, ok := rel, r.code == "." || r.code == ""
	if !ok {
		below, ok = strings.CutPrefix(rel, r.code+"/")
	}
	if !ok {
		return true
	}
	for i := range below { // paths below an ignored directory are ignored
		if below[i] == '/' && r.ignore.Match(below[:i], true) {
			return false
		}
	}
	return !r.ignore.Match(below, dir)
}
