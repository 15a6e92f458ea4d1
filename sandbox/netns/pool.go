// Package netns keeps a pool of network namespaces that hold a loopback
// interface and nothing else. Making one costs 350 µs and serialises inside the
// kernel; joining one that waits costs 0.5.
package netns

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Config says how to open a [Pool]; every field has a default.
type Config struct {
	Size int          // namespaces kept ready; default 16
	Log  *slog.Logger // default: discards
}

// Pool hands out namespaces. Its methods may be called from any goroutine.
type Pool struct {
	cfg Config

	mu     sync.Mutex
	free   []*Namespace
	dirty  []*Namespace
	closed bool

	wake   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
}

// Namespace is leased to one sandbox at a time.
type Namespace struct {
	file *os.File // to join it by; owned by the namespace
	used *os.File // its net/sockstat: says whether sockets are left
	idle []byte   // what used said when it was new
}

// File is what setns(2) joins. It stays the namespace's.
func (n *Namespace) File() *os.File { return n.file }

// Open starts to fill a pool.
func Open(cfg Config) *Pool {
	if cfg.Size == 0 {
		cfg.Size = 16
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{cfg: cfg, wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go p.work(ctx)
	p.poke()
	return p
}

// Acquire leases a namespace: from the pool, or made now when it is empty.
func (p *Pool) Acquire() (*Namespace, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, fmt.Errorf("network namespace pool: %w", fs.ErrClosed)
	}
	var n *Namespace
	if last := len(p.free) - 1; last >= 0 {
		n = p.free[last]
		p.free = p.free[:last]
	}
	p.mu.Unlock()
	p.poke()
	if n != nil {
		return n, nil
	}
	return create()
}

// Release gives a namespace back once its sandbox has been reaped. It returns
// at once; the namespace is leased again only if no socket is left in it, not
// even one in TIME_WAIT, which would hold a port.
func (p *Pool) Release(n *Namespace) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.dirty = append(p.dirty, n)
	}
	p.mu.Unlock()
	if closed {
		n.close()
		return
	}
	p.poke()
}

// Close closes every namespace.
func (p *Pool) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	<-p.done
	for _, n := range append(p.free, p.dirty...) {
		n.close()
	}
	p.free, p.dirty = nil, nil
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Pool) work(ctx context.Context) {
	defer close(p.done)
	for {
		p.clean()
		p.refill(ctx)
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.settle(ctx)
		}
	}
}

// A burst of starts comes before the pool's own work: the worker waits until
// nothing has been acquired or released for settleQuiet, but not longer than
// settleAtMost, so that steady load does not starve the pool.
const (
	settleQuiet  = 5 * time.Millisecond
	settleAtMost = 100 * time.Millisecond
)

func (p *Pool) settle(ctx context.Context) {
	quiet, most := time.NewTimer(settleQuiet), time.NewTimer(settleAtMost)
	defer quiet.Stop()
	defer most.Stop()
	for {
		select {
		case <-p.wake:
			quiet.Reset(settleQuiet)
		case <-quiet.C:
			return
		case <-most.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (p *Pool) clean() {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = nil
	room := p.cfg.Size - len(p.free)
	p.mu.Unlock()
	for _, n := range dirty {
		if room <= 0 || !n.clean() {
			n.close()
			continue
		}
		room--
		p.mu.Lock()
		p.free = append(p.free, n)
		p.mu.Unlock()
	}
}

func (p *Pool) refill(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		full := len(p.free)+len(p.dirty) >= p.cfg.Size
		p.mu.Unlock()
		if full {
			return
		}
		n, err := create()
		if err != nil {
			p.cfg.Log.WarnContext(ctx, "network namespace not made", "error", err)
			return
		}
		p.mu.Lock()
		p.free = append(p.free, n)
		p.mu.Unlock()
	}
}

// create makes a namespace on a thread of its own. The goroutine never unlocks
// it, so that the runtime throws the thread away with what it changed.
func create() (*Namespace, error) {
	type result struct {
		n   *Namespace
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread()
		n, err := unshare()
		made <- result{n, err}
	}()
	r := <-made
	return r.n, r.err
}

func unshare() (*Namespace, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare network namespace: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return nil, fmt.Errorf("raise loopback: %w", err)
	}
	n := &Namespace{}
	var err error
	if n.file, err = open("/proc/thread-self/ns/net"); err != nil {
		return nil, err
	}
	if n.used, err = open("/proc/thread-self/net/sockstat"); err == nil {
		n.idle, err = n.sockets()
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// loopbackUp is `ip link set lo up` (netdevice(7)).
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}

// sockets reads the namespace's own counters out of sockstat: all sockets, and
// those of TCP in use or in TIME_WAIT. The file's other numbers count the whole
// host.
func (n *Namespace) sockets() ([]byte, error) {
	buf := make([]byte, 4096)
	size, err := n.used.ReadAt(buf, 0)
	if size == 0 {
		return nil, err
	}
	var own []byte
	for line := range bytes.Lines(buf[:size]) {
		fields := bytes.Fields(line)
		for i := 1; i+1 < len(fields); i += 2 {
			switch string(fields[i]) {
			case "used", "inuse", "tw":
				own = append(own, bytes.Join([][]byte{fields[0], fields[i], fields[i+1]}, []byte(" "))...)
				own = append(own, '\n')
			}
		}
	}
	return own, nil
}

func (n *Namespace) clean() bool {
	now, err := n.sockets()
	return err == nil && bytes.Equal(now, n.idle)
}

func (n *Namespace) close() {
	_ = n.file.Close()
	if n.used != nil {
		_ = n.used.Close()
	}
}
