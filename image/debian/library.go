package debian

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// soname matches the name by which programs ask for a shared library: "libxml2.so.2".
var soname = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.+-]*?)\.so(\.[A-Za-z0-9_.+-]+)?$`)

// triplet is Debian's name of this machine's directories (multiarch).
func triplet() string {
	t := map[string]string{"amd64": "x86_64", "arm64": "aarch64", "386": "i386", "ppc64le": "powerpc64le"}[runtime.GOARCH]
	if t == "" {
		t = runtime.GOARCH
	}
	return t + "-linux-gnu"
}

// LibraryDirs are the directories that ld.so of Debian's libc searches without a cache file,
// relative to the root, usr-merged, in order of preference.
func LibraryDirs() []string { return []string{"usr/lib/" + triplet(), "usr/lib", "usr/lib64"} }

// IsLibrary reports whether a path of a usr-merged tree looks like a shared object.
func IsLibrary(p string) bool {
	return strings.HasPrefix(p, "usr/lib") && soname.MatchString(path.Base(p))
}

// ResolveLibraries finds the packages of the shared libraries sonames and of their dependencies, by
// their ELF files, sorted by name. installed is as for ResolveOver; has reports whether the system
// has a library already. Errors wrap [ErrUnresolved] and name similar libraries if no package has
// the library.
func (a *Archive) ResolveLibraries(ctx context.Context, sonames []string, installed map[string]string, exclude []string, has func(soname string) bool) ([]Package, error) {
	x, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	s := &libraries{a: a, ctx: ctx, known: map[string]*objects{}}
	taken := map[string]Package{}
	for _, name := range sonames {
		if !soname.MatchString(name) {
			return nil, fmt.Errorf("%w: library %q: write the library's soname, for example libxml2.so.2", ErrUnresolved, name)
		}
		if has(name) {
			continue
		}
		p, err := a.provider(s, x, name)
		if err != nil {
			return nil, err
		}
		closure, err := a.ResolveOver(ctx, []string{p.Name + "=" + p.Version}, installed, exclude)
		if err != nil {
			return nil, fmt.Errorf("library %s: %w", name, err)
		}
		if err := s.close(name, *p, closure, taken, has); err != nil {
			return nil, err
		}
	}
	out := make([]Package, 0, len(taken))
	for _, p := range taken {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// libraries caches the contents of inspected packages.
type libraries struct {
	a     *Archive
	ctx   context.Context     //nolint:containedctx // of one call
	known map[string]*objects // by package
}

// objects are the shared objects of one package.
type objects struct{ *ELFCheck }

// find returns the path of the object that ld.so loads for name, or "".
func (o *objects) find(name string, dirs []string) string {
	for _, d := range slices.Concat(dirs, LibraryDirs()) {
		p := path.Join(strings.TrimPrefix(d, "/"), name)
		if o.files[p] || o.links[p] != "" && o.exists("/"+p) {
			return p
		}
	}
	return ""
}

// look downloads packages, several at once, and reads their shared objects.
func (s *libraries) look(packages ...Package) error {
	g, ctx := errgroup.WithContext(s.ctx)
	g.SetLimit(downloads)
	found := make([]*objects, len(packages))
	for i, p := range packages {
		if s.known[p.Name] != nil {
			continue
		}
		g.Go(func() error {
			check := CheckELF(nowhere{})
			_, err := s.a.Extract(ctx, p, check, IsLibrary)
			found[i] = &objects{check}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, p := range packages {
		if found[i] != nil {
			s.known[p.Name] = found[i]
		}
	}
	return nil
}

// close adds the packages that the library name needs to taken. closure holds p's dependencies.
func (s *libraries) close(name string, p Package, closure []Package, taken map[string]Package, has func(string) bool) error {
	type want struct {
		by, name string
		dirs     []string
	}
	queue, seen := []want{{by: p.Name, name: name}}, map[string]bool{}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		if seen[w.name] || has(w.name) {
			continue
		}
		seen[w.name] = true
		q, err := s.owner(w.name, w.dirs, p, closure)
		if err != nil {
			return err
		}
		if q == nil {
			return fmt.Errorf("%w: library %s: %s needs %s: missing in the base environment and in the dependencies of the package %s", ErrUnresolved, name, w.by, w.name, p.Name)
		}
		taken[q.Name] = *q
		// The image gets all objects of the package, with all their dependencies.
		for _, n := range s.known[q.Name].needs {
			if !strings.Contains(n.name, "/") {
				queue = append(queue, want{q.Name, n.name, n.dirs})
			}
		}
	}
	return nil
}

// owner finds the package that has a library: among p and the inspected packages, then among
// packages with a matching name, and only then in all of closure.
func (s *libraries) owner(name string, dirs []string, p Package, closure []Package) (*Package, error) {
	has := func(q Package) bool { return s.known[q.Name] != nil && s.known[q.Name].find(name, dirs) != "" }
	order := append([]Package{p}, closure...)
	for _, wanted := range []func(Package) bool{
		func(Package) bool { return false },
		func(q Package) bool { return slices.Contains(candidates(name), q.Name) },
		func(Package) bool { return true },
	} {
		if err := s.look(slices.DeleteFunc(slices.Clone(closure), func(q Package) bool { return !wanted(q) })...); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(order, has); i >= 0 {
			return &order[i], nil
		}
	}
	return nil, nil
}

// has reports whether the package, which may be nil, has the library.
func (s *libraries) has(p *Package, name string) (bool, error) {
	if p == nil {
		return false, nil
	}
	if err := s.look(*p); err != nil {
		return false, err
	}
	return s.known[p.Name].find(name, nil) != "", nil
}

// provider finds the package that has a library. It inspects packages with the names that Debian's
// policy (8.1) gives to packages of libraries, then searches the archive's list of all files.
func (a *Archive) provider(s *libraries, x *index, name string) (*Package, error) {
	for _, c := range candidates(name) {
		if has, err := s.has(x.packages[c], name); err != nil {
			return nil, err
		} else if has {
			return x.packages[c], nil
		}
	}
	names, near, err := a.contents(s.ctx, name)
	if err != nil {
		return nil, fmt.Errorf("library %s: %w", name, err)
	}
	for _, n := range names {
		if has, err := s.has(x.packages[n], name); err != nil {
			return nil, err
		} else if has {
			return x.packages[n], nil
		}
	}
	hint := x.near(candidates(name)[0])
	if len(near) > 0 {
		hint = "; near: " + strings.Join(near, ", ")
	}
	return nil, fmt.Errorf("%w: no package of %s has the library %s%s", ErrUnresolved, a.codename, name, hint)
}

// candidates returns likely package names for a library with the soname.
func candidates(name string) []string {
	m := soname.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	stem := strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")
	number := strings.ToLower(strings.TrimPrefix(m[2], "."))
	joined := stem + number
	if last := stem[len(stem)-1]; number != "" && last >= '0' && last <= '9' {
		joined = stem + "-" + number
	}
	var out []string
	for _, n := range []string{joined, joined + "t64", stem + "-" + number, stem} {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// contents searches the lists of all files (Contents-ARCH.gz, see the Debian wiki,
// RepositoryFormat) for a library. It returns the packages with the library, the likeliest first,
// and names of similar libraries. The lists are large: a search takes a second or two.
func (a *Archive) contents(ctx context.Context, name string) (packages, near []string, err error) {
	found := &contentsSearch{name: name}
	lists := 0
	for _, s := range a.sources {
		r, err := a.loadRelease(ctx, s)
		if err != nil {
			return nil, nil, err
		}
		if a.origin != "" && !strings.EqualFold(r.origin, a.origin) {
			continue
		}
		for _, c := range s.Components {
			for _, file := range []string{c + "/Contents-" + a.arch + ".gz", "Contents-" + a.arch + ".gz"} {
				f, ok := r.files[file]
				if !ok {
					continue
				}
				if err := a.search(ctx, s, r, file, f, found); err != nil {
					return nil, nil, fmt.Errorf("%s %s: %w", s.Suite, file, err)
				}
				lists++
				break
			}
		}
	}
	if lists == 0 {
		return nil, nil, fmt.Errorf("%w: the archive has no list of files (Contents-%s.gz): name the package in packages.deb", ErrUnresolved, a.arch)
	}
	packages, near = found.result()
	return packages, near, nil
}

func (a *Archive) search(ctx context.Context, s Source, r *inRelease, file string, f fileHash, found *contentsSearch) error {
	dir := s.URI + "/dists/" + s.Suite + "/"
	uris := []string{dir + file}
	if r.byHash {
		uris = append([]string{dir + path.Dir(file) + "/by-hash/SHA256/" + f.sha256}, uris...)
	}
	in, err := a.fetch.verified(ctx, "index", f.sha256, f.size, uris...)
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	return found.read(ctx, &boundReader{r: z, left: 8 * a.limits.index})
}

// contentsSearch looks for one library in lists of files:
//
//	usr/lib/x86_64-linux-gnu/libxml2.so.2     libs/libxml2,oldlibs/other
type contentsSearch struct {
	name    string
	direct  []string // packages with the library in a directory of ld.so
	aside   []string // packages with the library elsewhere
	similar []string // libraries in ld.so's directories with a similar name
}

func (c *contentsSearch) read(ctx context.Context, r io.Reader) error {
	stem := c.name
	if m := soname.FindStringSubmatch(c.name); m != nil {
		stem = m[1]
	}
	exact, like := []byte("/"+c.name), []byte("/"+stem)
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 256<<10), maxLine)
	for n := 0; sc.Scan(); n++ {
		if n%(1<<16) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		line := sc.Bytes()
		if !bytes.Contains(line, like) {
			continue
		}
		c.line(line, bytes.Contains(line, exact))
	}
	return sc.Err()
}

// line reads "path packages". exact says that the path may be of the wanted library.
func (c *contentsSearch) line(line []byte, exact bool) {
	at := bytes.LastIndexAny(line, " \t")
	if at < 0 {
		return
	}
	file, _ := strings.CutPrefix(string(bytes.TrimRight(line[:at], " \t")), "./")
	if top, _, _ := strings.Cut(file, "/"); mergeable(top) {
		file = "usr/" + file
	}
	base, here := path.Base(file), slices.Contains(LibraryDirs(), path.Dir(file))
	switch {
	case exact && base == c.name:
		c.found(file, string(line[at+1:]), here)
	case here && len(c.similar) < 1000 && soname.MatchString(base):
		c.similar = append(c.similar, base)
	}
}

// found adds packages, a list "section/name,…" that has file. here says that file is in a directory
// of ld.so.
func (c *contentsSearch) found(file, packages string, here bool) {
	for p := range strings.SplitSeq(packages, ",") {
		p = path.Base(p)
		if !validName(p) {
			continue
		}
		if here {
			c.direct = append(c.direct, p)
		} else if strings.HasPrefix(file, LibraryDirs()[0]+"/") {
			c.aside = append(c.aside, p)
		}
	}
}

// result sorts the findings: shorter names first.
func (c *contentsSearch) result() (packages, near []string) {
	for _, l := range [][]string{c.direct, c.aside} {
		slices.SortFunc(l, func(a, b string) int {
			if len(a) != len(b) {
				return len(a) - len(b)
			}
			return strings.Compare(a, b)
		})
		for _, p := range l {
			if !slices.Contains(packages, p) && len(packages) < 16 {
				packages = append(packages, p)
			}
		}
	}
	slices.SortFunc(c.similar, func(a, b string) int {
		if d := distance(a, c.name) - distance(b, c.name); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	near = slices.Compact(c.similar)
	return packages, near[:min(5, len(near))]
}

// nowhere is a Writer that discards all files.
type nowhere struct{}

// File implements [Writer].
func (nowhere) File(_ string, _ fs.FileMode, _ time.Time, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// Directory implements [Writer].
func (nowhere) Directory(string, fs.FileMode, time.Time) error { return nil }

// Symlink implements [Writer].
func (nowhere) Symlink(string, string, time.Time) error { return nil }
