// Package store is FRE's local registry: file contents by key, trees of files
// described by manifests, images linked out of them, and the metadata
// database.
//
// Words: an *object* is one file's bytes and metadata in objects/, hard-linked
// into every image that holds it; a *tree* is a list of entries (a base
// environment, one package version, a function's code), identified by the
// digest of its canonical encoding; an *image* is a list of parts, each a tree
// placed under a prefix, plus a configuration the store does not interpret,
// and on disk a read-only directory of hard links. See ARCHITECTURE.md.
//
// Everything a list call needs is held in memory; the disk is read at Open and
// written on change. State on disk is whole or absent: build aside, one
// syncfs, rename, then the database commit. What no image refers to is swept
// when an image is removed and now and then: a build takes a lease ([Store.Hold])
// until its PutImage.
package store

import (
	"encoding/json"
	"time"
)

// Digest is "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

// Kind says what an [Entry] is.
type Kind string

// The kinds of entries a tree holds. Devices, sockets and fifos are refused.
const (
	KindFile    Kind = "file"
	KindDir     Kind = "dir"
	KindSymlink Kind = "symlink"

	// KindWhiteout is in the tree of a layer only: what parts before it hold at
	// this path is not in the image.
	KindWhiteout Kind = "whiteout"
)

// Entry is one path of a [Tree].
type Entry struct {
	Path   string `json:"path"` // relative, slash-separated, clean; never "." or containing ".."
	Kind   Kind   `json:"kind"`
	Mode   uint32 `json:"mode,omitempty"`   // permission bits 0o777; set-id and sticky bits are stripped on entry
	MTime  int64  `json:"mtime,omitempty"`  // seconds since 1970
	Size   int64  `json:"size,omitempty"`   // bytes, files only
	Digest Digest `json:"digest,omitempty"` // of the content, files only
	Link   string `json:"link,omitempty"`   // target, symlinks only
	UID    uint32 `json:"uid,omitempty"`    // owner inside a sandbox, MaxID at most; functions see any but root's own as nobody's
	GID    uint32 `json:"gid,omitempty"`

	// Names are bytes, and JSON is text: Path and Link in base64 where they are not UTF-8.
	// They are empty but in a manifest.
	RawPath string `json:"raw_path,omitempty"`
	RawLink string `json:"raw_link,omitempty"`

	// Aside: a file that is kept as long as the tree and is in no image's root.
	Aside bool `json:"aside,omitempty"`

	// Directories in the tree of a layer only.
	Opaque  bool `json:"opaque,omitempty"`  // what parts before it hold below this directory is not in the image
	Implied bool `json:"implied,omitempty"` // the layer does not name it: a directory that is there stays as it is
}

// MaxID is the highest user or group id of a file: sandboxes have no others.
const MaxID = 65535

// Tree lists entries sorted by Path; every file's parents are listed.
type Tree struct {
	Entries []Entry `json:"entries"`
}

// Part is a tree placed in an image.
type Part struct {
	Kind    string `json:"kind"` // "base", "pip", "npm", "bootstrap", "code"
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Tree    Digest `json:"tree"`
	Prefix  string `json:"prefix,omitempty"` // directory below the root, "" for the root itself

	// Hash is that of what the tree was unpacked from, by which it was verified when it
	// was fetched: "sha256:…", "sha512:…" of a package's file, "git:…" for a commit's id.
	// It is "" where nobody knows, and opaque here.
	Hash string `json:"hash,omitempty"`

	// Diff makes the part a layer, which replaces and removes what parts before it
	// hold, as the OCI image-spec (layer.md) says. It is the digest of the
	// uncompressed archive the tree was made of.
	Diff Digest `json:"diff,omitempty"`
}

// Manifest is what an image's digest is computed over. Later parts win where
// two hold the same path, except that a directory never replaces a file unless
// its part is a layer.
type Manifest struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Parts   []Part          `json:"parts"`
	Config  json.RawMessage `json:"config,omitempty"` // image.Config; opaque here
}

// Image is a committed manifest with what lists show of it. Name and Version
// are those of Names[0], empty where there is none.
type Image struct {
	Manifest
	Names   []string  `json:"names"`             // "name:version", sorted, but Built first where the image still has it
	Built   string    `json:"built"`             // "name:version" of its manifest, which another image may have taken over
	Remotes []string  `json:"remotes,omitempty"` // "name@sha256:…", sorted: as registries know it from which it came, or to which it went
	Foreign bool      `json:"foreign,omitempty"` // its parts were made elsewhere, by nobody whom this engine trusts ([Store.TakeImage])
	Digest  Digest    `json:"digest"`
	Created time.Time `json:"created"`
	Size    int64     `json:"size"`  // bytes of all files
	Files   int       `json:"files"` // number of files
}

// Function is a deployed name. Spec is engine.Spec, opaque here.
type Function struct {
	Name     string          `json:"name"`
	Image    Digest          `json:"image"`
	Images   []Digest        `json:"images,omitempty"` // others that stay for it, sorted
	Spec     json.RawMessage `json:"spec"`
	Deployed time.Time       `json:"deployed"`
}

// Tenant owns functions, one /work and one user namespace.
type Tenant struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"` // 1, 2, …: never reused; selects the range of host user ids
}
