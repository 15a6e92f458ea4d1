package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// holds count who relies on trees and objects no image refers to yet. While
// there are any, Sweep is put off; while it runs, Hold waits.
type holds struct {
	mu      sync.Mutex
	n       int
	pending bool
}

// Hold keeps every tree, part and object from being swept until release is
// called: a build holds the store from its first Part or Create to its
// PutImage. release is idempotent; the last one makes up for a Sweep put off.
func (s *Store) Hold() (release func()) {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	s.holds.n++
	return sync.OnceFunc(s.releaseHold)
}

func (s *Store) releaseHold() {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	s.holds.n--
	if s.holds.n > 0 || !s.holds.pending {
		return
	}
	if err := s.sweepLocked(context.Background()); err != nil {
		s.log.Warn("sweep failed: the next removal repeats it", "error", err)
	}
}

// Sweep removes parts and trees no image refers to and objects no tree refers
// to. While something holds the store it is put off until the last release.
func (s *Store) Sweep(ctx context.Context) error {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	if s.holds.n > 0 {
		s.holds.pending = true
		return nil
	}
	if err := s.sweepLocked(ctx); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return nil
}

// sweepLocked goes from referrer to referred, so that a crash leaves only more
// to sweep. It removes nothing if one live tree cannot be read.
func (s *Store) sweepLocked(ctx context.Context) error {
	liveTrees := make(map[Digest]bool)
	for _, img := range s.snap.Load().images {
		for _, p := range img.Parts {
			liveTrees[p.Tree] = true
		}
	}
	liveKeys := make(map[string]bool)
	for d := range liveTrees {
		if err := ctx.Err(); err != nil {
			return err
		}
		t, err := s.Tree(d)
		if err != nil {
			return err
		}
		for i := range t.Entries {
			if e := &t.Entries[i]; e.Kind == KindFile {
				liveKeys[e.key()] = true
			}
		}
	}
	if err := s.sweepParts(liveTrees); err != nil {
		return err
	}
	if err := s.sweepTrees(liveTrees); err != nil {
		return err
	}
	subs, err := readNames(s.objects)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.sweepObjects(sub, liveKeys); err != nil {
			return err
		}
	}
	s.holds.pending = false
	s.fillReserve()
	return nil
}

func (s *Store) sweepParts(live map[Digest]bool) error {
	var dead []string
	for key, p := range s.snap.Load().parts {
		if !live[p.Tree] {
			dead = append(dead, key)
		}
	}
	if len(dead) == 0 {
		return nil
	}
	return s.updateFreeing(false, func(t *tx) error {
		for _, key := range dead {
			if err := t.removePart(key); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) sweepTrees(live map[Digest]bool) error {
	names, err := readNames(s.trees)
	if err != nil {
		return err
	}
	for _, name := range names {
		if live[Digest(digestPrefix+strings.TrimSuffix(name, ".json"))] {
			continue
		}
		if err := unix.Unlinkat(int(s.trees.Fd()), name, 0); err != nil {
			return fmt.Errorf("remove tree %s: %w", name, err)
		}
	}
	// A tree must not come back after its objects are gone.
	return s.trees.Sync()
}

func (s *Store) sweepObjects(sub string, live map[string]bool) error {
	dir, err := openat(int(s.objects.Fd()), sub, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if live[objectKeyOf(name)] {
			continue
		}
		if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove object %s: %w", name, err)
		}
	}
	return nil
}
