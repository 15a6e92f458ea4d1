package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ChangeKind says what a [Change] is about.
type ChangeKind string

// The kinds: what lists show, and the cache of what builds have downloaded.
const (
	ChangeImage    ChangeKind = "image"
	ChangeFunction ChangeKind = "function"
	ChangeSandbox  ChangeKind = "sandbox"
	ChangeCache    ChangeKind = "cache"
)

// ChangeAction says what happened to it.
type ChangeAction string

// The actions that change what lists show: create, delete, tag and untag are an image's,
// deploy, route (its events go elsewhere, or an alias does) and remove a function's, start
// and exit a sandbox's, and of a container create, rename and delete.
const (
	ActionCreate ChangeAction = "create"
	ActionDelete ChangeAction = "delete"
	ActionTag    ChangeAction = "tag"
	ActionUntag  ChangeAction = "untag"
	ActionDeploy ChangeAction = "deploy"
	ActionRemove ChangeAction = "remove"
	ActionRoute  ChangeAction = "route"
	ActionStart  ChangeAction = "start"
	ActionExit   ChangeAction = "exit"
	ActionRename ChangeAction = "rename"
)

// The actions that lists do not show. Pull, push, load, import and save are an image's; kill
// (a client sends a signal) and stop (a client's stop has ended it) a sandbox's; restart,
// attach, detach and resize (of its terminal) a container's. Prune removes all of a kind that
// is not in use: its change has no ID.
const (
	ActionPull    ChangeAction = "pull"
	ActionPush    ChangeAction = "push"
	ActionLoad    ChangeAction = "load"
	ActionImport  ChangeAction = "import"
	ActionSave    ChangeAction = "save"
	ActionKill    ChangeAction = "kill"
	ActionStop    ChangeAction = "stop"
	ActionRestart ChangeAction = "restart"
	ActionAttach  ChangeAction = "attach"
	ActionDetach  ChangeAction = "detach"
	ActionResize  ChangeAction = "resize"
	ActionPrune   ChangeAction = "prune"
)

// Change is one change of what lists show, or what clients did beside. Add gives it
// Generation and Time.
type Change struct {
	Generation uint64
	Time       time.Time // UTC; never before that of the change before it, whatever the clock does
	Kind       ChangeKind
	Action     ChangeAction
	ID         string            // an image's digest, a function's name, a sandbox's id; "" for all of the kind
	Name       string            // what people call it: "name:version", a function's name; may be ""
	Attributes map[string]string // shared: must not be changed
	Labels     map[string]string // of a container; likewise
	Config     []byte            // of an image: its configuration; likewise
}

// changesKept is how many changes are remembered for those who ask what has
// happened since.
const changesKept = 4096

// reserveAhead is how many generations are reserved on disk at once, so that
// a change costs no write.
const reserveAhead = 1 << 20

// Changes counts the changes of everything lists show, the functions and
// sandboxes of the engine included, and remembers the last 4,096. Its generations never repeat,
// over restarts and crashes either, so that they serve as cache keys and as
// marks to go on from. It is safe for use by several goroutines.
type Changes struct {
	reserve func(upTo uint64) // makes sure that a later Open begins behind upTo; nil for one that is not kept
	now     func() time.Time

	mu       sync.Mutex
	ring     []Change // grows to changesKept, then the oldest is at head
	head     int
	start    uint64 // what Open began with
	first    uint64 // every change after this generation is in the ring
	last     uint64
	lastTime time.Time
	reserved uint64
	kinds    map[ChangeKind]uint64
	grown    chan struct{} // closed at the next change; nil while nobody waits
}

// NewChanges begins after generation first, and keeps nothing on disk: a store
// has its own ([Store.Changes]).
func NewChanges(first uint64) *Changes {
	return &Changes{now: time.Now, start: first, first: first, last: first, reserved: math.MaxUint64, kinds: make(map[ChangeKind]uint64)}
}

// keep has reserve called for all generations to come.
func (c *Changes) keep(reserve func(uint64)) {
	c.reserve, c.reserved = reserve, c.last+reserveAhead
	reserve(c.reserved)
}

// Add enters changes in their order and returns the last one's generation.
func (c *Changes) Add(changes ...Change) uint64 {
	return c.publish(changes, func(uint64) {})
}

// publish is Add that calls show with the last generation before anyone can
// learn of the changes: who knows of a change finds it in the lists.
func (c *Changes) publish(changes []Change, show func(generation uint64)) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(changes) == 0 {
		show(c.last)
		return c.last
	}
	now := c.now().UTC().Round(0)
	if now.Before(c.lastTime) {
		now = c.lastTime
	}
	c.lastTime = now
	for _, ch := range changes {
		c.last++
		ch.Generation, ch.Time = c.last, now
		c.kinds[ch.Kind] = c.last
		if len(c.ring) < changesKept {
			c.ring = append(c.ring, ch)
			continue
		}
		c.first = c.ring[c.head].Generation
		c.ring[c.head] = ch
		c.head = (c.head + 1) % changesKept
	}
	if c.last >= c.reserved {
		c.reserved = c.last + reserveAhead
		c.reserve(c.reserved)
	}
	show(c.last)
	if c.grown != nil {
		close(c.grown)
		c.grown = nil
	}
	return c.last
}

// Generation returns that of the last change.
func (c *Changes) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// GenerationOf returns that of the last change of a kind; before the first one
// since Open, that which Open began with.
func (c *Changes) GenerationOf(kind ChangeKind) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.kinds[kind]; ok {
		return g
	}
	return c.start
}

// Since returns the changes after a generation, oldest first. ok is false
// where they are not all remembered any more, or the generation is of another
// store: then lists must be read again.
func (c *Changes) Since(generation uint64) (changes []Change, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if generation < c.first || generation > c.last {
		return nil, false
	}
	n := int(c.last - generation)
	changes = make([]Change, 0, n)
	for i := len(c.ring) - n; i < len(c.ring); i++ {
		changes = append(changes, c.ring[(c.head+i)%len(c.ring)])
	}
	return changes, true
}

// Before returns the generation of the last remembered change before t, to go
// on from with Since.
func (c *Changes) Before(t time.Time) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := sort.Search(len(c.ring), func(i int) bool { return !c.ring[(c.head+i)%len(c.ring)].Time.Before(t) })
	return c.first + uint64(n)
}

// After returns a channel that is closed once there is a change after the
// generation.
func (c *Changes) After(generation uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != generation {
		passed := make(chan struct{})
		close(passed)
		return passed
	}
	if c.grown == nil {
		c.grown = make(chan struct{})
	}
	return c.grown
}

// Changes returns the store's count of changes, which the engine adds its own
// to.
func (s *Store) Changes() *Changes { return s.changes }

// The file "generation" holds, in decimal, one that no change has reached.
const generationName = "generation"

// openChanges goes on behind every generation that was ever given out: those
// of the file, else those of the clock, of which there are 1,024 to a
// millisecond, more than there are changes. A file that is lost or a disk too
// full for one so costs nothing unless the clock has been turned back as well.
// (2^53, the largest integer JSON's readers agree on, comes in the year 2248.)
func (s *Store) openChanges() error {
	first := uint64(max(time.Now().UnixMilli(), 0)) << 10
	b, err := os.ReadFile(filepath.Join(s.dir, generationName))
	switch {
	case err == nil:
		reserved, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 53)
		if err != nil {
			s.log.Error("cannot read the generation of the last run: going on by the clock", "error", err)
		}
		first = max(first, reserved)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	s.changes = NewChanges(first)
	s.changes.keep(s.reserveGenerations)
	return nil
}

// reserveGenerations writes the file in place: that needs no room on a full disk,
// and 20 bytes of one sector are written whole or not at all.
func (s *Store) reserveGenerations(upTo uint64) {
	root := int(s.root.Fd())
	f, err := openat(root, generationName, unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%019d\n", upTo), 0)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		// Without a file the next start goes by the clock, which is ahead of one
		// that says too little.
		_ = unix.Unlinkat(root, generationName, 0)
		s.log.Warn("cannot keep the generation of lists: the next start goes by the clock", "error", err)
	}
}
