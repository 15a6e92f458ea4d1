package store

import (
	"errors"
	"io/fs"
	"sync"
	"time"
)

// leases know which trees and objects somebody relies on although no image
// refers to them: what was found, made or removed since the oldest lease was
// taken.
//
// What is used is noted in the current generation, whoever uses it. A
// generation is forgotten once all its leases and those of the one before are
// released, so that leases which overlap without end do not keep everything.
//
//	lease 1 ├──────────┤
//	lease 2     ├──────────────────┤
//	lease 3                ├──────────────…
//	noted:  ╰──── a ───╯╰──── b ───╯╰─ c …   a is forgotten with the end of 2
//
// Whoever looks whether something is there notes it first; whoever removes
// something looks at the notes first, and holds mu until it is gone.
type leases struct {
	mu        sync.Mutex // before Store.mu
	prev, cur *generation
	leaving   map[Digest]int      // trees of images whose removal is under way
	pending   map[Digest]struct{} // trees of removed images, to be swept
}

type generation struct {
	leases int
	since  time.Time           // when the first of its leases was taken
	trees  map[Digest]bool     // and whether their objects are in keys
	keys   map[string]struct{} // of objects
	unread map[Digest]struct{} // trees to read before keys says all
}

func newGeneration() *generation {
	return &generation{trees: make(map[Digest]bool), keys: make(map[string]struct{}), unread: make(map[Digest]struct{})}
}

func (l *leases) init() {
	l.prev, l.cur = newGeneration(), newGeneration()
	l.leaving, l.pending = make(map[Digest]int), make(map[Digest]struct{})
}

// Hold takes a lease: the trees of all images there are now, and every tree,
// part and object that is found or made from now on, stay until release is
// called, whatever is removed and swept meanwhile. A build takes one before its
// first Part or Create and releases it after its PutImage. release is
// idempotent; it makes up for what a removal had to leave.
func (s *Store) Hold() (release func()) {
	end := s.leases.take()
	return sync.OnceFunc(func() {
		end()
		s.sweepPending()
	})
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

// oldest returns a time before which no lease that is held was taken; false if
// none is held.
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

// useTree notes a tree that somebody looks for.
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

// makeTree notes a tree that somebody makes, with its objects.
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

// useKey notes an object that somebody looks for.
func (l *leases) useKey(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.prev.leases+l.cur.leases > 0 {
		l.cur.keys[key] = struct{}{}
	}
}

// usesTreeLocked says whether a tree must stay.
func (l *leases) usesTreeLocked(d Digest) bool {
	_, prev := l.prev.trees[d]
	_, cur := l.cur.trees[d]
	return prev || cur || l.leaving[d] > 0
}

// usesKeyLocked says whether an object must stay; readUsed has returned and mu
// was held since.
func (l *leases) usesKeyLocked(key string) bool {
	_, prev := l.prev.keys[key]
	_, cur := l.cur.keys[key]
	return prev || cur
}

// leave keeps the trees of an image while it is being removed: before its row
// goes, so that a lease that was taken in time finds them.
func (l *leases) leave(m *Manifest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range m.Parts {
		l.leaving[p.Tree]++
	}
}

// left ends leave. What a lease may rely on is noted, the rest is swept next.
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

// takePending returns what can be swept now of what removed images leave.
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

// lockRead locks leases.mu once the objects of all noted trees are noted too. On
// an error it is not locked: a tree that cannot be read hides what somebody
// relies on.
func (s *Store) lockRead() error {
	l := &s.leases
	for {
		l.mu.Lock()
		g, d := l.nextUnreadLocked()
		if g == nil {
			return nil
		}
		l.mu.Unlock()
		keys, err := s.treeKeys(d)
		l.mu.Lock()
		switch {
		case err == nil: // a generation forgotten meanwhile harms nothing
			g.trees[d] = true
			for _, key := range keys {
				g.keys[key] = struct{}{}
			}
		case errors.Is(err, fs.ErrNotExist): // looked for in vain; whoever finds it later notes it again
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
