package api

import (
	"encoding/json"
	"time"
)

// Image is a committed image as lists show it. Name and Version are those of
// the first of Names, empty where it has none.
type Image struct {
	Digest  string    `json:"digest"` // "sha256:…"
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Names   []string  `json:"names,omitempty"` // "name:version", all of them
	Base    string    `json:"base,omitempty"`
	Kind    string    `json:"kind,omitempty"` // "base", or "tools" of a builder's own; none for a function's
	Created time.Time `json:"created"`
	Size    int64     `json:"size"`  // bytes of all files
	Files   int       `json:"files"` // number of files
}

// ImageChanges is what has become of the list of images since a generation.
type ImageChanges struct {
	Generation uint64   `json:"generation"` // to ask from the next time, or for events since
	Complete   bool     `json:"complete"`   // Changed is the whole list: so much has happened that it is not remembered
	Changed    []Image  `json:"changed"`    // new, or with other names
	Removed    []string `json:"removed"`    // digests
}

// Part is a tree placed in an image.
type Part struct {
	Kind    string `json:"kind"` // "base", "pip", "npm", "bootstrap", "code"
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Tree    string `json:"tree"`
	Prefix  string `json:"prefix,omitempty"` // directory below the root
	Hash    string `json:"hash,omitempty"`   // by which what it was unpacked from was verified: "sha256:…", "sha512:…" of a package's file, "git:…" of a commit
}

// ImageDetails is an image with what it is made of. Config is the image's
// configuration as its manifest holds it.
type ImageDetails struct {
	Image
	Parts  []Part          `json:"parts"`
	Config json.RawMessage `json:"config,omitempty"`
}

// LeftOut is what is not in an image, in its configuration's member left_out: what
// slimming left out of its base environment, and so of functions that stand on it.
type LeftOut struct {
	Packages     []string       `json:"packages,omitempty"`      // Debian packages that others depend on for their installation
	PackageBytes int64          `json:"package_bytes,omitempty"` // that those take where they are installed
	Files        []LeftOutFiles `json:"files,omitempty"`         // of the packages that are there
	Unopened     []LeftOutPart  `json:"unopened,omitempty"`      // of a slimmed image's parts: what its function did not open

	// Apart are parts of the language in Debian packages that packages.deb of a template
	// adds: what a program asks for → the package.
	Apart map[string]string `json:"apart,omitempty"`
}

// LeftOutPart is what is not there of a part of a slimmed image.
type LeftOutPart struct {
	Part  string `json:"part"` // kind, name and version
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// SlimRequest asks for an image that holds what a function has opened so far: one
// that was deployed as a temporary one, traced.
type SlimRequest struct {
	Keep   []string `json:"keep,omitempty"`    // path globs of what stays in any case, beside the template's
	DryRun bool     `json:"dry_run,omitempty"` // only say what would go
}

// Slimmed is what came of it.
type Slimmed struct {
	Image  *Image     `json:"image,omitempty"` // without a name; absent after a dry run
	Before FileTotals `json:"before"`
	After  FileTotals `json:"after"`
	Gone   []GoneFile `json:"gone"` // by path
}

// FileTotals is what an image's root holds.
type FileTotals struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// GoneFile is a file or a link that is not in a slimmed image.
type GoneFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// LeftOutFiles are the files that one pattern left out.
type LeftOutFiles struct {
	Pattern string   `json:"pattern"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Names   []string `json:"names,omitempty"` // what programs ask for: modules, programs, packages of Java
}

// LeftOut is that of the image's configuration; nil where that says nothing of it.
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

// HistoryStep is one step of how an image was made.
type HistoryStep struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
	Author    string    `json:"author,omitempty"`
	Comment   string    `json:"comment,omitempty"`
	Size      int64     `json:"size"` // bytes of the files it added
}

// TagRequest gives an image one more name.
type TagRequest struct {
	Name string `json:"name"` // "name:version", or "name" for version "latest"
}

// RemovedImage says what became of an image that was to be removed: as it was,
// with the names that are gone.
type RemovedImage struct {
	Image
	Untagged []string `json:"untagged,omitempty"`
	Deleted  bool     `json:"deleted"` // the image is gone, too
}

// PruneRequest says which images are not wanted any more; with no rule it is
// those without a name. What is in use always stays, and base environments and
// the builder's tools go by UnusedNanos and MaxBytes only.
type PruneRequest struct {
	All         bool       `json:"all,omitempty"`       // rule: every image
	UnusedNanos int64      `json:"unused_ns,omitempty"` // rule: images not used for so long
	PerName     int        `json:"per_name,omitempty"`  // rule: all but so many of one name, newest first
	MaxBytes    int64      `json:"max_bytes,omitempty"` // rule: least recently used images, until files take no more
	Before      *time.Time `json:"before,omitempty"`    // only images made before
	Labels      []string   `json:"labels,omitempty"`    // only images with all of these: "key" or "key=value"
	Keep        []string   `json:"keep,omitempty"`      // never images with such a name: patterns for "name:version" or the name alone
	DryRun      bool       `json:"dry_run,omitempty"`   // say what would go
}

// GCRequest asks for what the engine does now and then by itself.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty"` // say what would go
	Cache  bool `json:"cache,omitempty"`   // all that builds have downloaded, too
}

// GCReport says what went, or would go. Bytes are what the disk had allocated;
// of a dry run, and of each image, they are an estimate.
type GCReport struct {
	DryRun     bool          `json:"dry_run,omitempty"`
	Images     []PrunedImage `json:"images"`
	Parts      int           `json:"parts"`   // remembered for builds
	Trees      int           `json:"trees"`   // lists of files
	Objects    int           `json:"objects"` // files
	Inodes     int           `json:"inodes"`
	Bytes      int64         `json:"bytes"`
	CacheBytes int64         `json:"cache_bytes,omitempty"` // of them what builds had downloaded
	TookNanos  int64         `json:"took_ns"`
}

// PrunedImage is an image that went, with its names, and the one it was built
// under.
type PrunedImage struct {
	Digest string   `json:"digest"`
	Names  []string `json:"names,omitempty"`
	Built  string   `json:"built,omitempty"`
	Rule   string   `json:"rule"` // "nameless", "all", "unused", "per_name" or "max_bytes"
	Bytes  int64    `json:"bytes"`
}

// FsckRequest asks for a check of everything the engine has stored.
type FsckRequest struct {
	Repair bool `json:"repair,omitempty"` // put right what can be, drop what is lost
}

// FsckLine is one line of the answer to that: a problem, what was read so far, or
// as the last line the result or the error.
type FsckLine struct {
	Problem *FsckProblem `json:"problem,omitempty"`
	Reading string       `json:"reading,omitempty"` // "objects", "trees", "images"
	Done    int          `json:"done,omitempty"`    // of these, so far
	Result  *FsckResult  `json:"result,omitempty"`
	Error   *Error       `json:"error,omitempty"`
}

// FsckProblem is one thing that is wrong in the store.
type FsckProblem struct {
	Path   string `json:"path"`             // below the store's directory
	What   string `json:"what"`             // what is wrong
	Repair string `json:"repair,omitempty"` // what was done about it
}

// FsckResult says what a check has read and found.
type FsckResult struct {
	Objects  int   `json:"objects"` // files, all of them hashed
	Bytes    int64 `json:"bytes"`
	Trees    int   `json:"trees"`
	Images   int   `json:"images"`
	Problems int   `json:"problems"`
	Repaired int   `json:"repaired"`
}
