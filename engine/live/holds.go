package live

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/fre-engine/fre/store"
)

// Holds keeps images from removal while containers are made from them.
type Holds struct {
	store *store.Store

	mu sync.Mutex
	// making counts, by image, the containers under construction. leaving counts the removals of
	// the image under way. Each side checks the count of the other after its own increment.
	making, leaving map[store.Digest]int
}

// NewHolds returns holds for the images of a store.
func NewHolds(st *store.Store) *Holds {
	return &Holds{store: st, making: map[store.Digest]int{}, leaving: map[store.Digest]int{}}
}

// Making returns the images of containers under construction.
func (t *Holds) Making() []store.Digest {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.making))
}

// Hold keeps an image until release is called, while a container is made from the image. Error:
// fs.ErrNotExist if the image is removed, or about to be.
func (t *Holds) Hold(d store.Digest) (release func(), err error) {
	t.mu.Lock()
	leaves := t.leaving[d] > 0
	if !leaves {
		t.making[d]++
	}
	t.mu.Unlock()
	if leaves {
		return nil, fmt.Errorf("image %s is being removed: %w", d, fs.ErrNotExist)
	}
	release = func() { t.end(t.making, d) }
	if !t.store.Use(d) {
		release()
		return nil, fmt.Errorf("image %s is being removed: %w", d, fs.ErrNotExist)
	}
	return release, nil
}

func (t *Holds) end(count map[store.Digest]int, d store.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if count[d]--; count[d] == 0 {
		delete(count, d)
	}
}

// WhileUnused calls remove unless users has the image: store.ErrInUse, with the text in users.
// ref is the image's name in errors. During the call containers can be made from all images
// except this one.
func (t *Holds) WhileUnused(ref string, d store.Digest, users func() map[store.Digest]string, remove func() error) error {
	inUse := func() error {
		if by := users()[d]; by != "" {
			return fmt.Errorf("remove image %s: %w by %s", ref, store.ErrInUse, by)
		}
		return nil
	}
	if err := inUse(); err != nil { // check first: a removal that fails anyway must not refuse a new container
		return err
	}
	t.mu.Lock()
	t.leaving[d]++
	t.mu.Unlock()
	defer t.end(t.leaving, d)
	if err := inUse(); err != nil {
		return err
	}
	return remove()
}
