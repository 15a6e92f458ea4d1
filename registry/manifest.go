package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The media types with a known structure. Manifests of other types are kept as well.
const (
	typeOCIImage    = "application/vnd.oci.image.manifest.v1+json"
	typeOCIIndex    = "application/vnd.oci.image.index.v1+json"
	typeDockerImage = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerList  = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// manifestHead is the size of the header of a manifest's file: media type, spaces and a newline.
// The pushed bytes follow.
const manifestHead = 256

// descriptor is the part of an image-spec descriptor that the registry uses.
type descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// manifest is the part of a manifest that the registry reads. Its lists tell images from
// indexes.
type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *descriptor       `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Blobs         []descriptor      `json:"blobs"` // of OCI's former artifact manifest
	Manifests     []descriptor      `json:"manifests"`
	Subject       *descriptor       `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
}

// parseManifest parses a manifest and its Content-Type, "" for none. MediaType of the result is
// the type to store and serve the manifest under.
func parseManifest(contentType string, data []byte) (*manifest, error) {
	m := new(manifest)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("not a manifest: %w", err)
	}
	contentType = mediaType(contentType)
	if contentType != "" && m.MediaType != "" && contentType != mediaType(m.MediaType) {
		return nil, fmt.Errorf("the mediaType %.100q differs from the Content-Type %.100q", m.MediaType, contentType)
	}
	m.MediaType = cmp.Or(contentType, mediaType(m.MediaType))
	if err := m.checkKind(); err != nil {
		return nil, err
	}
	if err := m.checkDescriptors(); err != nil {
		return nil, err
	}
	if m.Subject != nil {
		if _, err := parseDigest(m.Subject.Digest); err != nil {
			return nil, fmt.Errorf("the subject %.200q %w", m.Subject.Digest, err)
		}
	}
	return m, nil
}

func (m *manifest) checkDescriptors() error {
	for _, d := range m.descriptors() {
		if !digestSyntax.MatchString(d.Digest) || d.Size < 0 {
			return fmt.Errorf("invalid descriptor %.100q with size %d", d.Digest, d.Size)
		}
	}
	return nil
}

// checkKind checks that the content fits the media type, which it sets if empty.
func (m *manifest) checkKind() error {
	isIndex, isImage := m.Manifests != nil, m.Config != nil || m.Layers != nil
	if isIndex && isImage {
		return errors.New("both manifests and layers: neither an image nor an index")
	}
	if m.MediaType == "" {
		m.MediaType = typeOCIImage
		if isIndex {
			m.MediaType = typeOCIIndex
		}
	}
	switch m.MediaType {
	case typeOCIImage, typeDockerImage:
		return m.checkVersion(!isIndex && m.Config != nil)
	case typeOCIIndex, typeDockerList:
		return m.checkVersion(!isImage)
	}
	return m.checkForeign()
}

// checkVersion checks the schema of OCI's and Docker's types. fits says that the content is of the
// type.
func (m *manifest) checkVersion(fits bool) error {
	if m.SchemaVersion != 2 {
		return fmt.Errorf("schemaVersion %d is not supported: use version 2", m.SchemaVersion)
	}
	if !fits {
		return fmt.Errorf("the content does not fit the media type %s", m.MediaType)
	}
	return nil
}

// checkForeign checks a type that is neither OCI's nor Docker's.
func (m *manifest) checkForeign() error {
	if !strings.HasSuffix(m.MediaType, "+json") || len(m.MediaType) >= manifestHead || strings.Trim(m.MediaType, mediaTypeChars) != "" {
		return fmt.Errorf("%.100q is not a media type of manifests", m.MediaType)
	}
	if m.SchemaVersion == 1 {
		return errors.New("schema version 1 is not supported: push with a client for version 2")
	}
	return nil
}

const mediaTypeChars = "abcdefghijklmnopqrstuvwxyz0123456789/.+-_!#$&^"

// blobs returns the blobs that the manifest refers to.
func (m *manifest) blobs() []descriptor {
	all := slices.Concat(m.Layers, m.Blobs)
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	return all
}

// descriptors returns all references except the subject.
func (m *manifest) descriptors() []descriptor { return append(m.blobs(), m.Manifests...) }

// elsewhere reports whether the content need not be pushed: nondistributable layers, and content
// with URLs of its own.
func (d descriptor) elsewhere() bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, ".nondistributable.") || strings.Contains(d.MediaType, ".foreign.")
}

// artifactType returns the type for the list of referrers of the subject.
func (m *manifest) artifactType() string {
	if m.ArtifactType == "" && m.Config != nil {
		return m.Config.MediaType
	}
	return m.ArtifactType
}

// mediaType returns a Content-Type without its parameters, in lower case.
func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// MaxManifestBytes is the size of the largest accepted manifest: the minimum that the
// distribution-spec requires.
const MaxManifestBytes = 4 << 20
