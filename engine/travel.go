package engine

import (
	"context"
	"fmt"
	"io"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// Load takes in the images of an archive: docker save's, or an OCI layout.
// report is called from one goroutine at a time.
// Errors: those of [oci.Load].
func (e *Engine) Load(ctx context.Context, r io.Reader, report func(image.Event)) (images []*store.Image, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		images, err = oci.Load(ctx, e.cfg.Store, r, e.travel(report))
		return err
	})
	return images, err
}

// Save writes the images as an archive that docker load and Load read.
// Errors: fs.ErrNotExist.
func (e *Engine) Save(ctx context.Context, w io.Writer, refs []string) error {
	return e.while(ctx, func(ctx context.Context) error {
		return oci.Save(ctx, e.cfg.Store, w, refs, e.travel(nil))
	})
}

// Import makes an image of a plain archive of a file system. Of o, Options are
// the engine's. Errors: those of [oci.Import].
func (e *Engine) Import(ctx context.Context, r io.Reader, o oci.ImportOptions, report func(image.Event)) (img *store.Image, err error) {
	o.Options = e.travel(report)
	err = e.while(ctx, func(ctx context.Context) error {
		img, err = oci.Import(ctx, e.cfg.Store, r, o)
		return err
	})
	return img, err
}

// Pull gets an image from its registry; auth may be nil (oci.RegistryOptions),
// platform empty. Errors: those of [oci.Pull].
func (e *Engine) Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Event)) (img *store.Image, remote oci.Remote, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		img, remote, err = oci.Pull(ctx, e.cfg.Store, ref, oci.PullOptions{RegistryOptions: e.registry(auth, report), Platform: platform})
		return err
	})
	return img, remote, err
}

// Push sends the image of that name to the registry the name says; to, unless
// empty, is the name it gets there. Errors: those of [oci.Push], and
// fs.ErrNotExist.
func (e *Engine) Push(ctx context.Context, ref, to string, auth *oci.Auth, report func(image.Event)) (remote oci.Remote, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		img, name, err := e.cfg.Store.Find(ref)
		if err != nil {
			return err
		}
		if to == "" {
			to = name
		}
		if to == "" {
			return fmt.Errorf("push %s: %w: a digest says no registry: push a name (fre image tag gives one)", ref, oci.ErrReference)
		}
		remote, err = oci.Push(ctx, e.cfg.Store, img, to, e.registry(auth, report))
		return err
	})
	return remote, err
}

// Login asks a registry whether it takes a login. Errors: those of [oci.Login].
func (e *Engine) Login(ctx context.Context, host string, auth *oci.Auth) error {
	return e.while(ctx, func(ctx context.Context) error { return oci.Login(ctx, host, e.registry(auth, nil)) })
}

// History returns what an image was made of, oldest first.
func (e *Engine) History(ref string) ([]oci.Step, error) {
	defer e.cfg.Store.Hold()()
	img, err := e.cfg.Store.Image(ref)
	if err != nil {
		return nil, err
	}
	return oci.History(e.cfg.Store, img)
}

func (e *Engine) travel(report func(image.Event)) oci.Options {
	return oci.Options{Limits: e.cfg.ImageLimits, Report: report}
}

func (e *Engine) registry(auth *oci.Auth, report func(image.Event)) oci.RegistryOptions {
	return oci.RegistryOptions{Options: e.travel(report), Auth: auth, Insecure: e.cfg.InsecureRegistries}
}
