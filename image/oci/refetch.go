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

// Refetcher gets files of a store's images, and their lists, again from the
// registries that know these images (store.Image.Remotes). A layer comes whole and
// once, and is unpacked into a store of the Refetcher's own, so that it is as large on the disk
// as it was. It is for one goroutine.
type Refetcher struct {
	images  *store.Store
	o       RegistryOptions
	dir     string       // of own
	own     *store.Store // what came; nil until something has
	release func()       // of own

	asked map[string]error // what became of it, by "remote tree"
	gone  map[string]error // registries that cannot be reached: nobody waits for them again
}

// NewRefetcher makes one for the images of s; the caller closes it.
func NewRefetcher(s *store.Store, o RegistryOptions) *Refetcher {
	return &Refetcher{images: s, o: o, asked: make(map[string]error), gone: make(map[string]error)}
}

// Close removes what came.
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

// Open returns the content of a file of these trees, which the caller closes, and
// what its registry calls the image that it came with. It fits store.CheckOptions.
//
// Errors: those of [Pull] from the last registry that was asked; fs.ErrNotExist
// where none knows an image with such a tree, or has other files there now; and,
// before anyone else is asked, ENOSPC and that of an end of ctx.
func (f *Refetcher) Open(ctx context.Context, e *store.Entry, trees map[store.Digest]bool) (io.ReadCloser, string, error) {
	return ask(ctx, f, trees, func() (io.ReadCloser, error) { return f.own.OpenFile(e) })
}

// Tree is Open for a tree that a layer or a configuration is.
func (f *Refetcher) Tree(ctx context.Context, d store.Digest) (*store.Tree, string, error) {
	return ask(ctx, f, map[store.Digest]bool{d: true}, func() (*store.Tree, error) { return f.own.Tree(d) })
}

// ask asks registries for what images have these trees of until own holds what get
// looks for.
func ask[T any](ctx context.Context, f *Refetcher, trees map[store.Digest]bool, get func() (T, error)) (got T, from string, err error) {
	if err := f.openOwn(); err != nil {
		return got, "", err
	}
	err = fmt.Errorf("no registry knows it: %w", fs.ErrNotExist)
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

// from asks one registry for a part, unless it was asked for that already.
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

// refetchPart brings one part of an image that FRE built.
func (j *job) refetchPart(ctx context.Context, a *artifact, want store.Part) error {
	for i, p := range a.manifest.Parts {
		if p.Tree == want.Tree {
			return j.part(ctx, p, a.layers[i])
		}
	}
	return fmt.Errorf("%w: it has no part %s any more", fs.ErrNotExist, partTitle(want))
}

// fetch brings the configuration and the layer that the part is. A part that FRE
// made and sent as an ordinary image is no layer: any may hold its files.
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
	file, err := parseConfig(src.config)
	if err != nil {
		return err
	}
	p := img.Parts[part]
	for i, l := range src.layers {
		if i == len(file.RootFS.DiffIDs) {
			return fmt.Errorf("%w: more layers than its configuration names", ErrArchive)
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
