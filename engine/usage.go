package engine

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// ImageUsage is an image with what it takes.
type ImageUsage struct {
	*store.Image
	store.ImageSize
	InUse bool // by a function, a sandbox or what starts them: it cannot be removed

	// HeldBytes are what an image in use takes beside those in use that come before
	// it, those that lists show first: together what cannot be reclaimed.
	HeldBytes int64
}

// ContainerUsage is what a container has written to its root; AsOf is zero where
// that is not known: it has not run, or is being counted.
type ContainerUsage struct {
	ID, Name string
	Running  bool
	volume.Usage
}

// DiskUsage is what the state directory holds, in blocks of the disk.
type DiskUsage struct {
	Images           []ImageUsage // newest first
	ImageBytes       int64        // of all together, what they share once
	ImageInodes      int64
	ReclaimableBytes int64         // what would be free without those that nothing uses
	Tenants          []TenantUsage // oldest first
	Containers       []ContainerUsage
	Cache            volume.Usage // what builds have downloaded
}

// DiskUsage answers from memory, but for a system call or two for each tenant and
// each running container.
func (e *Engine) DiskUsage() (*DiskUsage, error) {
	sizes := e.cfg.Store.Sizes()
	images, _ := e.cfg.Store.ImageList()
	users := e.imageUsers()
	out := &DiskUsage{ImageBytes: sizes.Bytes, ImageInodes: sizes.Inodes, Images: make([]ImageUsage, len(images))}
	var used, hidden []int // indices of those in use; lists hide roots of runtime shells
	for i, img := range images {
		_, inUse := users[img.Digest]
		out.Images[i] = ImageUsage{Image: img, ImageSize: sizes.Image(img.Digest), InUse: inUse}
		switch {
		case inUse && image.IsShellRoot(img):
			hidden = append(hidden, i)
		case inUse:
			used = append(used, i)
		}
	}
	used = append(used, hidden...)
	digests := make([]store.Digest, len(used))
	for i, at := range used {
		digests[i] = images[at].Digest
	}
	out.ReclaimableBytes = sizes.Bytes
	for i, held := range e.cfg.Store.Added(digests) {
		out.Images[used[i]].HeldBytes = held
		out.ReclaimableBytes -= held
	}
	out.ReclaimableBytes = max(out.ReclaimableBytes, 0) // images come and go meanwhile
	for _, c := range e.Containers(true) {
		u, err := e.ContainerScratch(c.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("layer of container %s: %w", c.ID[:12], err)
		}
		out.Containers = append(out.Containers, ContainerUsage{ID: c.ID, Name: c.Config.Name, Running: c.State == StateRunning, Usage: u})
	}
	var err error
	if out.Cache, err = e.cacheUsage(); err != nil {
		return nil, err
	}
	out.Tenants, err = e.tenantUsage()
	return out, err
}

// imageUsers says what uses images now: digest → for messages.
func (e *Engine) imageUsers() map[store.Digest]string {
	users := make(map[store.Digest]string)
	for _, f := range e.cfg.Store.Functions() {
		for _, d := range f.Images {
			users[d] = "a revision that function " + f.Name + " may go back to (fre function revisions " + f.Name + ")"
		}
	}
	for _, f := range e.cfg.Store.Functions() {
		users[f.Image] = "function " + f.Name
	}
	for _, a := range e.agents.all() {
		users[a.shown.Digest] = "agent's sandbox " + a.shown.ID
	}
	for _, b := range e.boxes.all() {
		users[b.digest] = "sandbox " + b.id
	}
	e.containers.mu.Lock()
	for d := range e.containers.making {
		users[d] = "a container that is being made"
	}
	for _, c := range e.containers.byID {
		users[c.digest] = "container " + c.id[:12]
	}
	e.containers.mu.Unlock()
	for _, img := range e.cfg.Store.Images() {
		if users[img.Digest] == "" && image.IsShellRoot(img) && e.shells.uses(img) {
			users[img.Digest] = "runtime shells of deployed functions"
		}
	}
	return users
}
