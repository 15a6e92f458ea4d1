// Package netns makes network namespaces, and keeps a pool of those that hold a
// loopback interface and nothing else. Making one costs 350 µs and serialises
// inside the kernel; joining one that waits costs 0.5.
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

// Config says how to open a [Pool]; every field has a default.
type Config struct {
	Size int          // namespaces kept ready; default 16
	Log  *slog.Logger // default: discards
	Busy func() bool  // whether to put work off; default as pool.Config's
}

// Pool hands out namespaces. Its methods may be called from any goroutine.
type Pool struct {
	pool *pool.Pool[*Namespace]
}

// Namespace is leased to one sandbox at a time.
type Namespace struct {
	file *os.File // to join it by; owned by the namespace
	used *os.File // its net/sockstat: says whether sockets are left
	idle []byte   // what used said when it was new
	seen uint64   // traces when it was new; 0: not read
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
	return &Pool{pool.New(pool.Config[*Namespace]{
		Name: "network namespace", Ready: cfg.Size, Make: newTraced, Clean: (*Namespace).clean,
		Drop: (*Namespace).Close, Log: cfg.Log, Busy: cfg.Busy,
	})}
}

// Acquire leases a namespace: from the pool, or made now when it is empty.
func (p *Pool) Acquire() (*Namespace, error) { return p.pool.Take(nil) }

// Release gives a namespace back once its sandbox has been reaped. It returns
// at once. The namespace is leased again only if its next user could not tell it
// from a new one (see traces.go).
func (p *Pool) Release(n *Namespace) { p.pool.Give(n) }

// Close closes every namespace that is not leased.
func (p *Pool) Close() { p.pool.Close() }

// New makes a namespace whose loopback interface is up. setup, unless nil, then
// runs inside it on a thread of its own and may hold on to nothing of that
// thread's but files. The caller closes the namespace; it is no pool's.
func New(setup func() error) (n *Namespace, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		if err := freePorts(); err != nil {
			return err
		}
		// Before setup: the kernel counts a netlink socket for a while after it
		// was closed.
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

// freePorts lets everybody in the calling thread's namespace listen at any port: it
// has no user's ports to be kept off, and the root of a sandbox no power over it
// (ip-sysctl.rst; Linux 4.11). Where that cannot be said, those below 1024 stay
// unreachable.
func freePorts() error {
	err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("free the ports below 1024: %w", err)
	}
	return nil
}

// Do runs f on a thread of its own inside the namespace ns is open on: sockets
// that f opens stay there.
func Do(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it: the goroutine never unlocks it,
// so that the runtime throws the thread away with what f changed.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Adopt raises loopback in the namespace that the calling thread is in and in
// which nothing has run yet. The caller owns what it returns; it is no pool's.
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

// Clean says whether no socket is left in the namespace, not even one in
// TIME_WAIT, which would hold a port. Its counters may tell of the last user: it is
// for another sandbox of the same function.
func (n *Namespace) Clean() bool {
	now, err := n.sockets()
	return err == nil && bytes.Equal(now, n.idle)
}

// Close lets go of a namespace that is no pool's; it is gone with its last
// process.
func (n *Namespace) Close() error {
	var err error
	for _, f := range []*os.File{n.file, n.used} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// fewSockets is how many a namespace may have before anybody looks at what they hold:
// the kernel lets one of netlink hold 416 KiB (net.core.rmem_max, doubled).
const fewSockets = 100

// Queued is how many bytes wait in the namespace for readers of netlink sockets, which
// the kernel charges to no cgroup; 0 where there are few sockets of any kind.
func (n *Namespace) Queued() int64 {
	var head [64]byte
	if size, _ := n.used.ReadAt(head[:], 0); size == 0 || socketsUsed(head[:size]) <= fewSockets {
		return 0
	}
	var sum int64
	_ = Do(n.file, func() error { // one that is gone holds nothing
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		sum = netlinkQueued(text)
		return err
	})
	return sum
}

// socketsUsed reads the first line of sockstat, "sockets: used 12".
func socketsUsed(text []byte) int {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return 0
	}
	n, _ := strconv.Atoi(string(fields[2]))
	return n
}

// netlinkQueued adds up the column Rmem of /proc/net/netlink.
func netlinkQueued(text []byte) (sum int64) {
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 4 {
			n, _ := strconv.ParseInt(string(fields[4]), 10, 64) // the head has none
			sum += n
		}
	}
	return sum
}
