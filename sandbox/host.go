package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/sandbox/netns"
)

// Config configures [Open]. Dir is required.
type Config struct {
	Dir string       // private directory for mount points; created by Open
	Log *slog.Logger // default: discard
	// PoolSize is the number of cgroups, of network namespaces and of bare parked sandboxes to
	// keep ready; default 16. Open reduces the number if the host has no room.
	PoolSize     int
	CgroupParent string // default "fre-" and a hash of Dir
	// Optional are controllers that the host may lack. Their limits are then not enforced, and
	// CheckLimits refuses such limits.
	Optional []cgroup.Controller
	// Parked is the most parked sandboxes; default 4 × PoolSize, none if negative. Open reduces
	// the number if the host has no room.
	Parked   int
	Spawners int           // spawner processes; default 2, or 1 on one CPU
	Egress   egress.Config // for sandboxes with egress; Open sets Name and Log by default
	OwnBase  uint32        // first host id of sandboxes with User.Own; default 0x80000000
}

// Host starts sandboxes. Its methods are safe for concurrent use.
type Host struct {
	cfg       Config
	log       *slog.Logger
	program   *os.File      // fre-spawner
	filters   *os.File      // system call filters
	devices   *os.File      // a mount of /dev without a path on the host
	landlock  atomic.Uint32 // ABI of Landlock, 0 without Landlock
	cgroups   *cgroup.Pool
	networks  *netns.Pool
	wayOut    wayOut
	tenants   tenants
	visitor   *visitor
	own       ranges
	layers    layers
	proc      *procFiles
	next      atomic.Uint64
	parked    *parkedSandboxes
	admitted  chan struct{}  // one token for each start in progress
	starts    atomic.Int64   // Start calls in progress; the pools give way to them
	lastStart atomic.Int64   // end of the latest start: monotonic, in ns
	ending    sync.WaitGroup // ends of sandboxes in progress
	reading   sync.WaitGroup // readers of spawners
	starting  sync.WaitGroup // Start calls in progress
	slots     []slot

	startWithin time.Duration
	cpus        unix.CPUSet // the engine's CPUs
	maxFiles    int64       // most open files of a sandbox

	mu     sync.Mutex
	closed bool
	ids    map[string]*Sandbox
}

// slot holds one of the spawners. The next start replaces a spawner that has ended.
type slot struct {
	mu sync.Mutex
	s  *spawner
}

// Cgroups returns the number of cgroups, leased or ready.
func (h *Host) Cgroups() (int, error) { return h.cgroups.Count() }

// spawner returns the spawner for a turn, and restarts a spawner that has ended.
func (h *Host) spawner(turn uint64) (*spawner, error) {
	slot := &h.slots[turn%uint64(len(h.slots))]
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.s != nil && !slot.s.ended() {
		return slot.s, nil
	}
	s, err := newSpawner(h)
	if err != nil {
		return nil, err
	}
	slot.s = s
	h.reading.Go(func() {
		if err := s.read(); !errors.Is(err, net.ErrClosed) {
			h.log.Error("spawner ended, and all its sandboxes", "error", err)
		}
	})
	return s, nil
}

// startWithin bounds the wait for a spawner's answer, which normally takes a millisecond. A
// spawner that is stopped or stuck in the kernel must not block the engine.
const startWithin = time.Minute

// register assigns the sandbox's name and counts its start as in progress.
func (h *Host) register(s *Sandbox, id string) error {
	if id == "" {
		id = "sb-" + strconv.FormatUint(s.number, 10)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("sandbox host: %w", fs.ErrClosed)
	}
	if h.ids[id] != nil {
		return fmt.Errorf("sandbox %s: %w", id, fs.ErrExist)
	}
	s.id = id
	h.ids[id] = s
	h.starting.Add(1)
	return nil
}

func (h *Host) forget(s *Sandbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[s.id] == s { // a parked sandbox has no name
		delete(h.ids, s.id)
	}
}

// CheckNetwork returns nil if the host can start sandboxes with network n and policy p; else
// the error names the remedy.
func (h *Host) CheckNetwork(n Network, p egress.Policy) error {
	if n != NetworkEgress {
		return nil
	}
	network, err := h.wayOut.egress()
	if err != nil {
		return err
	}
	return network.Check(p)
}
