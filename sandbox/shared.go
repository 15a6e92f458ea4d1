package sandbox

import (
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
)

// shared are the parts of a Host that sandboxes use until their end.
type shared struct {
	log     *slog.Logger
	cgroups *cgroup.Pool
	visitor *visitor
	own     ranges
	proc    *procFiles

	next      atomic.Uint64  // number of the latest sandbox
	starts    atomic.Int64   // Start calls in progress; the pools give way to them
	lastStart atomic.Int64   // end of the latest start: monotonic, in ns
	starting  sync.WaitGroup // Start calls in progress
	ending    sync.WaitGroup // ends of sandboxes in progress

	startWithin   time.Duration // the longest wait for a spawner's answer
	cpus          unix.CPUSet   // the engine's CPUs
	maxFiles      int64         // most open files of a sandbox
	replaceParked func()        // has the pools replace parked sandboxes that have ended

	mu     sync.Mutex
	closed bool
	ids    map[string]*Sandbox
}

func (h *shared) newSandbox(kind StartKind) *Sandbox {
	return &Sandbox{
		host: h, number: h.next.Add(1), kind: kind,
		pidfd: -1, tmp: -1, ready: make(chan struct{}), done: make(chan struct{}),
	}
}

// register assigns the sandbox's name and counts its start as in progress.
func (h *shared) register(s *Sandbox, id string) error {
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

func (h *shared) forget(s *Sandbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[s.id] == s { // a parked sandbox has no name
		delete(h.ids, s.id)
	}
}

// busy is [Host.Busy].
func (h *shared) busy() bool {
	return h.starts.Load() > 0 || monotonic()-h.lastStart.Load() < int64(20*time.Millisecond)
}
