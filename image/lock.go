package image

import (
	"fmt"
	"slices"

	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

const (
	lockVersion  = 1
	maxLockBytes = 16 << 20 // a lock of a thousand packages has about 1 MiB
)

// Lock pins the names, versions and hashes that a build resolved; it has no host names.
//
// The file has a member for each site's section, between base and deb:
//
//	{"version": 1, "base": {…}, "SITE": {…}, …, "deb": {…}, "git": {…}, "build": {…}}
type Lock struct {
	Version int // 1
	Base    LockedBase
	Sites   map[string]Section // by the name of the site; nil: none
	Deb     *LockedDeb
	Git     *LockedGit
	Build   *Lock // packages of code.build, together with the function's own

	sites []string // names of the sites, in the order of the file
}

// Section is what one site locks: a pointer to a struct, whose JSON object is a member of the file.
type Section interface {
	// Answers reports whether the section pins what r requests. A section that does not is
	// resolved again.
	Answers(r *template.Requests) bool

	// Check returns an error for bad names and hashes, and for names of hosts.
	Check() error
}

// LockedPackages is the [Section] of a site that pins versions by hash, and embedded in others. It
// is valid while Request is the requests' [template.Requests.Key].
type LockedPackages struct {
	Request  []string        `json:"request"`
	Packages []LockedPackage `json:"packages"`
}

// Answers compares the keys of the requests.
func (l *LockedPackages) Answers(r *template.Requests) bool { return slices.Equal(l.Request, r.Key()) }

// Check refuses packages without exactly one hash.
func (l *LockedPackages) Check() error { return CheckPackages(l.Packages, LockedName, LockedVersion) }

// LockedBase names the base environment of an image. For FRE's own bases it is only a record,
// because Debian's archive keeps no old versions.
type LockedBase struct {
	Name string `json:"name"`
	// Digest, for a base from a registry, is the registry's digest, which is pinned.
	Digest   store.Digest      `json:"digest,omitempty"`
	Packages map[string]string `json:"packages"` // Debian package → version
}

// LockedGit is valid while Request is the template's code.git.
type LockedGit struct {
	Request string `json:"request"` // digest of URL, ref and submodules
	Commit  string `json:"commit"`  // 40 or 64 hexadecimal digits
}

// LockedPackage pins one package version.
type LockedPackage struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Hashes  []string `json:"hashes"` // "sha256:…", one for each acceptable file
	// Source is the file name of the source to build, for a site that builds. The only hash is its.
	Source string `json:"source,omitempty"`

	// Requires are the packages that build Source, sorted by name. Empty if the build needs no
	// packages, or if an older FRE wrote the lock without them.
	Requires []LockedPackage `json:"requires,omitempty"`
}

// Patterns of the names and versions that most sites lock.
var (
	LockedName    = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	LockedVersion = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,127}$`)
)

var (
	hashPattern   = lazyregexp.New(`^sha256:[0-9a-f]{64}$`)
	commitPattern = lazyregexp.New(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	debName       = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+-]{0,254}$`)
	debVersion    = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+:~-]{0,254}$`)
)

// ValidHash reports whether hash is one that a lock may hold: "sha256:" and 64 hexadecimal digits.
func ValidHash(hash string) bool { return hashPattern.MatchString(hash) }

// CheckPackages returns an error for a package with a bad name or version, or without exactly one
// hash.
func CheckPackages(packages []LockedPackage, name, version *lazyregexp.Regexp) error {
	for _, p := range packages {
		if !name.MatchString(p.Name) || !version.MatchString(p.Version) {
			return fmt.Errorf("bad package %q version %q", p.Name, p.Version)
		}
		if len(p.Hashes) != 1 || !ValidHash(p.Hashes[0]) {
			return fmt.Errorf("package %s %s: want one hash, have %q", p.Name, p.Version, p.Hashes)
		}
	}
	return nil
}

// LockedDeb is valid while Request is the [template.Requests.Key] of packages.deb, Libs the
// template's libs, and the lock's Base the build's base.
type LockedDeb struct {
	Request  []string           `json:"request"`
	Libs     []string           `json:"libs,omitempty"`
	Packages []LockedDebPackage `json:"packages"` // without the packages of the base environment
}

// LockedDebPackage pins one Debian package.
type LockedDebPackage struct {
	Name         string `json:"name"`
	Version      string `json:"version"`
	Architecture string `json:"architecture"`   // "amd64", "all"
	Hash         string `json:"hash"`           // "sha256:…" of the .deb
	Libs         bool   `json:"libs,omitempty"` // only the shared libraries
}

func (l *LockedDeb) check() error {
	for _, p := range l.Packages {
		if !debName.MatchString(p.Name) || !debVersion.MatchString(p.Version) || !debName.MatchString(p.Architecture) {
			return fmt.Errorf("bad Debian package %q version %q of %q", p.Name, p.Version, p.Architecture)
		}
		if !hashPattern.MatchString(p.Hash) {
			return fmt.Errorf("deb package %s %s: bad hash %q", p.Name, p.Version, p.Hash)
		}
	}
	return nil
}

// LockFile is the name of the lock file beside fret.yaml.
const LockFile = "fret.lock"
