package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// debsAtOnce is how many packages are fetched and unpacked at the same time.
const debsAtOnce = 4

// debExclude returns dependencies that packages need only for an installation, which FRE does not
// run.
func debExclude() []string {
	return []string{
		"dpkg", "debconf", "install-info", "sensible-utils", "ucf", "init-system-helpers", "base-files",
		"gcc-12-base", "gcc-13-base", "gcc-14-base", "media-types", "mime-support",
	}
}

// installDebs makes a part of each Debian package that packages.deb and libs request, and of each
// dependency that the base environment lacks.
func (b *Builder) installDebs(ctx context.Context, of *buildOf) ([]store.Part, error) {
	t := of.t
	if t.Packages.Of("deb").None() && len(t.Libs) == 0 {
		of.lock.Deb = nil
		return nil, nil
	}
	if t.Packages.Of("deb").File != "" {
		return nil, &template.FieldError{Field: "packages.deb", Message: "packages.deb is a list of Debian packages, not a file"}
	}
	const name = "deb"
	of.report(Progress{Step: "packages", Message: name})
	d := &debs{b: b, of: of}
	if of.lock.Deb == nil {
		if err := Offline(ctx, "an answer to packages.deb and libs"); err != nil {
			return nil, err
		}
		locked, err := d.resolve(ctx)
		if err != nil {
			return nil, err
		}
		of.lock.Deb = locked
	}
	parts := make([]store.Part, len(of.lock.Deb.Packages))
	var missing []int
	for i, p := range of.lock.Deb.Packages {
		part, ok := b.Store.Part(d.partKey(p))
		part.Hash = p.Hash
		if parts[i] = part; !ok {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		p := of.lock.Deb.Packages[missing[0]]
		if err := Offline(ctx, fmt.Sprintf("the Debian package %s %s", p.Name, p.Version)); err != nil {
			return nil, err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(debsAtOnce)
	for _, i := range missing {
		g.Go(func() (err error) {
			parts[i], err = d.unpack(gctx, of.lock.Deb.Packages[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, p := range of.lock.Deb.Packages {
		d.warn(p)
	}
	of.report(Progress{Step: "packages", Message: name, End: true})
	return parts, nil
}

// debs are the Debian packages of one build.
type debs struct {
	b  *Builder
	of *buildOf

	mu     sync.Mutex
	opened Archive // see archive; nil until needed
}

// archive opens the archive of the base's release.
func (d *debs) archive() (Archive, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened != nil {
		return d.opened, nil
	}
	if d.b.Archive == nil {
		return nil, errors.New("no Debian archive is configured")
	}
	if len(d.of.lock.Base.Packages) == 0 {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("the base %s has no Debian packages: packages.deb and libs need a Debian base", d.of.t.Base)}
	}
	var err error
	d.opened, err = d.b.Archive(d.of.release)
	return d.opened, err
}

// resolve finds the packages.
func (d *debs) resolve(ctx context.Context) (*LockedDeb, error) {
	t, installed := d.of.t, maps.Clone(d.of.lock.Base.Packages)
	a, err := d.archive()
	if err != nil {
		return nil, err
	}
	d.of.report(Progress{Step: "packages", Message: "resolve deb"})
	out := &LockedDeb{Request: t.Packages.Of("deb").Key(), Libs: t.Libs, Packages: []LockedDebPackage{}}
	add := func(list []debian.Package, libs bool) {
		for _, p := range list {
			out.Packages = append(out.Packages, LockedDebPackage{p.Name, p.Version, p.Architecture, "sha256:" + p.SHA256, libs})
			installed[p.Name] = p.Version
		}
	}
	list, err := a.ResolveOver(ctx, t.Packages.Of("deb").List, installed, debExclude())
	if err != nil {
		return nil, d.fault(err, "packages.deb")
	}
	add(list, false)
	if len(t.Libs) > 0 {
		root, err := unix.Open(d.b.Store.Rootfs(d.of.base.Digest), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the base environment: %w", err)
		}
		defer unix.Close(root)
		has := func(library string) bool {
			return slices.ContainsFunc(debian.LibraryDirs(), func(dir string) bool { return isThere(root, path.Join(dir, library)) })
		}
		list, err := a.ResolveLibraries(ctx, t.Libs, installed, debExclude(), has)
		if err != nil {
			return nil, d.fault(err, "libs")
		}
		add(slices.DeleteFunc(list, func(p debian.Package) bool {
			return slices.ContainsFunc(out.Packages, func(l LockedDebPackage) bool { return l.Name == p.Name })
		}), true)
	}
	return out, nil
}

// fault turns an error into a fault of the template's field, if the template can correct it.
func (d *debs) fault(err error, field string) error {
	switch {
	case errors.Is(err, debian.ErrInstalled):
		return &template.FieldError{Field: field, Message: fmt.Sprintf("%s: %s (the base environment and the archive differ in age: fre image rm %s:%s lets the next build make the base anew)", field, err, d.of.base.Name, d.of.base.Version)}
	case errors.Is(err, debian.ErrUnresolved):
		return &template.FieldError{Field: field, Message: fmt.Sprintf("%s: %s", field, err)}
	}
	return fmt.Errorf("%s: %w", field, err)
}

// unwanted returns the patterns of files to leave out of a package.
func (d *debs) unwanted() []string {
	if d.of.t.Slim == template.SlimFalse {
		return nil
	}
	return documentation()
}

// partKey returns the key of a package's part in the store.
func (d *debs) partKey(p LockedDebPackage) string {
	text, err := json.Marshal([]any{layoutVersion, p, d.unwanted(), d.of.t.Keep})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("deb:%s=%s:%s:%s", p.Name, p.Version, p.Architecture, hex.EncodeToString(sum[:16]))
}

// unpack makes the part of a package, as the lock pins it.
func (d *debs) unpack(ctx context.Context, p LockedDebPackage) (store.Part, error) {
	a, err := d.archive()
	if err != nil {
		return store.Part{}, err
	}
	pkg, err := a.Find(ctx, p.Name, p.Version)
	if err == nil && "sha256:"+pkg.SHA256 != p.Hash {
		err = fmt.Errorf("%w: the archive has %s %s with another hash than %s pins", debian.ErrHash, p.Name, p.Version, LockFile)
	}
	if err != nil {
		return store.Part{}, fmt.Errorf("packages.deb: %w (pinned in %s: delete the file to resolve again)", err, LockFile)
	}
	slim, err := newSlimming(BaseSpec{Drop: d.unwanted(), Keep: d.of.t.Keep})
	if err != nil {
		return store.Part{}, err
	}
	keep := slim.keep
	if p.Libs {
		keep = debian.IsLibrary
	}
	w, err := d.b.Store.Create()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()
	skipped, err := a.Extract(ctx, pkg, w, keep)
	if err != nil {
		return store.Part{}, err
	}
	part := store.Part{Kind: debKind, Name: p.Name, Version: p.Version, Hash: p.Hash}
	if part.Tree, err = w.Commit(ctx); err != nil {
		return store.Part{}, err
	}
	d.of.report(Progress{Step: "packages", Name: p.Name + " " + p.Version})
	if len(skipped) > 0 && !p.Libs { // a note for builds that find the part in the store
		note := store.Part{Kind: debKind, Name: strings.Join(skipped, ", "), Tree: part.Tree}
		if err := d.b.Store.PutPart(ctx, d.partKey(p)+skippedKey, note); err != nil {
			return store.Part{}, err
		}
	}
	return part, d.b.Store.PutPart(ctx, d.partKey(p), part)
}

// skippedKey ends the key of the note about programs that a package's installation would have run.
// Each build with the package reports the note, even if the part is in the store already.
const skippedKey = ":skipped"

func (d *debs) warn(p LockedDebPackage) {
	if note, ok := d.b.Store.Part(d.partKey(p) + skippedKey); ok {
		d.of.report(Progress{Step: "warning", Name: p.Name, Message: "FRE did not run the package's script " + note.Name + ": if the package needs the script, run it in code.build, or add the result to the code"})
	}
}

// isThere reports whether name is in the directory root; symbolic links stay inside root.
func isThere(root int, name string) bool {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}
