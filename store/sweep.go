package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Swept counts the removed files. Inodes and Bytes (as allocated on disk) cover objects, trees,
// and the directories, symlinks and empty files of images.
type Swept struct {
	Parts, Trees, Objects int
	Inodes                int
	Bytes                 int64
}

// Add adds the counts of m.
func (n *Swept) Add(m Swept) {
	n.Parts += m.Parts
	n.Trees += m.Trees
	n.Objects += m.Objects
	n.Inodes += m.Inodes
	n.Bytes += m.Bytes
}

// SweepOptions adjusts Sweep.
type SweepOptions struct {
	DryRun bool // count, remove nothing
}

const (
	// sweepStep is the number of files removed before other callers get their turn.
	sweepStep = 128
	// maxCandidates bounds the memory of a sweep: further objects wait for another round.
	maxCandidates = 1 << 20
)

// sweeper removes the trees and objects that no image and no lease needs.
type sweeper struct {
	disk   *disk
	meta   *metadata
	leases *leases
	log    *slog.Logger

	// running is held by a running sweep or check. Lock order: running, leases.mu, metadata.mu,
	// sizing.mu, changes.mu.
	running sync.Mutex
}

// run returns a run that counts in done. The caller holds running.
func (s *sweeper) run(ctx context.Context, done *Swept) sweep {
	return sweep{sweeper: s, ctx: ctx, done: done}
}

func (s *sweeper) sweepAll(ctx context.Context, o SweepOptions, done *Swept) error {
	s.running.Lock()
	defer s.running.Unlock()
	defer s.leases.take()() // notes uses until the end of the sweep
	live := s.meta.snap.Load().liveTrees()
	dead, err := s.deadTrees(live)
	if err != nil {
		return err
	}
	w := s.run(ctx, done)
	w.dry = o.DryRun
	if _, err := w.removeTrees(dead); err != nil {
		return err
	}
	if err := w.removeUnlinked(live); err != nil {
		return err
	}
	if !o.DryRun {
		s.disk.fillReserve()
	}
	return nil
}

// deadTrees returns the trees on disk that are not in live.
func (s *sweeper) deadTrees(live map[Digest]bool) ([]Digest, error) {
	names, err := s.disk.listDir("trees")
	if err != nil {
		return nil, err
	}
	var dead []Digest
	for _, name := range names {
		if d := Digest(digestPrefix + strings.TrimSuffix(name, ".json")); !live[d] {
			dead = append(dead, d)
		}
	}
	return dead, nil
}

// sweepPending removes the leftovers of removed images that no lease keeps. If another sweep
// runs, that sweep does it at its end.
func (s *sweeper) sweepPending() (done Swept) {
	for {
		// Lock first: the holder of the lock looks at the queue again after unlocking.
		if !s.running.TryLock() {
			return done
		}
		dead := s.leases.takePending()
		if len(dead) > 0 {
			if err := s.sweepDead(dead, &done); err != nil {
				s.log.Warn("sweep after the removal of an image failed: the next full sweep repeats the work", "error", err)
			}
		}
		s.running.Unlock()
		if !s.leases.ready() {
			return done
		}
	}
}

// sweepDead is the short form of a sweep: it reads only the dead trees, and the trees of parts
// that no image has. If objects/ has the last link to an object, no image needs it, because each
// image links all objects of all its parts.
func (s *sweeper) sweepDead(dead []Digest, done *Swept) error {
	defer s.leases.take()()
	maybe := make(map[Digest]bool, len(dead))
	for _, d := range dead {
		maybe[d] = true
	}
	s.meta.snap.Load().deleteLive(maybe)
	dead = slices.DeleteFunc(dead, func(d Digest) bool { return !maybe[d] })
	if len(dead) == 0 {
		return nil
	}
	keys := make(map[Digest][]string)
	for _, d := range dead {
		var err error
		if keys[d], err = s.disk.treeKeys(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("tree cannot be read: its objects wait for the next full sweep", "error", err)
		}
	}
	w := s.run(context.Background(), done)
	gone, err := w.removeTrees(dead)
	if err != nil {
		return err
	}
	unlinked := make(map[string]int)
	for d := range gone {
		for _, key := range keys[d] {
			unlinked[key] = 0
		}
	}
	if len(unlinked) > 0 {
		err = w.spare(s.meta.snap.Load().looseTrees(), unlinked)
	}
	if err == nil {
		err = w.removeObjects(unlinked)
	}
	if err != nil {
		return err
	}
	s.disk.fillReserve()
	return nil
}

// sweep is one run of a sweep.
type sweep struct {
	*sweeper
	ctx  context.Context //nolint:containedctx // of one call
	dry  bool
	done *Swept
}

// removeTrees removes dead trees, their parts first, and returns the trees that no lease keeps.
func (w *sweep) removeTrees(dead []Digest) (map[Digest]bool, error) {
	gone := make(map[Digest]bool, len(dead))
	for step := range slices.Chunk(dead, sweepStep) {
		if err := w.ctx.Err(); err != nil {
			return nil, err
		}
		if err := w.removeTreesStep(step, gone); err != nil {
			return nil, err
		}
	}
	if w.dry || len(gone) == 0 {
		return gone, nil
	}
	// Sync: a tree must not come back after its objects are gone.
	if err := w.disk.trees.Sync(); err != nil {
		return nil, err
	}
	return gone, w.disk.failpoint("trees swept")
}

func (w *sweep) removeTreesStep(dead []Digest, gone map[Digest]bool) error {
	w.leases.mu.Lock()
	defer w.leases.mu.Unlock()
	step := make(map[Digest]bool, len(dead))
	for _, d := range dead {
		if w.leases.usesTreeLocked(d) {
			w.leases.pending[d] = struct{}{} // for the sweep at the end of the lease
			continue
		}
		step[d], gone[d] = true, true
	}
	if err := w.forgetParts(step); err != nil {
		return err
	}
	for d := range step {
		name := d.hex() + ".json"
		var st unix.Stat_t
		err := unix.Fstatat(int(w.disk.trees.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && !w.dry {
			err = unix.Unlinkat(int(w.disk.trees.Fd()), name, 0)
		}
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("remove tree %s: %w", d, err)
		}
		w.done.Trees++
		w.done.Inodes++
		w.done.Bytes += st.Blocks * 512
	}
	return nil
}

// forgetParts forgets the parts of trees that are about to be removed.
func (w *sweep) forgetParts(trees map[Digest]bool) error {
	var dead []string
	for key, p := range w.meta.snap.Load().parts {
		if trees[p.Tree] {
			dead = append(dead, key)
		}
	}
	w.done.Parts += len(dead)
	if len(dead) == 0 || w.dry {
		return nil
	}
	err := w.meta.updateFreeing(false, func(t *tx) error {
		for _, key := range dead {
			if err := t.removePart(key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.disk.failpoint("parts swept")
}

// removeUnlinked removes every object without another link and without a live tree.
func (w *sweep) removeUnlinked(live map[Digest]bool) error {
	subs, err := w.disk.listDir("objects")
	if err != nil {
		return err
	}
	unlinked := make(map[string]int)
	flush := func() error {
		if len(unlinked) == 0 {
			return nil
		}
		if err := w.spare(live, unlinked); err != nil {
			return err
		}
		defer clear(unlinked)
		return w.removeObjects(unlinked)
	}
	for _, sub := range subs {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		names, err := w.disk.listDir("objects/" + sub)
		if errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			key, n, ok := parseObjectName(name)
			if !ok {
				continue
			}
			if links, _ := w.disk.objectLinks(sub + "/" + name); links == 1 {
				unlinked[key] = max(unlinked[key], n)
			}
		}
		if len(unlinked) > maxCandidates {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// spare deletes from unlinked the objects of trees that stay. An image with such a tree that
// does not link the object is damaged: the object stays for the repair.
func (w *sweep) spare(trees map[Digest]bool, unlinked map[string]int) error {
	for d := range trees {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		keys, err := w.disk.treeKeys(d)
		if err != nil {
			return err
		}
		for _, key := range keys {
			delete(unlinked, key)
		}
	}
	return nil
}

// removeObjects removes the objects without another link that no lease keeps. The map holds the
// highest known copy number of each.
func (w *sweep) removeObjects(unlinked map[string]int) error {
	for step := range slices.Chunk(slices.Collect(maps.Keys(unlinked)), sweepStep) {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.removeObjectsStep(step, unlinked); err != nil {
			return err
		}
	}
	return nil
}

func (w *sweep) removeObjectsStep(keys []string, copies map[string]int) error {
	if err := w.leases.lockRead(w.disk.treeKeys); err != nil {
		return err
	}
	defer w.leases.mu.Unlock()
	for _, key := range keys {
		if w.leases.usesKeyLocked(key) {
			continue
		}
		if err := w.removeCopies(key, copies[key]); err != nil {
			return fmt.Errorf("remove object %s: %w", key, err)
		}
	}
	return w.disk.failpoint("objects swept")
}

// removeCopies removes all copies of an object, at least 0 to last, unless a copy has another link. It
// removes copy 0 last, so a crash half-way leaves no copy without copy 0.
func (w *sweep) removeCopies(key string, last int) error {
	var sizes []int64
	for n := 0; ; n++ {
		links, bytes := w.disk.objectLinks(objectName(key, n))
		if links > 1 {
			return nil
		}
		if links == 0 && n > last {
			break
		}
		sizes = append(sizes, bytes)
	}
	for n := len(sizes) - 1; n >= 0; n-- {
		if !w.dry {
			err := unix.Unlinkat(int(w.disk.objects.Fd()), objectName(key, n), 0)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return err
			}
		}
		w.done.Objects++
		w.done.Inodes++
		w.done.Bytes += sizes[n]
	}
	return nil
}
