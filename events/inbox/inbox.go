// Package inbox finds files that appear in a directory, and offers each once, when the file is
// complete. The writers are hostile: the package follows no path out of the directory and no
// symbolic link (openat2, RESOLVE_BENEATH), and bounds its directories, paths and descriptors.
//
// inotify(7) only says where to look. The package then examines the path: a file is complete if it
// is regular and no process has it open for writing (otherwise fcntl(2) refuses a read lease,
// F_SETLEASE). A superfluous event does no harm. After a queue overflow, the package looks through
// the whole directory.
//
// A file is identified by path, inode, size and time of modification. Offered files are recorded on
// disk, so that a restart finds the files that came meanwhile.
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

// Config is what to watch. All fields are required.
type Config struct {
	Dir     string // directory of the files
	Pattern string // for paths below Dir, in the syntax of glob.Parse
	Record  string // path of the record of offered files; created if missing
	Log     *slog.Logger

	Instances *Instances // the inotify instances shared by all watchers; with none left, Watch looks at intervals
	Owner     string     // on whose account the inotify instance is
}

// File is a complete file.
type File struct {
	Path     string // below Config.Dir; any bytes but zero
	Size     int64
	Modified time.Time
	Key      string // identifies the file in its present state
}

const (
	// maxDirs bounds the directories that are watched, maxDepth their depth.
	maxDirs, maxDepth = 1024, 32
	// maxPaths bounds the paths noted for a look; beyond, the whole directory is looked through.
	maxPaths = 4096
	// later is the delay before another look at a file that is being written or was refused, and
	// between two looks through everything. A look that takes longer is followed by an equally long
	// pause.
	later = time.Second
	// unwatched is the time between two looks through everything while some directories are not
	// watched.
	unwatched = 10 * time.Second
	// offering is how many files are offered at once.
	offering = 16
)

const (
	interest = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	resolve  = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
)

// watcher watches one inbox. Only the goroutine of Watch uses it, except as offerAll says.
type watcher struct {
	cfg     Config
	pattern glob.Pattern
	root    int
	offer   func(context.Context, *File) error
	record  *record

	notify *os.File // inotify instance; nil: nothing is watched
	watch  int      // its descriptor
	dirs   map[int]string
	known  map[string]int // the inverse of dirs

	fresh map[string]bool     // paths with new events
	later map[string]bool     // paths to look at again at due
	empty map[string]sighting // empty files that were not offered, by path
	whole bool                // look through everything at due
	due   time.Time
	some  bool      // some directories are not watched
	next  time.Time // if some: when to look through everything
	said  bool      // logged that completeness cannot be determined
	alone bool      // logged that inotify is missing
}

// sighting is the first look at an empty file.
type sighting struct {
	key string
	at  time.Time
}

// Watch offers the matching files until ctx ends, the existing ones first. If offer returns an
// error, the file is offered again later. offer is called from several goroutines at once.
func Watch(ctx context.Context, cfg Config, offer func(context.Context, *File) error) (err error) {
	w, err := newWatcher(cfg, offer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
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

// newWatcher opens the directory and the record. The caller calls close.
func newWatcher(cfg Config, offer func(context.Context, *File) error) (*watcher, error) {
	pattern, err := glob.Parse(cfg.Pattern)
	if err != nil {
		return nil, err
	}
	root, err := unix.Open(cfg.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	w := &watcher{cfg: cfg, pattern: pattern, root: root, offer: offer, fresh: map[string]bool{}, later: map[string]bool{}, empty: map[string]sighting{}}
	if w.record, err = openRecord(cfg.Record); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
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

// renew starts with a new inotify instance: watches follow directories, whose paths have changed.
func (w *watcher) renew() {
	if w.notify != nil {
		_ = w.cfg.Instances.close(w.cfg.Owner, w.notify) // only read, so no data can be lost
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

// turn looks at the paths with new events, and at the paths that are due.
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

// wait blocks until there is a path to look at.
func (w *watcher) wait(ctx context.Context, buf []byte) error {
	var until time.Time // zero: no deadline
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

// events notes the events of inotify. moved reports that a watched directory was renamed.
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

// note adds a path to paths (fresh or later), or has everything looked through if paths is full.
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

// lookThrough looks at all files, and forgets the records of files that are gone.
func (w *watcher) lookThrough(ctx context.Context) error {
	clear(w.later)
	if w.some { // the existing directories can get the watches of removed ones
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

// look looks at the given paths.
func (w *watcher) look(ctx context.Context, paths []string) error {
	var files []string
	for _, p := range paths {
		var st unix.Stat_t
		fd, err := w.open(p, unix.O_PATH)
		if err != nil {
			continue // gone, or a symbolic link
		}
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd) // only read, so no data can be lost
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

// walk watches dir and its subdirectories that can hold matching files, within the limits, and
// offers the files. complete reports that no file was skipped or refused. present is as in
// offerAll. walk holds a descriptor for each level, at most maxDepth and one more.
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
	defer func() { _ = f.Close() }() // only read, so no data can be lost
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

// reaches reports whether files below a directory can match.
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

// add watches a directory; false means that a limit is reached.
func (w *watcher) add(dir string) bool {
	if w.notify == nil {
		return false
	}
	if _, known := w.known[dir]; !known && len(w.dirs) >= maxDirs {
		return false
	}
	fd, err := w.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return true // gone, or a symbolic link: nothing to watch
	}
	defer unix.Close(fd)
	// Use the descriptor, because the path may be a symbolic link by now.
	wd, err := unix.InotifyAddWatch(w.watch, fmt.Sprintf("/proc/self/fd/%d", fd), interest)
	if err != nil {
		return false
	}
	if old, ok := w.dirs[wd]; ok { // the directory may have moved
		w.forget(old, wd)
	}
	w.dirs[wd], w.known[dir] = dir, wd
	return true
}

// forget drops a path, unless the path belongs to another directory by now.
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
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) { // EAGAIN: a concurrent rename
			return fd, err
		}
	}
}

// offerAll offers the paths that match, are complete and were not offered before. Unless nil,
// present receives the keys of the complete files. refused reports that an offer failed; the rest
// is then noted for later.
func (w *watcher) offerAll(ctx context.Context, paths []string, present map[string]bool) (refused bool, err error) {
	var mu sync.Mutex // guards refused, offered, present, w.later and w.whole
	var offered []string
	sent := map[string]bool{} // keys; a path may occur twice, as one with an event and as one to look at again
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
				w.cfg.Log.WarnContext(ctx, "file not offered: the file may be incomplete", "path", p, "error", err)
			}
		case f != nil && present != nil:
			present[f.Key] = true
		}
		mu.Unlock()
		if f != nil && !sent[f.Key] && !w.record.has(f.Key) {
			sent[f.Key] = true
			work <- f
		}
	}
	close(work)
	all.Wait()
	return refused, w.record.add(offered)
}

// complete returns the file at a path, nil without a regular file. EAGAIN means that a process is
// writing the file. Other errors mean that the state is unknown, for example EACCES if the engine
// lacks CAP_LEASE.
func (w *watcher) complete(p string) (*File, error) {
	fd, err := w.open(p, unix.O_PATH) // opening a device or a FIFO otherwise can have effects
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
	err = unix.Fstat(in, &st) // the state while no process writes
	_, unlock := unix.FcntlInt(uintptr(in), unix.F_SETLEASE, unix.F_UNLCK)
	if err := errors.Join(err, unlock); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%d", p, st.Ino, st.Size, st.Mtim.Nano()))
	f := &File{Path: p, Size: st.Size, Modified: time.Unix(st.Mtim.Unix()).UTC(), Key: hex.EncodeToString(sum[:keySize])}
	if st.Size > 0 {
		delete(w.empty, p)
	} else if !w.record.has(f.Key) && !w.stayedEmpty(f) {
		return nil, unix.EAGAIN
	}
	return f, nil
}

// stayedEmpty reports whether an empty file is unchanged since a look at least later ago. open(2)
// creates a file before the kernel counts its writer (fs/namei.c, lookup_open and do_open): an empty
// file may have a writer that F_SETLEASE does not see. The time of modification, used only
// when maxPaths files wait, does not tell the age: the file system sets it before others see the file.
func (w *watcher) stayedEmpty(f *File) bool {
	now := time.Now()
	first, ok := w.empty[f.Path]
	if ok && first.key == f.Key {
		stayed := now.Sub(first.at) >= later
		if stayed {
			delete(w.empty, f.Path)
		}
		return stayed
	}
	if len(w.empty) >= maxPaths {
		return now.Sub(f.Modified).Abs() >= later
	}
	w.empty[f.Path] = sighting{f.Key, now}
	return false
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
