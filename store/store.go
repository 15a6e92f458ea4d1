// Package store is FRE's content store. The package keeps file contents by
// key, trees of files described by manifests, images linked from trees, and the metadata database.
//
// An *object* is one file's bytes and metadata in objects/, hard-linked into every image with
// the file. A *tree* is a list of entries (a base environment, one package version, a function's
// code), identified by the digest of its canonical encoding. An *image* is a list of parts, each
// a tree under a prefix, plus a configuration opaque to the store. On disk an image is a
// read-only directory of hard links. See docs/state.md.
//
// Memory holds all data that a list call needs. The store reads the disk at Open and writes on
// change. State on disk is whole or absent: build aside, one syncfs, rename, then the database
// commit. Content without an image is swept when an image is removed and at each [Store.Sweep].
// A build takes a lease ([Store.Hold]) until its PutImage.
package store

import (
	"encoding/json"
	"time"
)

// Digest is "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

// Kind is the type of an [Entry].
type Kind string

// The kinds of entries in a tree. Devices, sockets and fifos are refused.
const (
	KindFile    Kind = "file"
	KindDir     Kind = "dir"
	KindSymlink Kind = "symlink"

	// KindWhiteout occurs only in the tree of a layer: the image omits the path, even if earlier
	// parts hold it.
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
	UID    uint32 `json:"uid,omitempty"`    // owner inside a sandbox, at most MaxID; functions see all but root as nobody
	GID    uint32 `json:"gid,omitempty"`

	// RawPath and RawLink are set in manifests only. A name that is not UTF-8 cannot stand in
	// JSON as text, so they hold Path and Link in base64.
	RawPath string `json:"raw_path,omitempty"`
	RawLink string `json:"raw_link,omitempty"`

	// Aside marks a file that lives as long as the tree and is in no image's root.
	Aside bool `json:"aside,omitempty"`

	// Directories in the tree of a layer only.
	Opaque  bool `json:"opaque,omitempty"`  // the image omits all that earlier parts hold below this directory
	Implied bool `json:"implied,omitempty"` // the layer does not name this directory: an earlier directory stays
}

// MaxID is the highest user or group id of a file. Sandboxes map ids up to MaxID only.
const MaxID = 65535

// Tree lists entries sorted by Path. It lists the parent directories of every file.
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
