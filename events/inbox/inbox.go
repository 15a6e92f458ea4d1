// Package inbox finds files that are put into a directory, each once and when it is complete.
// Whoever writes there is hostile: nothing is followed out of the directory, no symbolic link
// at all (openat2, RESOLVE_BENEATH), and what is there at a time is bounded.
//
// inotify(7) only says where to look. What counts is what is found there: a regular file that
// nobody has open for writing (a read lease is refused otherwise, fcntl(2) F_SETLEASE). So an
// event too many, or a queue that has run over, does no harm; the latter has everything
// looked through.
//
// A file is what its path, inode, size and time of modification say. Which have been offered
// is kept on disk, so that after a restart those are found that came meanwhile.
package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/glob"
)

// Config says what is looked for. All of it is required.
type Config struct {
	Dir     string // of the files
	Pattern string // of paths below Dir, as glob.Parse takes it
	Record  string // file that remembers what was offered; made if it is not there
	Log     *slog.Logger

	Instances *Instances // of inotify's; without one left everything is looked through at intervals
	Owner     string     // who has it
}

// File is one that is complete.
type File struct {
	Path     string // below the directory; any bytes but zero
	Size     int64
	Modified time.Time
	Key      string // the same for the same file as it is
}

const (
	// maxDirs bounds the directories that are watched, maxDepth how deep they may lie.
	maxDirs, maxDepth = 1024, 32
	// maxPaths bounds the paths that are remembered to be looked at; with more, everything is
	// looked through.
	maxPaths = 4096
	// later is when a file is looked at again that is being written, or was refused, and when
	// everything is: not sooner, whatever is written there, nor before as much time has passed
	// as it took.
	later = time.Second
	// unwatched is how long after that everything is looked through again where not all can
	// be watched.
	unwatched = 10 * time.Second
	// offering is how many files are offered at once.
	offering = 16
)

const (
	interest = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	resolve  = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
)

// watcher is one inbox that is looked after.
type watcher struct {
	cfg     Config
	pattern glob.Pattern
	root    int
	offer   func(context.Context, *File) error
	record  *record

	notify *os.File // inotify; nil: there is none, and nothing is watched
	watch  int      // its descriptor
	dirs   map[int]string
	known  map[string]int // the other way round

	fresh map[string]bool // paths that something has happened to
	later map[string]bool // paths to look at again when it is due
	whole bool            // everything is to be looked through, when it is due
	due   time.Time
	some  bool      // not every directory is watched
	next  time.Time // when everything is looked through then
	said  bool      // that of a file nobody can tell whether it is complete
	alone bool      // said that there is no inotify
}

// Watch offers the files that match until ctx ends; those first that are there. What is
// refused by an error is offered again.
func Watch(ctx context.Context, cfg Config, offer func(context.Context, *File) error) (err error) {
	pattern, err := glob.Parse(cfg.Pattern)
	if err != nil {
		return err
	}
	root, err := unix.Open(cfg.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	w := &watcher{cfg: cfg, pattern: pattern, root: root, offer: offer, fresh: map[string]bool{}, later: map[string]bool{}}
	defer func() { err = errors.Join(err, w.close()) }()
	if w.record, err = openRecord(cfg.Record); err != nil {
		return err
	}
	w.renew()
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		if err := w.turn(ctx); err != nil {
			return err
		}
		if err := w.wait(ctx, buf); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) close() error {
	err := unix.Close(w.root)
	if w.notify != nil {
		err = errors.Join(err, w.cfg.Instances.close(w.cfg.Owner, w.notify))
	}
	if w.record != nil {
		err = errors.Join(err, w.record.f.Close())
	}
	return err
}

// renew begins to watch anew: watches follow their directories, whose paths have changed.
func (w *watcher) renew() {
	if w.notify != nil {
		_ = w.cfg.Instances.close(w.cfg.Owner, w.notify) // nothing was written
		w.notify = nil
	}
	w.dirs, w.known, w.whole, w.some = map[int]string{}, map[string]int{}, true, false
	var err error
	w.notify, w.watch, err = w.cfg.Instances.open(w.cfg.Owner)
	if err != nil && !w.alone {
		w.alone = true
		w.cfg.Log.Warn("files are looked for at intervals", "every", unwatched, "error", err)
	}
}

// turn looks at what something has happened to, and at what is due.
func (w *watcher) turn(ctx context.Context) error {
	began := time.Now()
	w.whole = w.whole || w.some && began.After(w.next)
	paths := take(w.fresh)
	if began.Before(w.due) {
		return w.look(ctx, paths)
	}
	defer func() {
		now := time.Now()
		w.due = now.Add(max(later, now.Sub(began)))
	}()
	if w.whole {
		return w.lookThrough(ctx)
	}
	return w.look(ctx, append(paths, take(w.later)...))
}

// wait returns when there is something to look at.
func (w *watcher) wait(ctx context.Context, buf []byte) error {
	var until time.Time // zero: for ever
	switch {
	case w.whole || len(w.later) > 0:
		until = w.due
	case w.some:
		until = w.next
	}
	if w.notify == nil {
		soon := time.NewTimer(time.Until(until))
		defer soon.Stop()
		select {
		case <-soon.C:
		case <-ctx.Done():
		}
		return nil
	}
	if err := w.notify.SetReadDeadline(until); err != nil {
		return err
	}
	notify := w.notify
	stop := context.AfterFunc(ctx, func() { _ = notify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := w.notify.Read(buf)
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case err != nil:
		return fmt.Errorf("inotify: %w", err)
	}
	if moved := w.events(buf[:n]); moved {
		w.renew()
	}
	return nil
}

// events takes note of what inotify says. moved: a directory has another path now.
func (w *watcher) events(all []byte) (moved bool) {
	for _, e := range parseEvents(all) {
		dir, ok := w.dirs[e.watch]
		switch {
		case e.mask&unix.IN_Q_OVERFLOW != 0:
			w.whole = true
		case !ok:
		case e.mask&unix.IN_IGNORED != 0:
			delete(w.dirs, e.watch)
			w.forget(dir, e.watch)
		case e.mask&unix.IN_ISDIR != 0 && e.mask&unix.IN_MOVED_FROM != 0:
			_, known := w.known[join(dir, e.name)]
			moved = moved || known
		case e.mask&unix.IN_MOVED_FROM != 0:
		default:
			w.note(w.fresh, join(dir, e.name))
		}
	}
	return moved
}

// note has a path looked at, one of fresh or later.
func (w *watcher) note(paths map[string]bool, p string) {
	if len(paths) >= maxPaths {
		w.whole = true
		return
	}
	paths[p] = true
}

func take(paths map[string]bool) []string {
	defer clear(paths)
	return slices.Collect(maps.Keys(paths))
}

// lookThrough looks at all there is, and forgets what is not there any more.
func (w *watcher) lookThrough(ctx context.Context) error {
	clear(w.later)
	if w.some { // directories that are there now get the watches of those that were
		w.renew()
	}
	w.whole = false
	present := map[string]bool{}
	complete, err := w.walk(ctx, "", present)
	w.next = time.Now().Add(unwatched)
	if err != nil || !complete {
		return err
	}
	return w.record.keep(present)
}

// look is for paths that something has happened to.
func (w *watcher) look(ctx context.Context, paths []string) error {
	var files []string
	for _, p := range paths {
		var st unix.Stat_t
		fd, err := w.open(p, unix.O_PATH)
		if err != nil {
			continue // it is gone, or a link
		}
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd) // nothing was written
		switch {
		case err != nil:
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			if _, err := w.walk(ctx, p, nil); err != nil {
				return err
			}
		default:
			files = append(files, p)
		}
	}
	_, err := w.offerAll(ctx, files, nil)
	return err
}

// walk watches a directory and those below it that can have files of the pattern, as far as may
// be watched, and offers what is there, as offerAll does. complete: nothing was left out or
// refused. It takes a descriptor for each level, maxDepth and one more at most.
func (w *watcher) walk(ctx context.Context, dir string, present map[string]bool) (complete bool, err error) {
	if !w.reaches(dir) {
		return true, nil
	}
	if !w.add(dir) {
		w.some = true
	}
	fd, err := w.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return true, nil // gone meanwhile
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }() // nothing was written
	complete = true
	for ctx.Err() == nil {
		entries, read := f.ReadDir(256)
		var files, dirs []string
		for _, e := range entries {
			switch p := join(dir, e.Name()); {
			case e.IsDir():
				dirs = append(dirs, p)
			case e.Type().IsRegular():
				files = append(files, p)
			}
		}
		refused, err := w.offerAll(ctx, files, present)
		if err != nil {
			return false, err
		}
		complete = complete && !refused
		for _, p := range dirs {
			all, err := w.walk(ctx, p, present)
			if err != nil {
				return false, err
			}
			complete = complete && all
		}
		if read != nil {
			return complete && errors.Is(read, io.EOF), nil
		}
	}
	return false, nil
}

// reaches says whether files below a directory can match.
func (w *watcher) reaches(dir string) bool {
	if dir == "" {
		return true
	}
	segments := strings.Split(dir, "/")
	if len(segments) > maxDepth {
		return false
	}
	for i, s := range segments {
		switch {
		case w.pattern[i] == "**":
			return true
		case i >= len(w.pattern)-1, !w.pattern[i : i+1].Match([]string{s}):
			return false
		}
	}
	return true
}

// add watches a directory; false: no more can be.
func (w *watcher) add(dir string) bool {
	if w.notify == nil {
		return false
	}
	if _, known := w.known[dir]; !known && len(w.dirs) >= maxDirs {
		return false
	}
	fd, err := w.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return true // gone, or a link: nothing to watch
	}
	defer unix.Close(fd)
	// The descriptor, not the path again: that may be a link by now.
	wd, err := unix.InotifyAddWatch(w.watch, fmt.Sprintf("/proc/self/fd/%d", fd), interest)
	if err != nil {
		return false
	}
	if old, ok := w.dirs[wd]; ok { // it may have moved
		w.forget(old, wd)
	}
	w.dirs[wd], w.known[dir] = dir, wd
	return true
}

// forget drops a path unless another directory has it by now.
func (w *watcher) forget(dir string, wd int) {
	if w.known[dir] == wd {
		delete(w.known, dir)
	}
}

func (w *watcher) open(p string, flags uint64) (int, error) {
	if p == "" {
		p = "."
	}
	for {
		fd, err := unix.Openat2(w.root, p, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve})
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) { // EAGAIN: a rename beside it
			return fd, err
		}
	}
}

// offerAll offers those of the paths that match, are complete and were not offered. present
// gets the keys of those that are there; nil: nobody asks. refused: one was.
func (w *watcher) offerAll(ctx context.Context, paths []string, present map[string]bool) (refused bool, err error) {
	var mu sync.Mutex // guards what follows, present, w.later and w.whole
	var offered []string
	work := make(chan *File)
	var all sync.WaitGroup
	for range min(offering, len(paths)) {
		all.Go(func() {
			for f := range work {
				mu.Lock()
				no := refused
				mu.Unlock()
				if !no {
					no = w.offer(ctx, f) != nil
				}
				mu.Lock()
				if no {
					refused = true
					w.note(w.later, f.Path)
				} else {
					offered = append(offered, f.Key)
				}
				mu.Unlock()
			}
		})
	}
	for _, p := range paths {
		if ctx.Err() != nil || !w.pattern.Match(strings.Split(p, "/")) {
			continue
		}
		f, err := w.complete(p)
		mu.Lock()
		switch {
		case err != nil:
			w.note(w.later, p)
			if !errors.Is(err, unix.EAGAIN) && !w.said {
				w.said = true
				w.cfg.Log.WarnContext(ctx, "file not offered: nobody can tell whether it is complete", "path", p, "error", err)
			}
		case f != nil && present != nil:
			present[f.Key] = true
		}
		mu.Unlock()
		if f != nil && !w.record.has(f.Key) {
			work <- f
		}
	}
	close(work)
	all.Wait()
	return refused, w.record.add(offered)
}

// complete is the file at a path, nil where there is none. The error is EAGAIN where somebody
// writes it; another one says that nobody can tell, EACCES that the engine lacks CAP_LEASE.
func (w *watcher) complete(p string) (*File, error) {
	fd, err := w.open(p, unix.O_PATH) // opening anything else may do something
	if err != nil {
		return nil, nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	in, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil
	}
	defer unix.Close(in)
	if _, err := unix.FcntlInt(uintptr(in), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	err = unix.Fstat(in, &st) // as it is while nobody writes
	_, unlock := unix.FcntlInt(uintptr(in), unix.F_SETLEASE, unix.F_UNLCK)
	if err := errors.Join(err, unlock); err != nil {
		return nil, err
	}
	// open(2) creates a file before it counts its writer (fs/namei.c, lookup_open and do_open):
	// an empty file may have one that nobody sees yet.
	if age := time.Since(time.Unix(st.Mtim.Unix())); st.Size == 0 && age.Abs() < later {
		return nil, unix.EAGAIN
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%d", p, st.Ino, st.Size, st.Mtim.Nano()))
	return &File{Path: p, Size: st.Size, Modified: time.Unix(st.Mtim.Unix()).UTC(), Key: hex.EncodeToString(sum[:keySize])}, nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
