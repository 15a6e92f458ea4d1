package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/sbom"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/store"
)

// cosign keeps signatures as the layers of an image, under a tag made from the digest (its
// specs/SIGNATURE_SPEC.md).
const (
	mediaSimpleSigning  = "application/vnd.dev.cosign.simplesigning.v1+json"
	mediaEmpty          = "application/vnd.oci.empty.v1+json" // image-spec, "Guidance for an Empty Descriptor"
	annotationSignature = "dev.cosignproject.cosign/signature"
)

// maxSignatures bounds the signatures of an image that verify checks.
const maxSignatures = 32

func signatureTag(r name.Repository, d string) name.Tag {
	return r.Tag(strings.Replace(d, ":", "-", 1) + ".sig")
}

// verify looks for a signature that policy accepts over any of the digests: the index's and the
// manifest's. It reports whether a signature was found; if the policy requires none, it returns
// false. Errors: ErrSignature, ErrRegistry.
func (o RegistryOptions) verify(ctx context.Context, j *job, policy signature.Policy, puller *remote.Puller, r name.Reference, digests ...string) (bool, error) {
	repository := signature.Repository(r.Context().Name())
	rule := policy.For(repository)
	switch rule.Accept {
	case signature.AcceptAny:
		return false, nil
	case signature.AcceptNone:
		return false, fmt.Errorf("%w: the engine's configuration refuses all images from %s (registry.signatures, %q)", ErrSignature, repository, rule.Repository)
	case signature.AcceptSigned:
	}
	if rule.AnyIdentity {
		repository = ""
	}
	var seen []error
	for _, d := range slices.Compact(digests) {
		key, err := o.signed(ctx, puller, r.Context(), d, rule.Keys, repository)
		if err == nil {
			j.event(image.Progress{Step: "verify", Name: r.Name(), Message: "signed by " + key.Name})
			return true, nil
		}
		if !errors.Is(err, ErrSignature) {
			return false, err
		}
		seen = append(seen, err)
	}
	return false, fmt.Errorf("%w; the engine's configuration demands a valid signature (registry.signatures, %q): the image was not kept", errors.Join(seen...), rule.Repository)
}

// signed looks for a signature over a digest: cosign's signatures under their tag, and bundles
// among the referrers.
func (o RegistryOptions) signed(ctx context.Context, puller *remote.Puller, repo name.Repository, digest string, keys []signature.PublicKey, repository string) (signature.PublicKey, error) {
	key, refused, err := o.signedByTag(ctx, puller, repo, digest, keys, repository)
	switch {
	case err != nil:
		return key, err
	case refused == nil:
		return key, nil
	case repository != "": // a bundle names no repository, and counts only if the policy accepts any repository
		return key, refused
	}
	return o.signedByBundle(ctx, puller, repo, digest, keys, refused)
}

// signedByTag looks for a signature under the digest's tag. refused is the reason why no signature
// is accepted.
func (o RegistryOptions) signedByTag(ctx context.Context, puller *remote.Puller, repo name.Repository, digest string, keys []signature.PublicKey, repository string) (key signature.PublicKey, refused, err error) {
	refused = fmt.Errorf("%w: %s has none", ErrSignature, digest)
	m, err := o.small(ctx, puller, signatureTag(repo, digest))
	if isNotFound(err) {
		return key, refused, nil
	}
	if err != nil {
		return key, nil, registryError(repo, err)
	}
	for i, l := range m.Layers {
		sig, ok := l.Annotations[annotationSignature]
		if !ok || i >= maxSignatures || string(l.MediaType) != mediaSimpleSigning {
			continue
		}
		b, err := o.smallBlob(ctx, puller, repo, l)
		if err != nil {
			return key, nil, err
		}
		found, err := signature.Verify(keys, b, sig, repository, digest)
		if err == nil {
			return found, nil, nil
		}
		refused = fmt.Errorf("%s: %w", digest, err)
	}
	return key, refused, nil
}

// signedByBundle looks for a signature in the bundles among the referrers. Without a bundle the
// error is refused.
func (o RegistryOptions) signedByBundle(ctx context.Context, puller *remote.Puller, repo name.Repository, digest string, keys []signature.PublicKey, refused error) (none signature.PublicKey, err error) {
	index, err := remoteReferrers(ctx, o, repo.Digest(digest))
	if err != nil {
		return none, registryError(repo, err)
	}
	looked := 0
	for _, d := range index.Manifests {
		// Under the fallback tag cosign's bundles have the type of their configuration.
		if d.ArtifactType != signature.BundleType && d.ArtifactType != mediaEmpty || looked >= maxSignatures {
			continue
		}
		looked++
		b, err := o.bundle(ctx, puller, repo, d)
		if err != nil {
			return none, err
		}
		if b == nil {
			continue
		}
		key, err := signature.VerifyBundle(keys, b, digest)
		if err == nil {
			return key, nil
		}
		refused = fmt.Errorf("%s: %w", digest, err)
	}
	return none, refused
}

// bundle gets a bundle; nil if the manifest holds something else.
func (o RegistryOptions) bundle(ctx context.Context, puller *remote.Puller, repo name.Repository, d v1.Descriptor) ([]byte, error) {
	m, err := o.small(ctx, puller, repo.Digest(d.Digest.String()))
	if err != nil {
		return nil, registryError(repo, err)
	}
	if m.ArtifactType != signature.BundleType || len(m.Layers) != 1 {
		return nil, nil
	}
	return o.smallBlob(ctx, puller, repo, m.Layers[0])
}

// small gets a manifest.
func (o RegistryOptions) small(ctx context.Context, puller *remote.Puller, r name.Reference) (m *v1.Manifest, err error) {
	err = o.again(ctx, func() error {
		d, err := puller.Get(ctx, r)
		if err != nil {
			return err
		}
		m, err = v1.ParseManifest(bytes.NewReader(d.Manifest))
		return err
	})
	return m, err
}

// smallBlob gets a small blob whole. A blob inside its descriptor needs no request.
func (o RegistryOptions) smallBlob(ctx context.Context, puller *remote.Puller, repo name.Repository, d v1.Descriptor) (b []byte, err error) {
	if d.Size < 0 || d.Size > signature.MaxBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrSignature, d.Digest, d.Size)
	}
	err = o.again(ctx, func() error {
		l, err := puller.Layer(ctx, repo.Digest(d.Digest.String()))
		if err != nil {
			return err
		}
		r, err := l.Compressed() // checked against its digest
		if err != nil {
			return err
		}
		defer r.Close()
		b, err = io.ReadAll(io.LimitReader(r, signature.MaxBytes+1))
		return err
	})
	if err != nil {
		return nil, registryError(repo, err)
	}
	if digestOf(b) != store.Digest(d.Digest.String()) {
		return nil, fmt.Errorf("%w: %s has another content", ErrSignature, d.Digest)
	}
	return b, nil
}

// remoteReferrers lists the referrers of a digest, by the API or the fallback tag.
func remoteReferrers(ctx context.Context, o RegistryOptions, d name.Digest) (*v1.IndexManifest, error) {
	index, err := remote.Referrers(d, o.options(ctx, d)...)
	if err != nil {
		return nil, err
	}
	return index.IndexManifest()
}

func isNotFound(err error) bool {
	var said *transport.Error
	return errors.As(err, &said) && said.StatusCode == http.StatusNotFound
}

// Attach stores a signature of the image "name@sha256:…" beside it, in base64, over payload
// ([signature.Payload]). Earlier signatures stay. Attach cannot check the signature, because it has
// no key. Errors: ErrReference, ErrRegistry.
func Attach(ctx context.Context, ref string, payload []byte, sig string, o RegistryOptions) error {
	if err := attach(ctx, ref, payload, sig, o); err != nil {
		return fmt.Errorf("sign %s: %w", ref, reason(ctx, err))
	}
	return nil
}

func attach(ctx context.Context, ref string, payload []byte, sig string, o RegistryOptions) error {
	if len(payload) > signature.MaxBytes || len(sig) > signature.MaxBytes {
		return fmt.Errorf("%w: too large", ErrSignature)
	}
	r, options, err := o.open(ctx, ref)
	if err != nil {
		return err
	}
	d, ok := r.(name.Digest)
	if !ok {
		return fmt.Errorf("%w: %q: name the image by digest: name@sha256:…", ErrReference, ref)
	}
	tag := signatureTag(d.Context(), d.DigestStr())
	puller, err := remote.NewPuller(options...)
	if err != nil {
		return err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	if m.Layers, err = o.signatures(ctx, puller, tag); err != nil {
		return err
	}
	l, err := descriptor(mediaSimpleSigning, digestOf(payload), int64(len(payload)))
	if err != nil {
		return err
	}
	l.Annotations = map[string]string{annotationSignature: sig}
	if slices.ContainsFunc(m.Layers, func(old v1.Descriptor) bool {
		return old.Digest == l.Digest && old.Annotations[annotationSignature] == sig
	}) {
		return nil
	}
	m.Layers = append(m.Layers, l)
	config, err := emptyConfig(m.Layers)
	if err != nil {
		return err
	}
	return o.write(ctx, tag, m, types.OCIConfigJSON, config, map[string][]byte{l.Digest.String(): payload})
}

// signatures returns the signatures under a tag; none if the registry lacks the tag.
func (o RegistryOptions) signatures(ctx context.Context, puller *remote.Puller, tag name.Tag) ([]v1.Descriptor, error) {
	m, err := o.small(ctx, puller, tag)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, registryError(tag.Context(), err)
	}
	return m.Layers, nil
}

// emptyConfig returns a configuration as cosign's: an empty description of the layers.
func emptyConfig(layers []v1.Descriptor) ([]byte, error) {
	var f v1.ConfigFile
	f.RootFS.Type = "layers"
	for _, l := range layers {
		f.RootFS.DiffIDs = append(f.RootFS.DiffIDs, l.Digest)
		f.History = append(f.History, v1.History{})
	}
	return json.Marshal(f)
}

// write sends a small image. blobs holds the new blobs.
func (o RegistryOptions) write(ctx context.Context, r name.Reference, m v1.Manifest, media types.MediaType, config []byte, blobs map[string][]byte) error {
	var err error
	if m.Config, err = descriptor(media, digestOf(config), int64(len(config))); err != nil {
		return err
	}
	p := &pushable{config: config, layers: map[v1.Hash]*packedLayer{}}
	for _, l := range m.Layers {
		packed := &packedLayer{Descriptor: l}
		if b := blobs[l.Digest.String()]; b != nil {
			packed.content = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
		}
		p.layers[l.Digest] = packed
	}
	if p.manifest, err = json.Marshal(m); err != nil {
		return err
	}
	img, err := partial.CompressedToImage(p)
	if err != nil {
		return err
	}
	if err := remote.Write(r, img, o.pushing(ctx, r)...); err != nil {
		return registryError(r.Context(), err)
	}
	return nil
}

// refer sends a manifest with the blobs, which are in memory, as a referrer of subject. Registries
// without the referrers API list it under the fallback tag (OCI distribution-spec, "Referrers tag
// schema").
func (o RegistryOptions) refer(ctx context.Context, repo name.Repository, m v1.Manifest, subject v1.Descriptor, blobs map[string][]byte) error {
	m.Subject = &subject
	config := []byte("{}")
	var err error
	if m.Config, err = descriptor(mediaEmpty, digestOf(config), int64(len(config))); err != nil {
		return err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return o.write(ctx, repo.Digest(string(digestOf(b))), m, mediaEmpty, config, blobs)
}

// attachSBOM stores the image's bill of materials beside it.
func (o RegistryOptions) attachSBOM(ctx context.Context, s *store.Store, img *store.Image, repo name.Repository, at Remote) error {
	doc, err := sbom.CycloneDX(s, img, o.Sites)
	if err != nil {
		return err
	}
	subject, err := descriptor(types.OCIManifestSchema1, at.Digest, at.Size)
	if err != nil {
		return err
	}
	layer, err := descriptor(sbom.MediaType, digestOf(doc), int64(len(doc)))
	if err != nil {
		return err
	}
	layer.Annotations = map[string]string{annotationTitle: "sbom.cdx.json"}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: sbom.MediaType, Layers: []v1.Descriptor{layer}}
	return o.refer(ctx, repo, m, subject, map[string][]byte{layer.Digest.String(): doc})
}
