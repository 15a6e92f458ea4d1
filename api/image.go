package api

import (
	"encoding/json"
	"time"
)

// Image is a committed image as shown in lists. Name and Version come from the first of Names,
// and are empty if Names is empty.
type Image struct {
	Digest  string    `json:"digest"` // "sha256:…"
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Names   []string  `json:"names,omitempty"` // every "name:version"
	Base    string    `json:"base,omitempty"`
	Kind    string    `json:"kind,omitempty"` // "base", or "tools" for an image of build tools; empty for a function's image
	Created time.Time `json:"created"`
	Size    int64     `json:"size"`  // bytes of all files
	Files   int       `json:"files"` // number of files
}

// ImageChanges holds the changes of the image list since a generation.
type ImageChanges struct {
	Generation uint64   `json:"generation"` // value of since for the next request to the images or events route
	Complete   bool     `json:"complete"`   // Changed is the full list, because the engine no longer remembers the changes
	Changed    []Image  `json:"changed"`    // new images, and images with changed names
	Removed    []string `json:"removed"`    // digests
}

// Part is a tree placed in an image.
type Part struct {
	Kind    string `json:"kind"` // "base", "pip", "npm", "bootstrap", "code"
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Tree    string `json:"tree"`
	Prefix  string `json:"prefix,omitempty"` // directory below the root
	Hash    string `json:"hash,omitempty"`   // hash that verified the source: "sha256:…" or "sha512:…" of a package file, "git:…" of a commit
}

// ImageDetails is an image with its parts. Config is the configuration in the image's manifest.
type ImageDetails struct {
	Image
	Parts  []Part          `json:"parts"`
	Config json.RawMessage `json:"config,omitempty"`
}

// LeftOut lists the files absent from an image, from the member left_out of the image's
// configuration: files removed by slimming the base environment. Functions on the base lack the
// same files.
type LeftOut struct {
	Packages     []string       `json:"packages,omitempty"`      // Debian packages needed only to install other packages
	PackageBytes int64          `json:"package_bytes,omitempty"` // size of Packages when installed
	Files        []LeftOutFiles `json:"files,omitempty"`         // files left out of installed packages
	Unopened     []LeftOutPart  `json:"unopened,omitempty"`      // for a slimmed image, by part: files that the function did not open

	// Apart maps the import name of a part of the language to the Debian package that provides
	// it. A template adds the package with packages.deb.
	Apart map[string]string `json:"apart,omitempty"`
}

// LeftOutPart counts the files left out of one part of a slimmed image.
type LeftOutPart struct {
	Part  string `json:"part"` // kind, name and version
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// SlimRequest asks for an image of only the files that a function has opened so far. The
// function must be temporary and deployed with Trace.
type SlimRequest struct {
	Keep   []string `json:"keep,omitempty"`    // path globs of files to keep, in addition to the template's
	DryRun bool     `json:"dry_run,omitempty"` // only report the files that slimming would remove
}

// Slimmed is the result of a SlimRequest.
type Slimmed struct {
	Image  *Image     `json:"image,omitempty"` // without a name; nil after a dry run
	Before FileTotals `json:"before"`
	After  FileTotals `json:"after"`
	Gone   []GoneFile `json:"gone"` // by path
}

// FileTotals counts the files of an image's root.
type FileTotals struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// GoneFile is a file or a link absent from a slimmed image.
type GoneFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// LeftOutFiles counts the files left out by one pattern.
type LeftOutFiles struct {
	Pattern string   `json:"pattern"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Names   []string `json:"names,omitempty"` // names that programs import or run: modules, programs, Java packages
}

// LeftOut returns the member left_out of the image's configuration, or nil if absent.
func (d ImageDetails) LeftOut() (*LeftOut, error) {
	var c struct {
		LeftOut *LeftOut `json:"left_out"`
	}
	if len(d.Config) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(d.Config, &c)
	return c.LeftOut, err
}

// HistoryStep is one step in the making of an image.
type HistoryStep struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
	Author    string    `json:"author,omitempty"`
	Comment   string    `json:"comment,omitempty"`
	Size      int64     `json:"size"` // bytes of the files added
}

// TagRequest adds a name to an image.
type TagRequest struct {
	Name string `json:"name"` // "name:version", or "name" for version "latest"
}

// RemovedImage reports the result of removing an image: the image before the removal, and the
// names removed.
type RemovedImage struct {
	Image
	Untagged []string `json:"untagged,omitempty"`
	Deleted  bool     `json:"deleted"` // the engine removed the image too
}

// PruneRequest selects images to remove. Without a rule, the engine removes images without a
// name. The engine never removes images in use. For base environments and build tools, only
// UnusedNanos and MaxBytes apply.
type PruneRequest struct {
	All         bool       `json:"all,omitempty"`       // rule: every image
	UnusedNanos int64      `json:"unused_ns,omitempty"` // rule: images unused for at least this time
	PerName     int        `json:"per_name,omitempty"`  // rule: per name, all but the newest PerName images
	MaxBytes    int64      `json:"max_bytes,omitempty"` // rule: least recently used images, until all files take at most MaxBytes
	Before      *time.Time `json:"before,omitempty"`    // only images created before this time
	Labels      []string   `json:"labels,omitempty"`    // only images with all these labels: "key" or "key=value"
	Keep        []string   `json:"keep,omitempty"`      // keep images with a matching name: patterns for "name:version" or the name alone
	DryRun      bool       `json:"dry_run,omitempty"`   // only report
}

// GCRequest starts a garbage collection, which the engine also runs periodically.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty"` // only report
	Cache  bool `json:"cache,omitempty"`   // also remove all downloads of builds
}

// GCReport lists the removed objects or, for a dry run, the candidates. Bytes are allocated disk
// space; for a dry run, and per image, Bytes are an estimate.
type GCReport struct {
	DryRun     bool          `json:"dry_run,omitempty"`
	Images     []PrunedImage `json:"images"`
	Parts      int           `json:"parts"`   // part records kept for builds
	Trees      int           `json:"trees"`   // file lists
	Objects    int           `json:"objects"` // files
	Inodes     int           `json:"inodes"`
	Bytes      int64         `json:"bytes"`
	CacheBytes int64         `json:"cache_bytes,omitempty"` // share of Bytes that was downloads of builds
	TookNanos  int64         `json:"took_ns"`
}

// PrunedImage is a removed image, with its names and the name of its build.
type PrunedImage struct {
	Digest string   `json:"digest"`
	Names  []string `json:"names,omitempty"`
	Built  string   `json:"built,omitempty"`
	Rule   string   `json:"rule"` // "nameless", "all", "unused", "per_name" or "max_bytes"
	Bytes  int64    `json:"bytes"`
}

// FsckRequest starts a check of the engine's whole store.
type FsckRequest struct {
	Repair bool `json:"repair,omitempty"` // repair damaged objects and drop lost ones
}

// FsckLine is one line of the answer to an FsckRequest: a problem or progress. The last line has
// the result or the error.
type FsckLine struct {
	Problem *FsckProblem `json:"problem,omitempty"`
	Reading string       `json:"reading,omitempty"` // "objects", "trees", "images"
	Done    int          `json:"done,omitempty"`    // number of objects read so far
	Result  *FsckResult  `json:"result,omitempty"`
	Error   *Error       `json:"error,omitempty"`
}

// FsckProblem is one defect in the store.
type FsckProblem struct {
	Path   string `json:"path"`             // relative to the store's directory
	What   string `json:"what"`             // the defect
	Repair string `json:"repair,omitempty"` // the repair made
}

// FsckResult summarizes a check of the store.
type FsckResult struct {
	Objects  int   `json:"objects"` // files, each hashed
	Bytes    int64 `json:"bytes"`
	Trees    int   `json:"trees"`
	Images   int   `json:"images"`
	Problems int   `json:"problems"`
	Repaired int   `json:"repaired"`
}
