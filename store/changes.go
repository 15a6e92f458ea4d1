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

// ChangeKind is the kind of object that a [Change] is about.
type ChangeKind string

// The kinds: the objects in lists, and the download cache of builds.
const (
	ChangeImage    ChangeKind = "image"
	ChangeFunction ChangeKind = "function"
	ChangeSandbox  ChangeKind = "sandbox"
	ChangeCache    ChangeKind = "cache"
)

// ChangeAction is the event that a [Change] records.
type ChangeAction string

// The actions that change lists. Create, delete, tag and untag are for images; deploy, route
// (events or an alias go to another revision) and remove for functions; start and exit for
// sandboxes; create, rename and delete also for containers.
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

// The actions that lists do not show. Pull, push, load, import and save are for images; kill (a
// client sends a signal) and stop (a client has ended it) for sandboxes; restart, attach, detach
// and resize (of the terminal) for containers. Prune removes all unused objects of a kind: its
// change has no ID.
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

// Change is one change of the lists, or one action of a client that lists do not show. Add sets
// Generation and Time.
type Change struct {
	Generation uint64
	Time       time.Time // UTC; not before the Time of the previous change, even if the clock goes back
	Kind       ChangeKind
	Action     ChangeAction
	ID         string            // an image's digest, a function's name, a sandbox's id; "" for all of the kind
	Name       string            // for people: "name:version", a function's name; may be ""
	Attributes map[string]string // shared: must not be changed
	Labels     map[string]string // of a container; shared: must not be changed
	Config     []byte            // configuration of an image; shared: must not be changed
}

// changesKept is the number of changes remembered for [Changes.Since].
const changesKept = 4096

// reserveAhead is the number of generations reserved by one write, so a change costs no write.
const reserveAhead = 1 << 20

// Changes counts the changes of all lists, including the engine's functions and sandboxes, and
// remembers the last 4,096. A generation never repeats, even over restarts and crashes, and can
// serve as a cache key and as a mark to continue from. Several goroutines may use Changes.
type Changes struct {
	reserve func(upTo uint64) // makes a later Open begin after upTo; nil if nothing is kept on disk
	now     func() time.Time

	mu       sync.Mutex
	ring     []Change // grows to changesKept; then head is the oldest
	head     int
	start    uint64 // generation at Open
	first    uint64 // every change after this generation is in the ring
	last     uint64
	lastTime time.Time
	reserved uint64
	kinds    map[ChangeKind]uint64
	grown    chan struct{} // closed at the next change; nil while no caller waits
}

// NewChanges returns a counter in memory only, which begins after generation first. A store has
// a counter of its own ([Store.Changes]).
func NewChanges(first uint64) *Changes {
	return &Changes{now: time.Now, start: first, first: first, last: first, reserved: math.MaxUint64, kinds: make(map[ChangeKind]uint64)}
}

// keep makes c call reserve before it uses generations that are not reserved.
func (c *Changes) keep(reserve func(uint64)) {
	c.reserve, c.reserved = reserve, c.last+reserveAhead
	reserve(c.reserved)
}

// Add enters changes in their order and returns the generation of the last.
func (c *Changes) Add(changes ...Change) uint64 {
	return c.publish(changes, func(uint64) {})
}

// publish is Add that calls show with the last generation before any caller can learn of the
// changes. So a caller that knows of a change finds it in the lists.
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

// Generation returns the generation of the last change.
func (c *Changes) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// GenerationOf returns the generation of the last change of a kind, or the generation at Open if
// no change of the kind has happened since.
func (c *Changes) GenerationOf(kind ChangeKind) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.kinds[kind]; ok {
		return g
	}
	return c.start
}

// Since returns the changes after a generation, oldest first. ok is false if some of them are
// forgotten, or if the generation is from another store: the caller must read the lists again.
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

// Before returns the generation of the last remembered change before t, for a call of Since.
func (c *Changes) Before(t time.Time) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := sort.Search(len(c.ring), func(i int) bool { return !c.ring[(c.head+i)%len(c.ring)].Time.Before(t) })
	return c.first + uint64(n)
}

// After returns a channel that is closed once a change after the generation exists.
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

// The file "generation" holds, in decimal, a number above the generation of every change.
const generationName = "generation"

// openChanges starts above every generation ever used. The file tells the highest reserved
// generation. The clock gives a second bound: 1,024 generations per millisecond, more than the
// changes that happen. So a lost file, or a disk too full for the file, does no harm unless the
// clock goes back as well. (The clock reaches 2^53, the largest integer on which readers of JSON
// agree, in the year 2248.)
func (k *disk) openChanges() (*Changes, error) {
	first := uint64(max(time.Now().UnixMilli(), 0)) << 10
	b, err := os.ReadFile(filepath.Join(k.dir, generationName))
	switch {
	case err == nil:
		reserved, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 53)
		if err != nil {
			k.log.Error("cannot read the generation of the last run: going on by the clock", "error", err)
		}
		first = max(first, reserved)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	c := NewChanges(first)
	c.keep(k.reserveGenerations)
	return c, nil
}

// reserveGenerations overwrites the file in place: this needs no space on a full disk, and a
// write of 20 bytes within one sector is atomic.
func (k *disk) reserveGenerations(upTo uint64) {
	root := int(k.root.Fd())
	f, err := openat(root, generationName, unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%019d\n", upTo), 0)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		// Without a file the next start uses the clock, which is ahead of an outdated file.
		_ = unix.Unlinkat(root, generationName, 0)
		k.log.Warn("cannot keep the generation of lists: the next start goes by the clock", "error", err)
	}
}
