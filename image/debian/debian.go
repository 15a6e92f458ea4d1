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
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"pault.ag/go/debian/version"
)

// Errors that callers test for, wrapped with the file or address.
var (
	ErrSignature  = errors.New("signature does not verify")
	ErrExpired    = errors.New("release file has expired")
	ErrHash       = errors.New("size or hash differs from the signed index")
	ErrUnresolved = errors.New("package not available")
	ErrUnsafe     = errors.New("unsafe archive member")
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

// Package is one version of a package, as the archive's index describes it.
type Package struct {
	Name, Version, Architecture string
	Filename                    string // below the source's URI
	Size                        int64  // of the .deb, bytes
	SHA256                      string // of the .deb, hexadecimal
	InstalledSize               int64  // bytes of the installed files; 0 if the index leaves it out

	uri      string // of its source
	parsed   version.Version
	depends  string // Pre-Depends and Depends, unparsed
	provides string
	priority int // 0 required … 4 extra
}

// Open reads the sources. It downloads nothing: Resolve does.
func Open(cfg Config) (*Archive, error) {
	a := &Archive{
		sources: cfg.Sources,
		arch:    debianArch(),
		log:     cfg.Log,
		now:     time.Now,
		limits:  limits{deb: 1 << 30, unpacked: 2 << 30, entries: 200_000, index: 512 << 20, link: 64 << 20},
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	apt := aptConfig{}
	if cfg.Client == nil || cfg.Sources == nil {
		apt = readAptConfig(context.Background())
	}
	own, err := hostRelease(cfg.root, cfg.Sources)
	if err != nil {
		return nil, err
	}
	a.codename = cmp.Or(cfg.Release, own)
	if cfg.Sources == nil {
		if err := a.useHostSources(cfg.root, own, apt.allowExpired); err != nil {
			return nil, err
		}
	} else {
		a.sources = slices.DeleteFunc(slices.Clone(cfg.Sources), func(s Source) bool { return s.release() != a.codename })
		if len(a.sources) == 0 {
			return nil, fmt.Errorf("no apt source of the release %s: packages.debian in FRE's configuration has sources of %s only", a.codename, own)
		}
	}
	if err := makeCache(cfg.Cache); err != nil {
		return nil, err
	}
	client := cfg.Client
	if client == nil {
		client = newClient(apt)
	}
	a.fetch = fetcher{client: client, cache: cfg.Cache, idle: 60 * time.Second, backoff: time.Second}
	return a, nil
}

func makeCache(dir string) error {
	if dir == "" {
		return errors.New("cache directory not given")
	}
	for _, d := range []string{"release", "index", "deb"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("cache: %w", err)
		}
	}
	return nil
}

// useHostSources reads the sources of the host, whose release is own. For another release the
// suites' names change.
func (a *Archive) useHostSources(root, own string, allowExpired bool) (err error) {
	if a.origin, _, err = osRelease(root + "/etc/os-release"); err != nil {
		return err
	}
	if a.sources, err = hostSources(cmp.Or(root, "/"), own, a.arch, a.log); err != nil {
		return err
	}
	for i := range a.sources {
		s := &a.sources[i]
		s.AllowExpired = s.AllowExpired || allowExpired
		if a.codename != own {
			s.Suite, a.foreign = a.codename+strings.TrimPrefix(s.Suite, own), true
		}
	}
	return nil
}

// debianArch is Debian's name of this machine's architecture.
func debianArch() string {
	if a := map[string]string{"arm": "armhf", "386": "i386", "ppc64le": "ppc64el"}[runtime.GOARCH]; a != "" {
		return a
	}
	return runtime.GOARCH
}

// Codename is the release's: "bookworm", "noble".
func (a *Archive) Codename() string { return a.codename }

// HostRelease is the default release of base environments: the release of the first source, or, if
// sources is nil, the host's own.
func HostRelease(sources []Source) (codename string, err error) { return hostRelease("", sources) }

func hostRelease(root string, sources []Source) (codename string, err error) {
	if sources == nil {
		_, codename, err = osRelease(root + "/etc/os-release")
		return codename, err
	}
	if len(sources) == 0 {
		return "", errors.New("no apt sources given")
	}
	return sources[0].release(), nil
}

// osRelease reads ID and VERSION_CODENAME; see os-release(5).
func osRelease(path string) (id, codename string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", fmt.Errorf("os-release: %w", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, value, _ := strings.Cut(sc.Text(), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	if err := sc.Err(); err != nil {
		return "", "", fmt.Errorf("os-release: %w", err)
	}
	if codename == "" {
		return "", "", fmt.Errorf("%s names no VERSION_CODENAME: base environments need a Debian or Ubuntu release, or apt sources in FRE's configuration", path)
	}
	return id, codename, nil
}
