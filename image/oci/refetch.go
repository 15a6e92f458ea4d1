package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Refetcher downloads files and trees of a store's images again from the registries that know the
// images (store.Image.Remotes). It downloads a layer whole and once, and unpacks it into a
// temporary store of the same size. Use it from one goroutine.
type Refetcher struct {
	images  *store.Store
	o       RegistryOptions
	dir     string       // of own
	own     *store.Store // downloaded trees; nil before the first
	release func()       // of own

	asked map[string]error // result of a request, by "remote tree"
	gone  map[string]error // unreachable registries, by host: not asked again
}

// NewRefetcher returns a Refetcher for the images of s; the caller closes it.
func NewRefetcher(s *store.Store, o RegistryOptions) *Refetcher {
	return &Refetcher{images: s, o: o, asked: make(map[string]error), gone: make(map[string]error)}
}

// Close removes the temporary store.
func (f *Refetcher) Close() error {
	if f.dir == "" {
		return nil
	}
	var err error
	if f.own != nil {
		f.release()
		err = f.own.Close()
	}
	return errors.Join(err, os.RemoveAll(f.dir))
}

// Open returns the content of a file of the trees, which the caller closes, and the registry's name
// of the image with the file. It fits store.CheckOptions.
//
// Errors: those of [Pull] from the last registry; fs.ErrNotExist if no registry knows an image with
// such a tree, or if the registry's image has changed. ENOSPC and the end of ctx stop the search at
// once.
func (f *Refetcher) Open(ctx context.Context, e *store.Entry, trees map[store.Digest]bool) (io.ReadCloser, string, error) {
	return ask(ctx, f, trees, func() (io.ReadCloser, error) { return f.own.OpenFile(e) })
}

// Tree is like Open for the tree of a layer or a configuration.
func (f *Refetcher) Tree(ctx context.Context, d store.Digest) (*store.Tree, string, error) {
	return ask(ctx, f, map[store.Digest]bool{d: true}, func() (*store.Tree, error) { return f.own.Tree(d) })
}

// ask asks the registries of images with the trees until own holds the object of get.
func ask[T any](ctx context.Context, f *Refetcher, trees map[store.Digest]bool, get func() (T, error)) (got T, from string, err error) {
	if err := f.openOwn(); err != nil {
		return got, "", err
	}
	err = fmt.Errorf("in no registry: %w", fs.ErrNotExist)
	for _, img := range f.images.Images() {
		for i, p := range img.Parts {
			if !trees[p.Tree] {
				continue
			}
			for _, known := range img.Remotes {
				got, failed := get()
				if failed != nil {
					if failed = f.from(ctx, known, img, i); failed == nil {
						got, failed = get()
					}
				}
				if failed == nil {
					return got, known, nil
				}
				err = fmt.Errorf("%s: %w", known, reason(ctx, failed))
				if ctx.Err() != nil || errors.Is(failed, unix.ENOSPC) {
					return got, "", err
				}
			}
		}
	}
	return got, "", err
}

// from asks a registry for a part, unless an earlier call has done so.
func (f *Refetcher) from(ctx context.Context, known string, img *store.Image, part int) error {
	r, err := name.ParseReference(known)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReference, err)
	}
	host := r.Context().RegistryStr()
	if err := f.gone[host]; err != nil {
		return err
	}
	layer := known + " " + string(img.Parts[part].Tree)
	err, asked := f.asked[layer]
	if !asked {
		err = f.fetch(ctx, known, img, part)
		f.asked[layer] = err
		if network := net.Error(nil); errors.As(err, &network) {
			f.gone[host] = err
		}
	}
	return err
}

func (f *Refetcher) openOwn() (err error) {
	if f.own != nil {
		return nil
	}
	if f.dir == "" {
		if f.dir, err = f.images.MkdirScratch(); err != nil {
			return err
		}
	}
	if f.own, err = store.Open(filepath.Join(f.dir, "store"), slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	f.release = f.own.Hold()
	return nil
}

// refetchPart downloads a part of an image that FRE built.
func (j *job) refetchPart(ctx context.Context, a *artifact, want store.Part) error {
	for i, p := range a.manifest.Parts {
		if p.Tree == want.Tree {
			return j.part(ctx, p, a.layers[i])
		}
	}
	return fmt.Errorf("%w: no longer has the part %s", fs.ErrNotExist, partTitle(want))
}

// fetch downloads the configuration and the layer of the part. A part that FRE made and sent as an
// ordinary image has no layer of its own: fetch downloads all layers, since any may hold the files.
func (f *Refetcher) fetch(ctx context.Context, known string, img *store.Image, part int) error {
	want := ""
	if c, err := image.ConfigOf(img); err == nil && c.Container != nil {
		want = c.Container.Platform
	}
	j := newJob(f.own, f.o.Options)
	src, own, _, _, err := j.find(ctx, known, PullOptions{RegistryOptions: f.o, Platform: want})
	if err != nil {
		return err
	}
	if own != nil {
		return j.refetchPart(ctx, own, img.Parts[part])
	}
	if _, err := j.keepConfig(ctx, src.config); err != nil {
		return err
	}
	return j.refetchLayers(ctx, src, img.Parts[part])
}

// refetchLayers downloads the layers that may hold the files of a part.
func (j *job) refetchLayers(ctx context.Context, src source, p store.Part) error {
	file, err := parseConfig(src.config)
	if err != nil {
		return err
	}
	for i, l := range src.layers {
		if i == len(file.RootFS.DiffIDs) {
			return fmt.Errorf("%w: more layers than the configuration names", ErrArchive)
		}
		id := store.Digest(file.RootFS.DiffIDs[i].String())
		if p.Kind == configKind || p.Diff != "" && p.Diff != id {
			continue
		}
		if _, err := j.layer(ctx, id, l); err != nil {
			return err
		}
	}
	return nil
}
