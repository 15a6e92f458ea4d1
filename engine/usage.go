package engine

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// ImageUsage is an image with its disk usage.
type ImageUsage struct {
	*store.Image
	store.ImageSize
	InUse bool // by a function, a sandbox or parked interpreters, and so cannot be removed

	// HeldBytes are the bytes of an image in use that no earlier image in use holds, in the order
	// of lists. The sum over all images cannot be reclaimed.
	HeldBytes int64
}

// ContainerUsage is the size of a container's scratch layer. AsOf is zero if the size is unknown:
// the container has not run, or is being counted.
type ContainerUsage struct {
	ID, Name string
	Running  bool
	volume.Usage
}

// DiskUsage is the content of the state directory, in blocks of the disk.
type DiskUsage struct {
	Images           []ImageUsage // newest first
	ImageBytes       int64        // of all images; shared files count once
	ImageInodes      int64
	ReclaimableBytes int64              // freed if all unused images were removed
	Tenants          []live.TenantUsage // oldest first
	Containers       []ContainerUsage
	Cache            volume.Usage // the builds' downloads
}

// DiskUsage answers from memory, except for one or two system calls per tenant and per running
// container.
func (e *Engine) DiskUsage() (*DiskUsage, error) {
	sizes := e.cfg.Store.Sizes()
	images, _ := e.cfg.Store.ImageList()
	users := e.imageUsers()
	out := &DiskUsage{ImageBytes: sizes.Bytes, ImageInodes: sizes.Inodes, Images: make([]ImageUsage, len(images))}
	var used, hidden []int // indices of images in use; hidden: roots of parked interpreters, which lists do not show
	for i, img := range images {
		_, inUse := users[img.Digest]
		out.Images[i] = ImageUsage{Image: img, ImageSize: sizes.Image(img.Digest), InUse: inUse}
		switch {
		case inUse && image.IsParkedRoot(img):
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
		out.Containers = append(out.Containers, ContainerUsage{ID: c.ID, Name: c.Config.Name, Running: c.State == live.StateRunning, Usage: u})
	}
	var err error
	if out.Cache, err = e.CacheUsage(); err != nil {
		return nil, err
	}
	out.Tenants, err = e.tenants.Usage()
	return out, err
}

// imageUsers returns the users of images: digest → text for messages.
func (e *Engine) imageUsers() map[store.Digest]string {
	users := make(map[store.Digest]string)
	for _, f := range e.cfg.Store.Functions() {
		for _, d := range f.Images {
			users[d] = "an earlier revision of function " + f.Name + " (fre function revisions " + f.Name + ")"
		}
	}
	for _, f := range e.cfg.Store.Functions() {
		users[f.Image] = "function " + f.Name
	}
	for _, a := range e.agents.all() {
		users[a.shown.Digest] = "agent's sandbox " + a.shown.ID
	}
	for _, b := range e.boxes.All() {
		users[b.Digest] = "sandbox " + b.ID
	}
	for _, d := range e.holds.Making() {
		users[d] = "a container in creation"
	}
	for _, c := range e.Containers(true) {
		users[c.Digest] = "container " + c.ID[:12]
	}
	for _, img := range e.cfg.Store.Images() {
		if users[img.Digest] == "" && image.IsParkedRoot(img) && e.interpreters.uses(img) {
			users[img.Digest] = "parked interpreters of deployed functions"
		}
	}
	return users
}
