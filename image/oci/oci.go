// Package oci moves images between the store and the outside: docker archives, OCI layouts, plain
// archives and registries become images of the store, and the store's images become archives and
// registry images again.
//
// A layer becomes one tree of the store, whiteouts included (store.Part.Diff). The store finds it
// by the digest of the uncompressed archive, its *diff id*: an image that shares a layer neither
// downloads nor unpacks it again. Beside its files a tree keeps the layer's *recipe*: the bytes of
// the archive around the files. With the recipe, saving and pushing give the same bytes and the
// image keeps its id. The parts of an image that FRE built become layers with the same bytes each
// time.
//
//	archive, registry → source → layers in parallel: decompress → count, hash → tar → store.Writer
//	                             configuration    → image.Config, and its bytes beside the layers
//
// Set-id bits, extended attributes, devices and fifos stay out of the tree, with a warning; the
// recipe keeps them. Paths and hard links that lead out of the layer are refused with [ErrLayer].
// Of two entries of a path the last counts, and links are followed inside the layer. A failed call
// leaves at most complete layers, and the next sweep removes them.
package oci

import (
	"time"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/signature"
)

// Errors that callers distinguish; each is wrapped with the object and the reason.
var (
	// ErrArchive: the input is no archive of images, or contradicts itself.
	ErrArchive = failure.New(failure.BadRequest, "not a sound image archive", "")
	// ErrLayer: a layer holds an entry that no image may hold.
	ErrLayer = failure.New(failure.BadRequest, "layer refused", "")
	// ErrLimit: more bytes, entries or compression than [Limits] allow.
	ErrLimit = failure.New(failure.TooLarge, "image is over the limit", "take a smaller image")
	// ErrPlatform: the image is made for another system or processor.
	ErrPlatform = failure.New(failure.WrongPlatform, "image is for another platform", "")
	// ErrReference: not a name of an image in a registry.
	ErrReference = failure.New(failure.BadRequest, "malformed image reference", "")
	// ErrChange: not a Dockerfile instruction that changes a configuration.
	ErrChange = failure.New(failure.BadRequest, "malformed change", "")
	// ErrSignature: the image lacks the signature that the policy requires.
	ErrSignature = signature.ErrSignature
	// ErrRegistry: the registry refused or cannot be reached.
	ErrRegistry = failure.New(failure.Registry, "registry", "")
)

// Limits bound the data that one call may unpack. Zero values mean the defaults.
type Limits struct {
	Bytes   int64 // of all files of an image, unpacked; default 32 GiB
	Entries int64 // files, directories and links of an image, implied directories too; default 2,000,000
	Names   int64 // bytes of paths and link targets, which stay in memory; default 512 MiB
	Ratio   int64 // unpacked bytes for each packed byte, beyond the first Free of a layer; default 200
	Free    int64 // bytes; default 1 GiB
}

func (l *Limits) setDefaults() {
	if l.Bytes == 0 {
		l.Bytes = 32 << 30
	}
	if l.Entries == 0 {
		l.Entries = 2_000_000
	}
	if l.Names == 0 {
		l.Names = 512 << 20
	}
	if l.Ratio == 0 {
		l.Ratio = 200
	}
	if l.Free == 0 {
		l.Free = 1 << 30
	}
}

// Options adjust all calls.
type Options struct {
	Limits Limits
	// Nameless: Load and Pull give the images no names.
	Nameless bool
	// Report receives progress, from one goroutine at a time; may be nil. Steps: "read", "layer",
	// "warning", "link", "push", "verify".
	Report func(image.Progress)
}

// maxJSON bounds each manifest and configuration, as registries do.
const maxJSON = 8 << 20

// maxLayers is far above the limits of builders (docker's overlay2: 128).
const maxLayers = 1000

// atOnce is the number of layers that are unpacked, or packed, in parallel. Each keeps about one
// CPU and one connection busy.
const atOnce = 4

// Step is one line of an image's history.
type Step struct {
	Created   time.Time
	CreatedBy string
	Author    string
	Comment   string
	Size      int64 // bytes of the files its layer holds
}
