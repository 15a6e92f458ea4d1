package oci

import (
	"bytes"
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
	packings := j.outgoing
	if !o.AsImage && !ordinary(img) {
		packings = j.outgoingArtifact
	}
	out, err := packings(ctx, img)
	if err != nil {
		return Remote{}, err
	}
	dir, err := s.MkdirScratch()
	if err != nil {
		return Remote{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what stays the store's next Open removes
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
	known := Remote{Digest: store.Digest(d.String()), Size: int64(len(sent.manifest))}
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

// pushable is an image in ggcr's form: its layers packed in files.
type pushable struct {
	config, manifest []byte
	order            []*packedLayer
	layers           map[v1.Hash]*packedLayer // the same, by digest
}

// RawConfigFile implements partial.CompressedImageCore.
func (p *pushable) RawConfigFile() ([]byte, error) { return p.config, nil }

// RawManifest implements partial.CompressedImageCore.
func (p *pushable) RawManifest() ([]byte, error) { return p.manifest, nil }

// MediaType implements partial.CompressedImageCore.
func (p *pushable) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (p *pushable) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if l := p.layers[h]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("layer %s: %w", h, fs.ErrNotExist)
}

type packedLayer struct {
	v1.Descriptor
	path    string // "" if the registry has the layer, or content holds it
	content []byte
}

// Digest implements partial.CompressedLayer.
func (l *packedLayer) Digest() (v1.Hash, error) { return l.Descriptor.Digest, nil }

// Size implements partial.CompressedLayer: bytes.
func (l *packedLayer) Size() (int64, error) { return l.Descriptor.Size, nil }

// MediaType implements partial.CompressedLayer.
func (l *packedLayer) MediaType() (types.MediaType, error) { return l.Descriptor.MediaType, nil }

// Compressed implements partial.CompressedLayer.
func (l *packedLayer) Compressed() (io.ReadCloser, error) {
	if l.content != nil {
		return io.NopCloser(bytes.NewReader(l.content)), nil
	}
	if l.path == "" {
		return nil, fmt.Errorf("%w: lost layer %s during the push: push again", ErrRegistry, l.Descriptor.Digest)
	}
	return os.Open(l.path)
}

// packedKey is the store's key for the descriptor of a layer's last packed form.
func packedKey(key string) string { return "packed:" + key }

// remember stores a registry's descriptor of a layer, for as long as the layer's tree lives.
func (j *job) remember(ctx context.Context, key string, tree store.Digest, d v1.Descriptor) error {
	if tree == "" {
		return nil
	}
	return j.store.PutPart(ctx, packedKey(key), store.Part{
		Kind: "packed", Name: d.Digest.String(), Version: strconv.FormatInt(d.Size, 10) + " " + string(d.MediaType), Tree: tree,
	})
}

// recall is the inverse of remember. Docker's media type of a layer becomes the equal OCI type.
func (j *job) recall(l packing) (d v1.Descriptor, ok bool) {
	p, ok := j.store.Part(packedKey(l.key))
	if !ok {
		return d, false
	}
	size, media, _ := strings.Cut(p.Version, " ")
	var err error
	if d.Digest, err = v1.NewHash(p.Name); err != nil {
		return d, false
	}
	if d.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
		return d, false
	}
	if d.MediaType = types.MediaType(media); d.MediaType == types.DockerLayer {
		d.MediaType = types.OCILayer
	}
	if l.media == mediaPart {
		return d, d.MediaType == mediaPart
	}
	return d, slices.Contains([]types.MediaType{types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer}, d.MediaType)
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
	if out.artifact {
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
	if out.artifact {
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
	return &packedLayer{Descriptor: d, path: path}, err
}
