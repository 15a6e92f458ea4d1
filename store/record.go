package store

import (
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// Part is a tree placed in an image.
type Part struct {
	Kind    string `json:"kind"` // "base", "pip", "npm", "bootstrap", "code"
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Tree    Digest `json:"tree"`
	Prefix  string `json:"prefix,omitempty"` // directory below the root, "" for the root itself

	// Hash identifies the source of the tree, against which the download was verified:
	// "sha256:…" or "sha512:…" of a package's file, "git:…" for a commit. It is "" if unknown.
	// The store does not interpret it.
	Hash string `json:"hash,omitempty"`

	// Diff, if set, makes the part a layer: it replaces and removes files of earlier parts as
	// the OCI image-spec (layer.md) says. Diff is the digest of the uncompressed archive of the
	// layer.
	Diff Digest `json:"diff,omitempty"`
}

// Manifest is the input of an image's digest. If two parts hold the same path the later part
// wins. Two exceptions hold unless the later part is a layer: of two directories the first part's
// entry stays, and a directory against a file or symlink is an ErrConflict.
type Manifest struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Parts   []Part          `json:"parts"`
	Config  json.RawMessage `json:"config,omitempty"` // image.Config; opaque here
}

// canonical checks the name and returns the manifest with Config in its canonical form, and its
// bytes.
func (m *Manifest) canonical() (c Manifest, b []byte, err error) {
	if m.Name != "" || m.Version != "" {
		if err := errors.Join(checkName("image name", m.Name), checkName("image version", m.Version)); err != nil {
			return c, nil, err
		}
	}
	if b, err = json.Marshal(m); err != nil {
		return c, nil, err
	}
	// Decode into a new Manifest: json would write Config into the caller's bytes.
	err = json.Unmarshal(b, &c)
	return c, b, err
}

// Image is a committed manifest with the figures that lists show. Name and Version are those of
// Names[0], or empty if the image has no name.
type Image struct {
	Manifest
	Names   []string  `json:"names"`             // "name:version", sorted, but Built first, if still a name
	Built   string    `json:"built"`             // "name:version" of the manifest; maybe another image's name now
	Remotes []string  `json:"remotes,omitempty"` // "name@sha256:…", sorted: at registries, after pull or push
	Foreign bool      `json:"foreign,omitempty"` // made by an untrusted maker ([Store.TakeImage])
	Digest  Digest    `json:"digest"`
	Created time.Time `json:"created"`
	Size    int64     `json:"size"`  // bytes of all files
	Files   int       `json:"files"` // number of files
}

// setNames sets the names of the image: sorted, but Built first.
func (img *Image) setNames(names []string) {
	slices.Sort(names)
	if i, own := slices.BinarySearch(names, img.Built); own {
		copy(names[1:i+1], names[:i])
		names[0] = img.Built
	}
	img.Names, img.Name, img.Version = nil, "", ""
	if len(names) > 0 {
		k := splitName(names[0])
		img.Names, img.Name, img.Version = names, k.name, k.version
	}
}

// count sets Files to the number of files in the image's root, and Size to their bytes.
func (img *Image) count(entries []Entry) {
	for i := range entries {
		if entries[i].Kind == KindFile {
			img.Files++
		}
	}
	img.Size = SizeOf(entries)
}

// Function is a deployed name. Spec is engine.Spec, opaque to the store.
type Function struct {
	Name     string          `json:"name"`
	Image    Digest          `json:"image"`
	Images   []Digest        `json:"images,omitempty"` // further images to keep for the function, sorted
	Spec     json.RawMessage `json:"spec"`
	Deployed time.Time       `json:"deployed"`
}

// Tenant owns functions, one /work and one user namespace.
type Tenant struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"` // 1, 2, …: never reused; selects the range of host user ids
}
