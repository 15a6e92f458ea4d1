// Package debian makes trees of files from Debian and Ubuntu packages without apt, chroot or
// maintainer scripts.
//
// An [Archive] is the set of suites of one distribution release ("bookworm", "bookworm-updates",
// "bookworm-security"). Trust works as in apt:
//
//	keyring → InRelease (clearsigned) → SHA256 of Packages.gz → SHA256 of each .deb
//
// Resolve computes a closure of dependencies. Unpack downloads the closure and streams the files to
// a [Writer], usr-merged. The effects of maintainer scripts (alternatives, ldconfig, diversions)
// are missing, with two exceptions: the bundle of certification authorities, and sh and awk.
// [ELFCheck] reports whether the result still links.
//
// The package ignores Conflicts and Breaks: a base environment takes a handful of roots of one
// release, and the archive's own rules make those co-installable.
package debian

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Config names the sources of packages. Cache is required.
type Config struct {
	Release string       // codename: "trixie"; "" for [HostRelease]
	Sources []Source     // of all releases; nil: the host's apt sources
	Cache   string       // directory for release files, indexes and .debs; made when missing
	Client  *http.Client // nil: a client with the proxies of the environment and apt
	Log     *slog.Logger // nil: discarded

	root string // of the host, "" for /
}

// Archive is safe for use by several goroutines. The first Resolve loads the indexes (some 60,000
// packages, about 40 MB of memory), and they live as long as the Archive: open an Archive for a
// build, then drop it.
type Archive struct {
	sources  []Source
	origin   string // required Origin of the release files; "" for any
	codename string
	foreign  bool   // another release than the host's, from the host's sources
	arch     string // Debian's name: "amd64", "arm64"
	fetch    fetcher
	log      *slog.Logger
	now      func() time.Time
	limits   limits

	mu    sync.Mutex
	index *index // nil until loaded
}

// limits bound the data that an archive can make FRE write or hold.
type limits struct {
	deb      int64 // bytes of one .deb
	unpacked int64 // unpacked bytes of one .deb
	entries  int   // members of one .deb
	index    int64 // bytes of one uncompressed Packages file
	link     int64 // bytes of a file that has hard links
}

// hint tells the user how to use a release that the host's mirror lacks or whose key the host does
// not know.
func (a *Archive) hint() string {
	if !a.foreign {
		return ""
	}
	return fmt.Sprintf(" (packages of a foreign release come from the host's mirror, signed by the host's keys: install a debian-archive-keyring with the keys of %s, or list the release's sources under packages.debian in FRE's configuration)", a.codename)
}

// Codename is the release's: "bookworm", "noble".
func (a *Archive) Codename() string { return a.codename }
