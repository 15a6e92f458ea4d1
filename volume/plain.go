package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// A plain volume is walked at most every walkAfter, and no longer than one part
// in walkShare of the time.
const (
	walkAfter = 10 * time.Second
	walkShare = 20
)

// plainDir is a directory that nothing limits.
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
			return errors.Join(ErrNoLimits, errors.New("it had no limit when it was attached: limits are put on it at the next start of the engine"))
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

// Walk counts what a directory takes by looking at each file in it, once where
// it has several links: what a directory without a quota costs. What vanishes
// meanwhile does not count.
func Walk(ctx context.Context, dir string) (Usage, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Usage{}, err
	}
	defer root.Close()
	u := Usage{AsOf: time.Now()}
	type inode struct{ dev, ino uint64 }
	linked := make(map[inode]bool)
	err = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fs.ErrInvalid
		}
		if !d.IsDir() && st.Nlink > 1 {
			key := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // 32 bits on some
			if linked[key] {
				return nil
			}
			linked[key] = true
		}
		u.Bytes += st.Blocks * 512
		u.Inodes++
		return ctx.Err()
	})
	return u, err
}
