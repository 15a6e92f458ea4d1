// Package netns makes network namespaces, and keeps a pool of namespaces with a loopback
// interface and nothing else. To make a namespace costs 350 µs, in series inside the kernel; to
// join a ready namespace costs 0.5 µs.
package netns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/pool"
)

// Config configures [Open]; every field has a default.
type Config struct {
	Size int          // ready namespaces; default 16
	Log  *slog.Logger // default: discard
	Busy func() bool  // whether to put work off; default as in pool.Config
}

// Pool leases namespaces. Its methods are safe for concurrent use.
type Pool struct {
	pool *pool.Pool[*Namespace]
}

// Namespace is a network namespace, leased to one sandbox at a time.
type Namespace struct {
	file *os.File // for setns(2); owned by the namespace
	used *os.File // net/sockstat of the namespace: tells whether sockets are left
	idle []byte   // result of sockets in the new namespace
	seen uint64   // hash of the traces in the new namespace; 0: not read
}

// File returns the file for setns(2). The namespace owns the file.
func (n *Namespace) File() *os.File { return n.file }

// Open returns a pool. The pool fills in the background.
func Open(cfg Config) *Pool {
	if cfg.Size == 0 {
		cfg.Size = 16
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Pool{pool.New(pool.Config[*Namespace]{
		Name: "network namespace", Ready: cfg.Size, Make: newTraced, Clean: (*Namespace).clean,
		Drop: (*Namespace).Close, Log: cfg.Log, Busy: cfg.Busy,
	})}
}

// Acquire leases a namespace: from the pool, or a new one if the pool is empty.
func (p *Pool) Acquire() (*Namespace, error) { return p.pool.Take(nil) }

// Release ends the lease of a namespace, after the sandbox has been reaped. Release never
// blocks. The pool leases the namespace again only without any trace of the last user
// (traces.go).
func (p *Pool) Release(n *Namespace) { p.pool.Give(n) }

// Close closes every namespace that is not leased.
func (p *Pool) Close() { p.pool.Close() }

// New makes a namespace whose loopback interface is up. setup, unless nil, then runs inside the
// namespace on a thread of its own. When setup returns, the thread ends; files that setup
// opened stay valid. The caller owns and closes the namespace, which belongs to no pool.
func New(setup func() error) (n *Namespace, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		if err := freePorts(); err != nil {
			return err
		}
		// Adopt before setup: the kernel counts a netlink socket for a while after the close.
		if n, err = Adopt(); err != nil || setup == nil {
			return err
		}
		return setup()
	})
	if err != nil && n != nil {
		_ = n.Close()
		n = nil
	}
	return n, err
}

// freePorts lets every user in the calling thread's namespace listen at any port, since even
// the root of a sandbox has no power over the namespace (ip-sysctl.rst; Linux 4.11). If the
// setting is missing or read-only, ports below 1024 stay closed to the sandbox.
func freePorts() error {
	err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("free the ports below 1024: %w", err)
	}
	return nil
}

// Do runs f on a thread of its own inside the namespace of the open file ns. Sockets that f
// opens stay in the namespace.
func Do(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a new thread that ends with f: the goroutine never unlocks the thread, so
// the runtime discards the thread and its state.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Adopt raises loopback in the calling thread's namespace, in which nothing may have run yet.
// The caller owns the result, which belongs to no pool.
func Adopt() (*Namespace, error) {
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
		_ = n.Close()
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

// sockets reads the namespace's own counters from sockstat: all sockets, and the TCP sockets in
// use or in TIME_WAIT. The other numbers in the file count the whole host.
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

// Clean reports whether the namespace has no socket, not even a socket in TIME_WAIT, which
// would hold a port. Other counters may still show the last user, so a clean namespace suits
// only another sandbox of the same function.
func (n *Namespace) Clean() bool {
	now, err := n.sockets()
	return err == nil && bytes.Equal(now, n.idle)
}

// Close closes the files of a namespace that belongs to no pool. The kernel removes the
// namespace after its last process.
func (n *Namespace) Close() error {
	var err error
	for _, f := range []*os.File{n.file, n.used} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// fewSockets is the number of sockets up to which Queued does not look at their contents. A
// netlink socket can hold 416 KiB (net.core.rmem_max, doubled).
const fewSockets = 100

// Queued returns the number of bytes that wait in the namespace's netlink sockets for their
// readers. The kernel charges these bytes to no cgroup. The result is 0 if the namespace has at
// most fewSockets sockets of any kind.
func (n *Namespace) Queued() int64 {
	var head [64]byte
	if size, _ := n.used.ReadAt(head[:], 0); size == 0 || socketsUsed(head[:size]) <= fewSockets {
		return 0
	}
	var sum int64
	_ = Do(n.file, func() error { // a namespace that is gone holds nothing
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		sum = netlinkQueued(text)
		return err
	})
	return sum
}

// socketsUsed parses the first line of sockstat, "sockets: used 12".
func socketsUsed(text []byte) int {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return 0
	}
	n, _ := strconv.Atoi(string(fields[2]))
	return n
}

// netlinkQueued returns the sum of the column Rmem of /proc/net/netlink.
func netlinkQueued(text []byte) (sum int64) {
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 4 {
			n, _ := strconv.ParseInt(string(fields[4]), 10, 64) // the header has no number
			sum += n
		}
	}
	return sum
}
