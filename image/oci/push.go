package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// PushOptions adjust Push.
type PushOptions struct {
	RegistryOptions
	// AsImage sends an image that FRE built as an ordinary image instead of an artifact. Other
	// engines can run an ordinary image, and a pull brings it back as an ordinary image.
	AsImage bool
	// NoSBOM leaves out the bill of materials beside an image that FRE built.
	NoSBOM bool
}

// Push sends an image of the store to the registry that ref names. An image from elsewhere is sent
// unchanged. An image that FRE built is sent as an artifact of its parts, and a pull makes the same
// image again. Push sends only OCI media types, because not every registry takes docker's, and
// skips blobs that the registry has. If the image has a name of that repository, the store knows it
// as "name@sha256:…" from then on.
//
// Errors: ErrReference, ErrRegistry, fs.ErrNotExist for an image that is not in the store.
func Push(ctx context.Context, s *store.Store, img *store.Image, ref string, o PushOptions) (Remote, error) {
	sent, err := push(ctx, s, img, ref, o)
	if err != nil {
		return Remote{}, fmt.Errorf("push %s: %w", ref, reason(ctx, err))
	}
	return sent, nil
}

func push(ctx context.Context, s *store.Store, img *store.Image, ref string, o PushOptions) (Remote, error) {
	defer s.Hold()()
	j := newJob(s, o.Options)
	r, options, err := o.open(ctx, ref)
	if err != nil {
		return Remote{}, err
	}
	out, err := j.describe(ctx, img, o.AsImage)
	if err != nil {
		return Remote{}, err
	}
	dir, err := s.MkdirScratch()
	if err != nil {
		return Remote{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what stays the store's next Open removes
	known, err := o.send(ctx, j, r, options, out, dir)
	if err != nil {
		return Remote{}, err
	}
	if !o.NoSBOM && !ordinary(img) {
		if err := o.attachSBOM(ctx, s, img, r.Context(), known); err != nil {
			if ctx.Err() != nil {
				return Remote{}, err
			}
			j.event(image.Progress{Step: "warning", Name: r.Name(), Message: "pushed, without a bill of materials: " + err.Error()})
		}
	}
	return known, tagRemote(ctx, s, img, r, known)
}

// describe describes the image as an artifact, or as an ordinary image.
func (j *job) describe(ctx context.Context, img *store.Image, asImage bool) (*outgoing, error) {
	if asImage || ordinary(img) {
		return j.outgoing(ctx, img)
	}
	return j.outgoingArtifact(img)
}

// send packs the layers into files below dir and sends the image.
func (o PushOptions) send(ctx context.Context, j *job, r name.Reference, options []remote.Option, out *outgoing, dir string) (Remote, error) {
	puller, err := remote.NewPuller(options...)
	if err != nil {
		return Remote{}, err
	}
	there := func(ctx context.Context, d v1.Descriptor) bool { return hasBlob(ctx, puller, r.Context(), d) }
	sent, err := j.pushable(ctx, out, dir, there)
	if err != nil {
		return Remote{}, err
	}
	final, err := partial.CompressedToImage(sent)
	if err != nil {
		return Remote{}, err
	}
	j.event(image.Progress{Step: "push", Name: r.Name()})
	if err := remote.Write(r, final, o.pushing(ctx, r)...); err != nil {
		return Remote{}, registryError(r.Context(), err)
	}
	for i, l := range out.layers {
		if err := j.remember(ctx, l.key, l.tree, sent.order[i].Descriptor); err != nil {
			return Remote{}, err
		}
	}
	d, err := final.Digest()
	if err != nil {
		return Remote{}, err
	}
	return Remote{Digest: store.Digest(d.String()), Size: int64(len(sent.manifest))}, nil
}

// hasBlob reports whether the repository has the blob.
func hasBlob(ctx context.Context, puller *remote.Puller, repo name.Repository, d v1.Descriptor) bool {
	l, err := puller.Layer(ctx, repo.Digest(d.Digest.String()))
	if err != nil {
		return false // the upload finds out why
	}
	size, err := l.Size()
	return err == nil && size == d.Size
}

// tagRemote records the digest in the registry under the image's name, unless the name was for this
// push only.
func tagRemote(ctx context.Context, s *store.Store, img *store.Image, r name.Reference, known Remote) error {
	repository := Familiar(r.Context().Name())
	if !slices.ContainsFunc(img.Names, func(n string) bool { return strings.HasPrefix(n, repository+":") }) {
		return nil
	}
	// The image may have been removed meanwhile.
	if _, err := s.TagRemote(ctx, img.Digest, remoteName(r, known.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// pushable packs the layers into files below dir, with the same bytes each time. It skips layers
// that the registry has.
func (j *job) pushable(ctx context.Context, out *outgoing, dir string, there func(context.Context, v1.Descriptor) bool) (*pushable, error) {
	layers := make([]*packedLayer, len(out.layers))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, l := range out.layers {
		g.Go(func() error {
			if d, ok := j.recall(l); ok && there(gctx, d) {
				layers[i] = &packedLayer{Descriptor: d}
				j.event(image.Progress{Step: "layer", Name: l.title, Message: "already in the registry", End: true})
				return nil
			}
			j.event(image.Progress{Step: "layer", Name: l.title, Message: "pack", Total: l.size, Unit: image.UnitBytes})
			var err error
			layers[i], err = packLayer(gctx, l, filepath.Join(dir, strconv.Itoa(i)))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	p := &pushable{config: out.config, order: layers, layers: map[v1.Hash]*packedLayer{}}
	media := types.OCIConfigJSON
	if out.ofParts {
		media = mediaManifest
	}
	config, err := descriptor(media, digestOf(out.config), int64(len(out.config)))
	if err != nil {
		return nil, err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.Descriptor)
		p.layers[l.Descriptor.Digest] = l
	}
	if out.ofParts {
		m = artifactManifest(out.img, config, layers)
	}
	p.manifest, err = json.Marshal(m)
	return p, err
}

func packLayer(ctx context.Context, l packing, path string) (*packedLayer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	hash := sha256.New()
	n := &countingWriter{w: io.MultiWriter(f, hash)}
	var z io.WriteCloser = gzip.NewWriter(n)
	if l.media == mediaPart {
		if z, err = zstdWriter(n); err != nil {
			return nil, err
		}
	}
	if err := l.write(ctx, z); err != nil {
		return nil, err
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		return nil, err
	}
	d, err := descriptor(l.media, store.Digest("sha256:"+hex.EncodeToString(hash.Sum(nil))), n.n)
	return &packedLayer{Descriptor: d, content: func() (io.ReadCloser, error) { return os.Open(path) }}, err
}

// artifactManifest returns the manifest of the type mediaImage.
func artifactManifest(img *store.Image, config v1.Descriptor, layers []*packedLayer) v1.Manifest {
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: mediaImage, Config: config,
		Annotations: map[string]string{annotationPlatform: platform(), annotationTitle: img.Built},
	}
	for i, l := range layers {
		d := l.Descriptor
		d.Annotations = map[string]string{annotationTitle: partTitle(img.Parts[i]) + ".tar.zst"}
		m.Layers = append(m.Layers, d)
	}
	return m
}
