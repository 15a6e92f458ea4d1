package oci

import v1 "github.com/google/go-containerregistry/pkg/v1"

// An image that FRE built is stored at a registry as an OCI artifact (OCI image-spec, manifest.md,
// "Guidelines for Artifact Usage"). The layers are the image's parts:
//
//	manifest   artifactType mediaImage
//	  config   mediaManifest: the store's manifest, byte for byte: its digest is the image's digest
//	  layers   mediaPart: one for each part of the image, in order (part.go)
//
// So the digest of the configuration fixes the trees, and their digests fix the files. The
// annotations serve people, oras and the check of the platform.
const (
	mediaImage    = "application/vnd.fre.image.v1+json"
	mediaManifest = "application/vnd.fre.manifest.v1+json"
	mediaPart     = "application/vnd.fre.part.v1.tar+zstd"

	annotationPlatform = "fre.platform" // "linux/amd64"
	annotationTitle    = "org.opencontainers.image.title"
)

// Two annotations name an image of a layout: the OCI image-spec's, often a version only, and
// containerd's.
const (
	annotationRef  = "org.opencontainers.image.ref.name"
	annotationName = "io.containerd.image.name"
)

func blobPath(d v1.Hash) string { return "blobs/" + d.Algorithm + "/" + d.Hex }

// dockerImage is an entry of manifest.json (moby, image/tarexport).
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}
