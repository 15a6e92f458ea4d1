package oci

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/store"
)

// packing describes how to make a layer's archive.
type packing struct {
	diff  store.Digest // of a layer
	key   string       // names the archive's bytes: diff, or partKey
	title string       // for people
	media types.MediaType
	tree  store.Digest // the packed tree; "" for an archive without a tree of the store
	size  int64        // of the archive; an estimate for a part
	write func(context.Context, io.Writer) error
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
	content func() (io.ReadCloser, error) // nil if the registry has the layer
}

// Digest implements partial.CompressedLayer.
func (l *packedLayer) Digest() (v1.Hash, error) { return l.Descriptor.Digest, nil }

// Size implements partial.CompressedLayer: bytes.
func (l *packedLayer) Size() (int64, error) { return l.Descriptor.Size, nil }

// MediaType implements partial.CompressedLayer.
func (l *packedLayer) MediaType() (types.MediaType, error) { return l.Descriptor.MediaType, nil }

// Compressed implements partial.CompressedLayer.
func (l *packedLayer) Compressed() (io.ReadCloser, error) {
	if l.content == nil {
		return nil, fmt.Errorf("%w: lost layer %s during the push: push again", ErrRegistry, l.Descriptor.Digest)
	}
	return l.content()
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

func descriptor(t types.MediaType, d store.Digest, size int64) (v1.Descriptor, error) {
	h, err := v1.NewHash(string(d))
	return v1.Descriptor{MediaType: t, Digest: h, Size: size}, err
}
