package debian

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mikelolasagasti/xz"
	"golang.org/x/sync/errgroup"
	"pault.ag/go/debian/version"
)

// index holds the newest version of every package, and the providers of each name.
type index struct {
	packages map[string]*Package
	older    map[string][]*Package // further versions, newest first; few names have any
	provides map[string][]provided
}

type provided struct {
	by      *Package
	version *version.Version // nil: satisfies unversioned dependencies only
}

// satisfies reports whether d is unversioned or admits the provided version.
func (v provided) satisfies(d dependency) bool {
	return d.op == "" || v.version != nil && d.admits(*v.version)
}

// load returns the index. The first successful call builds it.
func (a *Archive) load(ctx context.Context) (*index, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.index != nil {
		return a.index, nil
	}
	lists := make([][]*Package, len(a.sources))
	used := make([]bool, len(a.sources))
	g, gctx := errgroup.WithContext(ctx)
	for i, s := range a.sources {
		g.Go(func() error {
			var err error
			lists[i], used[i], err = a.loadSource(gctx, s)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if !slices.Contains(used, true) {
		return nil, fmt.Errorf("no apt source of origin %q for %s", a.origin, a.codename)
	}
	x := newIndex(lists)
	for _, p := range x.packages {
		if err := x.addProvides(p); err != nil {
			// Only this package is affected: a dependency on it is reported as missing.
			a.log.WarnContext(ctx, "unreadable Provides of a package", "package", p.Name, "error", err)
		}
	}
	a.index = x
	return x, nil
}

// loadSource returns the packages of a source. used is false for a source that is not the
// distribution's own.
func (a *Archive) loadSource(ctx context.Context, s Source) (list []*Package, used bool, err error) {
	r, err := a.loadRelease(ctx, s)
	if err != nil {
		return nil, false, err
	}
	if a.origin != "" && !strings.EqualFold(r.origin, a.origin) {
		a.log.DebugContext(ctx, "apt source is not the distribution's own", "uri", redact(s.URI), "origin", r.origin)
		return nil, false, nil
	}
	for _, c := range s.Components {
		l, err := a.loadPackages(ctx, s, r, c)
		if err != nil {
			return nil, false, fmt.Errorf("%s %s %s: %w", redact(s.URI), s.Suite, c, err)
		}
		list = append(list, l...)
	}
	return list, true, nil
}

// newIndex sorts the packages into the newest of each name and older ones. Provides are not in yet.
func newIndex(lists [][]*Package) *index {
	x := &index{packages: map[string]*Package{}, older: map[string][]*Package{}, provides: map[string][]provided{}}
	for _, l := range lists {
		for _, p := range l {
			old := x.packages[p.Name]
			switch {
			case old == nil:
				x.packages[p.Name] = p
			case version.Compare(p.parsed, old.parsed) > 0:
				x.packages[p.Name] = p
				x.older[p.Name] = append(x.older[p.Name], old)
			default:
				x.older[p.Name] = append(x.older[p.Name], p)
			}
		}
	}
	for _, l := range x.older {
		slices.SortStableFunc(l, func(a, b *Package) int { return version.Compare(b.parsed, a.parsed) })
	}
	return x
}

func (x *index) addProvides(p *Package) error {
	groups, err := parseDepends(p.provides)
	if err != nil {
		return err
	}
	for _, g := range groups {
		for _, d := range g {
			v := provided{by: p}
			if d.op == "=" {
				v.version = &d.version
			}
			x.provides[d.name] = append(x.provides[d.name], v)
		}
	}
	p.provides = ""
	return nil
}

// loadPackages fetches and parses one component's Packages file.
func (a *Archive) loadPackages(ctx context.Context, s Source, r *release, component string) ([]*Package, error) {
	dir := component + "/binary-" + a.arch + "/"
	plain, ok := r.files[dir+"Packages"]
	if !ok {
		return nil, fmt.Errorf("the release file lists no %sPackages", dir)
	}
	// gzip first: a third larger than xz, and decoded four times as fast.
	for _, ext := range []string{".gz", ".xz"} {
		f, ok := r.files[dir+"Packages"+ext]
		if !ok {
			continue
		}
		base := s.URI + "/dists/" + s.Suite + "/" + dir
		uris := []string{base + "Packages" + ext}
		if r.byHash {
			uris = append([]string{base + "by-hash/SHA256/" + f.sha256}, uris...)
		}
		if plain.size > a.limits.index {
			return nil, fmt.Errorf("index of %d bytes: more than %d", plain.size, a.limits.index)
		}
		file, err := a.fetch.verified(ctx, "index", f.sha256, f.size, uris...)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		var in io.Reader
		if ext == ".gz" {
			in, err = gzip.NewReader(file)
		} else {
			in, err = xz.NewReader(file, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		return parsePackages(&boundReader{r: in, left: plain.size}, s.URI, a.arch)
	}
	return nil, fmt.Errorf("the release file lists neither %sPackages.gz nor .xz", dir)
}

// boundReader returns an error at the limit; io.LimitReader would end quietly.
type boundReader struct {
	r    io.Reader
	left int64
}

var errTooLarge = errors.New("larger than announced or allowed")

func (b *boundReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func parsePackages(r io.Reader, uri, arch string) ([]*Package, error) {
	want := map[string]bool{}
	for _, f := range []string{"package", "version", "architecture", "filename", "size", "sha256", "depends", "pre-depends", "provides", "priority", "installed-size"} {
		want[f] = true
	}
	var out []*Package
	err := readParagraphs(r, want, func(p paragraph) error {
		if p["architecture"] != arch && p["architecture"] != "all" {
			return nil
		}
		k, err := parsePackage(p, uri)
		if err != nil {
			return err
		}
		out = append(out, k)
		return nil
	})
	return out, err
}

func parsePackage(p paragraph, uri string) (*Package, error) {
	k := &Package{
		Name: p["package"], Version: p["version"], Architecture: p["architecture"],
		Filename: p["filename"], SHA256: strings.ToLower(p["sha256"]),
		uri: uri, provides: p["provides"],
		depends: strings.Trim(p["pre-depends"]+", "+p["depends"], ", "),
	}
	k.priority = slices.Index([]string{"required", "important", "standard", "optional"}, p["priority"])
	if k.priority < 0 {
		k.priority = 4
	}
	var err error
	if !validName(k.Name) {
		return nil, fmt.Errorf("bad package name %.80q", k.Name)
	}
	if k.parsed, err = parseVersion(k.Version); err != nil {
		return nil, fmt.Errorf("package %s: version %.80q: %w", k.Name, k.Version, err)
	}
	if k.Size, err = strconv.ParseInt(p["size"], 10, 64); err != nil || k.Size < 0 {
		return nil, fmt.Errorf("package %s: bad size %.80q", k.Name, p["size"])
	}
	if k.InstalledSize, err = parseInstalledSize(p["installed-size"]); err != nil {
		return nil, fmt.Errorf("package %s: %w", k.Name, err)
	}
	if b, err := hex.DecodeString(k.SHA256); err != nil || len(b) != 32 {
		return nil, fmt.Errorf("package %s: bad sha256 %.80q", k.Name, k.SHA256)
	}
	if !filepath.IsLocal(k.Filename) {
		return nil, fmt.Errorf("package %s: bad file name %.80q", k.Name, k.Filename)
	}
	return k, nil
}

// parseInstalledSize turns KiB (deb-substvars(5)) into bytes. An empty text is 0.
func parseInstalledSize(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 40)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("bad installed size %.80q", s)
	}
	return n << 10, nil
}

// parseVersion refuses versions that dpkg refuses and version.Parse accepts: no upstream version
// before a hyphen, or no revision behind the last hyphen.
func parseVersion(s string) (version.Version, error) {
	v, err := version.Parse(s)
	switch {
	case err != nil:
	case v.Version == "":
		err = errors.New("no upstream version")
	case v.Revision == "" && strings.HasSuffix(strings.TrimSpace(s), "-"):
		err = errors.New("no revision behind the hyphen")
	}
	return v, err
}

// validName follows Debian policy 5.6.1, and allows upper case as some archives do.
func validName(s string) bool {
	return s != "" && len(s) < 256 && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789+-.") == "" &&
		!strings.ContainsAny(s[:1], "+-.")
}
