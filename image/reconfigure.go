package image

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/fre-engine/fre/store"
)

// Reconfigure makes a new image from a function's image, with the same files and a configuration
// changed by edit. Its manifest has name, but the store gives the image no name, so no other image
// loses its name. links are additional symbolic links in the root, path → target, which replace
// files of the image. The images share contents. Errors: those of edit, store.ErrConflict if the
// image has a directory at a link's path.
func (b *Builder) Reconfigure(ctx context.Context, img *store.Image, name string, links map[string]string, edit func(*Config) error) (*store.Image, error) {
	defer b.Store.Hold()()
	c, err := ConfigOf(img)
	if err != nil {
		return nil, err
	}
	env := slices.Clone(c.Env)
	if err := edit(&c); err != nil {
		return nil, err
	}
	if !slices.Equal(env, c.Env) { // only the runtime knows which variables an interpreter reads at its start
		c.Parked = nil
	}
	parts := slices.Clone(img.Parts)
	if len(links) > 0 {
		tree, err := b.linksTree(ctx, links)
		if err != nil {
			return nil, err
		}
		parts = append(parts, store.Part{Kind: "links", Name: name, Tree: tree})
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return b.Store.TakeImage(ctx, store.Manifest{Name: name, Version: "latest", Parts: parts, Config: raw}, img.Foreign)
}

func (b *Builder) linksTree(ctx context.Context, links map[string]string) (store.Digest, error) {
	w, err := b.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	for _, path := range slices.Sorted(maps.Keys(links)) {
		if err := w.Symlink(path, links[path], systemTime); err != nil {
			return "", err
		}
	}
	return w.Commit(ctx)
}
