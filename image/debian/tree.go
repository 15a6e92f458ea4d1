package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"
)

// tree is the state of the written tree.
type tree struct {
	w      Writer
	keep   func(string) bool
	limits limits
	log    *slog.Logger
	kind   map[string]byte // path → tar type flag
	size   int64           // of this package's files, with hard links and the holes of sparse files
	ca     []byte          // PEM
	mtime  time.Time       // newest seen
	over   bool            // the tree goes over another tree, which has the files of no single package
}

const caDir = "usr/share/ca-certificates/"

// mergedTops are the top directories that are links into usr: the first three always, the rest only
// when used.
func mergedTops() []string { return []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} }

func mergeable(top string) bool { return slices.Contains(mergedTops(), top) }

// clean checks a tar member's name and moves it below usr. "" is the root.
func clean(name string) (string, error) {
	p := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if p == "" || p == "." {
		return "", nil
	}
	if strings.ContainsRune(name, 0) || !fs.ValidPath(p) {
		return "", fmt.Errorf("%w: path %.200q", ErrUnsafe, name)
	}
	top, _, _ := strings.Cut(p, "/")
	if mergeable(top) {
		p = "usr/" + p
	}
	return p, nil
}

// hardLink is a hard link of the archive: path gets target's bytes.
type hardLink struct{ path, target string }

// deb writes one package's files. Hard links need a second pass, because the archive does not
// announce them before their target.
func (t *tree) deb(ctx context.Context, name string, f io.ReadSeeker) error {
	var links []hardLink
	t.size = 0
	err := t.members(ctx, f, func(p string, h *tar.Header, r io.Reader) error {
		if h.Typeflag != tar.TypeLink {
			return t.add(name, p, h, r)
		}
		target, err := clean(h.Linkname)
		if err != nil {
			return err
		}
		if t.keep(p) {
			links = append(links, hardLink{p, target})
		}
		return nil
	})
	if err != nil || len(links) == 0 {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return t.hardLinks(ctx, name, f, links)
}

// hardLinks reads the package again and writes each link as a file of its own.
func (t *tree) hardLinks(ctx context.Context, name string, f io.Reader, links []hardLink) error {
	err := t.members(ctx, f, func(p string, h *tar.Header, r io.Reader) error {
		if h.Typeflag != tar.TypeReg || !slices.ContainsFunc(links, func(l hardLink) bool { return l.target == p }) {
			return nil
		}
		if h.Size > t.limits.link {
			return fmt.Errorf("%w: %s has hard links and %d bytes", ErrUnsafe, p, h.Size)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		rest := links[:0]
		for _, l := range links {
			if l.target != p {
				rest = append(rest, l)
			} else if err := t.add(name, l.path, h, bytes.NewReader(b)); err != nil {
				return err
			}
		}
		links = rest
		return nil
	})
	if err == nil && len(links) > 0 {
		err = fmt.Errorf("%w: hard link %s to %s: no file of the package", ErrUnsafe, links[0].path, links[0].target)
	}
	return err
}

// members calls f for every member, with its merged path, the root left out.
func (t *tree) members(ctx context.Context, deb io.Reader, f func(string, *tar.Header, io.Reader) error) error {
	data, closeData, err := openMember(deb, "data.tar")
	if err != nil {
		return err
	}
	defer closeData()
	tr := tar.NewReader(&boundReader{r: data, left: t.limits.unpacked})
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF { //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
			return nil
		}
		if err != nil {
			return fmt.Errorf("data.tar: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if n > t.limits.entries {
			return fmt.Errorf("%w: more than %d members", ErrUnsafe, t.limits.entries)
		}
		p, err := clean(h.Name)
		if err != nil {
			return err
		}
		if p == "" {
			continue
		}
		if err := f(p, h, tr); err != nil {
			return err
		}
	}
}

// add writes one file, directory or symlink.
func (t *tree) add(name, p string, h *tar.Header, r io.Reader) error {
	if h.ModTime.After(t.mtime) {
		t.mtime = h.ModTime
	}
	if file, err := checkEntry(p, h); err != nil || !file {
		return err
	}
	if err := t.parents(path.Dir(p), h.ModTime, false); err != nil {
		return err
	}
	r, err := t.certificate(p, h, r)
	if err != nil {
		return err
	}
	if !t.keep(p) {
		t.drop(p, h)
		return nil
	}
	if old, ok := t.kind[p]; ok {
		return t.again(name, p, old, h.Typeflag)
	}
	if err := t.parents(path.Dir(p), h.ModTime, true); err != nil {
		return err
	}
	return t.write(p, h, r)
}

// checkEntry reports whether the entry is a file or a link. Directories are made when a file below
// is written. Other kinds and links out of the tree are errors.
func checkEntry(p string, h *tar.Header) (file bool, err error) {
	if rest, ok := strings.CutPrefix(p, "usr/"); ok && mergeable(rest) {
		// The merged directories themselves: a directory, or the link that a usr-merged base-files
		// ships as lib → usr/lib.
		if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeSymlink && strings.TrimPrefix(h.Linkname, "/") == p {
			return false, nil
		}
		return false, fmt.Errorf("%w: %s is no directory", ErrUnsafe, p)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeLink:
		return true, nil
	case tar.TypeSymlink:
		return true, checkTarget(p, h.Linkname)
	case tar.TypeDir:
		return false, nil
	}
	return false, fmt.Errorf("%w: %s is of type %q (device, fifo or unknown)", ErrUnsafe, p, h.Typeflag)
}

// certificate adds a kept CA certificate to the bundle. It returns a reader of the entry's content
// from the start.
func (t *tree) certificate(p string, h *tar.Header, r io.Reader) (io.Reader, error) {
	if !strings.HasPrefix(p, caDir) || !strings.HasSuffix(p, ".crt") || h.Typeflag != tar.TypeReg || !t.keep(p) {
		return r, nil
	}
	if h.Size > 1<<20 || len(t.ca) > 16<<20 {
		return nil, fmt.Errorf("%w: %s is too large for a certificate", ErrUnsafe, p)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	t.ca = append(append(t.ca, bytes.TrimSpace(b)...), '\n')
	return bytes.NewReader(b), nil
}

// drop reports a file that keep refuses.
func (t *tree) drop(p string, h *tar.Header) {
	if d, ok := t.w.(Dropper); ok && h.Typeflag == tar.TypeReg {
		d.Dropped(p, h.Size)
	}
}

// again handles a path that an earlier package has: the first file is kept.
func (t *tree) again(name, p string, old, kind byte) error {
	if old == tar.TypeDir || old != kind {
		return fmt.Errorf("%w: %s comes twice, as different kinds", ErrUnsafe, p)
	}
	// Legitimate with Replaces. In practice it does not matter which of the two wins, but the
	// log says so.
	t.log.Warn("path is in two packages, the first is kept", "path", p, "package", name)
	return nil
}

// write writes a file or symlink and counts its size.
func (t *tree) write(p string, h *tar.Header, r io.Reader) error {
	// The reader bounds the archive's own bytes; a hole or a link turns few bytes into many.
	if t.size += h.Size; h.Size < 0 || t.size > t.limits.unpacked {
		return fmt.Errorf("%w: %s: %w", ErrUnsafe, p, errTooLarge)
	}
	if h.Typeflag == tar.TypeSymlink {
		t.kind[p] = tar.TypeSymlink
		return t.w.Symlink(p, h.Linkname, h.ModTime)
	}
	t.kind[p] = tar.TypeReg
	return t.w.File(p, h.FileInfo().Mode().Perm(), h.ModTime, r)
}

// parents refuses a directory p that leads through a symlink or file. With write it makes missing
// directories.
func (t *tree) parents(p string, mtime time.Time, write bool) error {
	if p == "." {
		return nil
	}
	if kind, ok := t.kind[p]; ok {
		if kind != tar.TypeDir {
			return fmt.Errorf("%w: %s is a directory in one place and no directory in another", ErrUnsafe, p)
		}
		return nil
	}
	if err := t.parents(path.Dir(p), mtime, write); err != nil || !write {
		return err
	}
	t.kind[p] = tar.TypeDir
	return t.w.Directory(p, 0o755, mtime)
}

// checkTarget refuses symlinks that climb above the tree's root. An absolute target stays inside
// the root of the sandbox.
func checkTarget(p, target string) error {
	if target == "" || strings.ContainsRune(target, 0) || len(target) >= 4096 {
		return fmt.Errorf("%w: symlink %s to %.200q", ErrUnsafe, p, target)
	}
	if !path.IsAbs(target) {
		if c := path.Join(path.Dir(p), target); c == ".." || strings.HasPrefix(c, "../") {
			return fmt.Errorf("%w: symlink %s to %.200q leaves the tree", ErrUnsafe, p, target)
		}
	}
	return nil
}

// alternatives are links that maintainer scripts make, path → target in the same directory, in
// order of preference.
func alternatives() [][2]string {
	return [][2]string{
		{"usr/bin/sh", "dash"},
		{"usr/bin/sh", "bash"},
		{"usr/bin/awk", "gawk"},
		{"usr/bin/awk", "mawk"},
		{"usr/bin/awk", "original-awk"},
	}
}

// finish writes the files of no single package: alternatives, the certificate bundle and the
// usr-merge links.
func (t *tree) finish() error {
	if err := t.alternatives(); err != nil {
		return err
	}
	if err := t.bundle(); err != nil {
		return err
	}
	return t.mergeLinks()
}

// alternatives writes the links of [alternatives] whose target exists.
func (t *tree) alternatives() error {
	for _, a := range alternatives() {
		if !t.over && t.kind[a[0]] == 0 && t.kind[path.Dir(a[0])+"/"+a[1]] != 0 && t.keep(a[0]) {
			t.kind[a[0]] = tar.TypeSymlink
			if err := t.w.Symlink(a[0], a[1], t.mtime); err != nil {
				return err
			}
		}
	}
	return nil
}

// bundle writes the certificates as one file, at both paths.
func (t *tree) bundle() error {
	if len(t.ca) == 0 {
		return nil
	}
	for _, p := range []string{"etc/ssl/certs/ca-certificates.crt", "usr/lib/ssl/cert.pem"} {
		if t.kind[p] != 0 {
			continue
		}
		if err := t.parents(path.Dir(p), t.mtime, true); err != nil {
			return err
		}
		t.kind[p] = tar.TypeReg
		if err := t.w.File(p, 0o644, t.mtime, bytes.NewReader(t.ca)); err != nil {
			return err
		}
	}
	return nil
}

// mergeLinks writes the usr-merge links. Since Debian 13 packages ship usr/lib64 themselves, so the
// existence of the directory decides, not a moved path.
func (t *tree) mergeLinks() error {
	if t.over {
		return nil
	}
	for i, top := range mergedTops() {
		if t.kind["usr/"+top] == 0 {
			if i >= 3 {
				continue
			}
			if err := t.parents("usr/"+top, t.mtime, true); err != nil {
				return err
			}
		}
		if err := t.w.Symlink(top, "usr/"+top, t.mtime); err != nil {
			return err
		}
	}
	return nil
}

// isFile reports whether a file or link is at p.
func (t *tree) isFile(p string) bool {
	return t.kind[p] != 0 && t.kind[p] != tar.TypeDir
}

// alternative makes a link to a file of the package itself.
func (t *tree) alternative(l alternative) error {
	link, err := clean(strings.TrimPrefix(l.link, "/"))
	if err != nil || link == "" {
		return nil //nolint:nilerr // a path that nothing can be at is no link to miss
	}
	target, err := clean(strings.TrimPrefix(l.target, "/"))
	if err != nil || !t.isFile(target) || t.kind[link] != 0 || !t.keep(link) {
		return nil //nolint:nilerr // as above
	}
	if rest, ok := strings.CutPrefix(link, "usr/"); ok && mergeable(rest) {
		return nil
	}
	if err := t.parents(path.Dir(link), t.mtime, true); err != nil {
		return err
	}
	t.kind[link] = tar.TypeSymlink
	return t.w.Symlink(link, "/"+target, t.mtime)
}

// alternative is a link that update-alternatives makes: absolute paths.
type alternative struct{ link, target string }

func (l alternative) valid() bool {
	return path.IsAbs(l.link) && path.IsAbs(l.target) && len(l.link) < 1024 && len(l.target) < 1024 && !strings.ContainsAny(l.link+l.target, "$\x00")
}
