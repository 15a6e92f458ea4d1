package volume

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Plain volume is walked at most once in walkAfter, and for at most about 1/walkShare of the
// time.
const (
	walkAfter = 10 * time.Second
	walkShare = 20
)

// plainDir is a directory without a limit.
type plainDir struct {
	m    *Manager
	path string
	ctx  context.Context // of walks: ends with the attachment
	stop func()

	mu      sync.Mutex
	walking bool
	last    Usage
	next    time.Time // no walk before
}

func (m *Manager) attachPlain(path string) (backing, error) {
	if err := makeDir(path); err != nil {
		return nil, err
	}
	p := &plainDir{m: m, path: path}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p, nil
}

func (p *plainDir) kind() Kind    { return Plain }
func (p *plainDir) dir() string   { return p.path }
func (p *plainDir) detach() error { p.stop(); return nil }

func (p *plainDir) setLimits(l Limits) error {
	if l.limited() {
		if p.m.Kind() != Plain {
			return errors.Join(ErrNoLimits, errors.New("attached without a limit: the next start of the engine applies limits"))
		}
		return p.m.noLimits()
	}
	return nil
}

func (p *plainDir) usage() (Usage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.walking && p.ctx.Err() == nil && !time.Now().Before(p.next) {
		p.walking = true
		p.m.walkers.Go(p.walk)
	}
	return p.last, nil
}

func (p *plainDir) walk() {
	began := time.Now()
	u, err := Walk(p.ctx, p.path)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.walking = false
	p.next = time.Now().Add(max(walkAfter, walkShare*time.Since(began)))
	if err == nil {
		p.last = u
	} else if p.ctx.Err() == nil {
		p.m.log.Warn("volume not counted", "path", p.path, "error", err)
	}
}

// Walk counts the disk use of a directory by a stat of each file, hard links once. A directory
// without a quota needs Walk. Files that vanish meanwhile do not count. Walk holds only a batch
// of names at a time, even for a huge directory, and follows no symlinks.
func Walk(ctx context.Context, dir string) (Usage, error) {
	root, err := os.Open(dir)
	if err != nil {
		return Usage{}, err
	}
	defer root.Close()
	w := walker{Usage: Usage{AsOf: time.Now()}, root: int(root.Fd()), linked: map[inode]bool{}}
	for w.dirs = []string{"."}; len(w.dirs) > 0 && err == nil; {
		last := len(w.dirs) - 1
		path := w.dirs[last]
		w.dirs = w.dirs[:last]
		err = cmp.Or(ctx.Err(), w.visit(ctx, path))
	}
	return w.Usage, err
}

type walker struct {
	Usage
	root   int
	dirs   []string // to be visited
	linked map[inode]bool
}

type inode struct{ dev, ino uint64 }

// visit counts a directory and its files, and queues its subdirectories.
func (w *walker) visit(ctx context.Context, path string) error {
	const batch = 1024
	d, err := openDir(w.root, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // no longer a directory
	}
	if err != nil {
		return err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return err
	}
	w.add(&st)
	for {
		names, err := d.Readdirnames(batch)
		if err := w.count(d, path, names); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
	}
}

// count counts the files with these names in the directory d at path, and queues directories.
func (w *walker) count(d *os.File, path string, names []string) error {
	var st unix.Stat_t
	for _, name := range names {
		err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return err
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			w.dirs = append(w.dirs, filepath.Join(path, name))
		default:
			w.add(&st)
		}
	}
	return nil
}

// openDir opens the directory at path, of any length, below root. No component may be a symlink.
func openDir(root int, path string) (*os.File, error) {
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for at, rest := root, path; ; {
		part, after := rest, ""
		if len(rest) >= unix.PathMax {
			i := strings.LastIndexByte(rest[:unix.PathMax-1], '/')
			part, after = rest[:i], rest[i+1:]
		}
		fd, err := unix.Openat2(at, part, how)
		if at != root {
			unix.Close(at)
		}
		switch {
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		case after == "":
			return os.NewFile(uintptr(fd), path), nil
		}
		at, rest = fd, after
	}
}

func (w *walker) add(st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // 32 bits on some
		if w.linked[key] {
			return
		}
		w.linked[key] = true
	}
	w.Bytes += st.Blocks * 512
	w.Inodes++
}
