package store

import (
	"errors"
	"io/fs"
	"sync"
	"time"
)

// leases records the trees and objects that lease holders rely on although no image refers to
// them: all that were found, made or removed since the oldest lease was taken.
//
// A use is noted in the current generation, not with a particular lease. A generation is
// forgotten once all its leases and the leases of the generation before are released. So leases
// that overlap without end do not keep every note forever.
//
//	lease 1 ├──────────┤
//	lease 2     ├──────────────────┤
//	lease 3                ├──────────────…
//	noted:  ╰──── a ───╯╰──── b ───╯╰─ c …   a is forgotten with the end of 2
//
// A caller notes a tree or object before it looks whether the file exists. A caller that removes
// a file checks the notes first, and holds mu until the file is gone.
type leases struct {
	mu        sync.Mutex // before metadata.mu
	prev, cur *generation
	leaving   map[Digest]int      // trees of images whose removal is under way
	pending   map[Digest]struct{} // trees of removed images, still to sweep
}

type generation struct {
	leases int
	since  time.Time           // when the first of its leases was taken
	trees  map[Digest]bool     // value: whether keys holds the tree's objects
	keys   map[string]struct{} // of objects
	unread map[Digest]struct{} // trees whose objects are not in keys yet
}

func newGeneration() *generation {
	return &generation{trees: make(map[Digest]bool), keys: make(map[string]struct{}), unread: make(map[Digest]struct{})}
}

func (l *leases) init() {
	l.prev, l.cur = newGeneration(), newGeneration()
	l.leaving, l.pending = make(map[Digest]int), make(map[Digest]struct{})
}

func (l *leases) take() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.cur
	if g.leases == 0 {
		g.since = time.Now()
	}
	g.leases++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		g.leases--
		for range 2 {
			if l.prev.leases == 0 {
				l.prev, l.cur = l.cur, newGeneration()
			}
		}
	})
}

// oldest returns a time that is not after the start of any held lease; false if no lease is
// held.
func (l *leases) oldest() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range []*generation{l.prev, l.cur} {
		if g.leases > 0 {
			return g.since, true
		}
	}
	return time.Time{}, false
}

// useTree notes a tree before the caller looks for it.
func (l *leases) useTree(d Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.useTreeLocked(d)
}

func (l *leases) useTreeLocked(d Digest) {
	if l.prev.leases+l.cur.leases == 0 {
		return
	}
	if !l.cur.trees[d] {
		l.cur.trees[d] = false
		l.cur.unread[d] = struct{}{}
	}
}

// makeTree notes a new tree and its objects.
func (l *leases) makeTree(d Digest, entries []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.prev.leases+l.cur.leases == 0 {
		return
	}
	l.cur.trees[d] = true
	delete(l.cur.unread, d)
	for i := range entries {
		if e := &entries[i]; e.hasObject() {
			l.cur.keys[e.key()] = struct{}{}
		}
	}
}

// useKey notes an object before the caller looks for it.
func (l *leases) useKey(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.prev.leases+l.cur.leases > 0 {
		l.cur.keys[key] = struct{}{}
	}
}

// usesTreeLocked reports whether a tree must stay.
func (l *leases) usesTreeLocked(d Digest) bool {
	_, prev := l.prev.trees[d]
	_, cur := l.cur.trees[d]
	return prev || cur || l.leaving[d] > 0
}

// usesKeyLocked reports whether an object must stay. The caller holds mu since lockRead
// returned.
func (l *leases) usesKeyLocked(key string) bool {
	_, prev := l.prev.keys[key]
	_, cur := l.cur.keys[key]
	return prev || cur
}

// leave keeps the trees of an image during its removal. leave comes before the removal of the
// image's row: a lease taken in time finds the trees.
func (l *leases) leave(m *Manifest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range m.Parts {
		l.leaving[p.Tree]++
	}
}

// left ends leave. It notes the trees for current leases, and queues the trees for the next
// sweep.
func (l *leases) left(m *Manifest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range m.Parts {
		if l.leaving[p.Tree]--; l.leaving[p.Tree] == 0 {
			delete(l.leaving, p.Tree)
		}
		l.pending[p.Tree] = struct{}{}
		l.useTreeLocked(p.Tree)
	}
}

// takePending dequeues and returns the trees of removed images that no lease keeps.
func (l *leases) takePending() []Digest {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Digest
	for d := range l.pending {
		if !l.usesTreeLocked(d) {
			delete(l.pending, d)
			out = append(out, d)
		}
	}
	return out
}

// lockRead notes the objects of all noted trees, which read returns, and then locks mu. On an
// error mu is not locked: the objects of an unreadable tree are unknown, and a lease may rely on
// them.
func (l *leases) lockRead(read func(Digest) (keys []string, err error)) error {
	for {
		l.mu.Lock()
		g, d := l.nextUnreadLocked()
		if g == nil {
			return nil
		}
		l.mu.Unlock()
		keys, err := read(d)
		l.mu.Lock()
		switch {
		case err == nil: // no harm if the generation was forgotten meanwhile
			g.trees[d] = true
			for _, key := range keys {
				g.keys[key] = struct{}{}
			}
		case errors.Is(err, fs.ErrNotExist): // no tree yet: a caller that finds it later notes the tree again
		default:
			l.mu.Unlock()
			return err
		}
		delete(g.unread, d)
		l.mu.Unlock()
	}
}

func (l *leases) nextUnreadLocked() (*generation, Digest) {
	for _, g := range []*generation{l.prev, l.cur} {
		for d := range g.unread {
			return g, d
		}
	}
	return nil, ""
}

// ready reports whether takePending would return a tree.
func (l *leases) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.pending {
		if !l.usesTreeLocked(d) {
			return true
		}
	}
	return false
}
