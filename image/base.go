package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Base finds the base environment that a template names ([template.ParseBase]), or builds it from
// Debian packages. An existing image is used while the specification is unchanged; to get Debian's
// updates, remove the image. Errors: [ErrUnknownBase], those of package debian, and the store's.
func (b *Builder) Base(ctx context.Context, name string, report func(Progress)) (*store.Image, error) {
	img, err := b.baseWith(ctx, name, template.SlimDefault, nil, report)
	return img, debianFault(err)
}

// baseWith is Base for a template's slim and keep.
func (b *Builder) baseWith(ctx context.Context, name string, slim template.Slim, keep []string, report func(Progress)) (*store.Image, error) {
	report = serial(report)
	ref, err := template.ParseBase(name)
	if err == nil && ref.Kind != template.BaseDebian {
		err = errors.New("only a template can use a foreign base")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownBase, err)
	}
	base, err := b.base(ref.Name)
	if err != nil {
		return nil, err
	}
	if slim != template.SlimDefault || len(keep) > 0 {
		own := *base
		own.Spec = base.Spec.slimmed(slim, keep)
		base = &own
	}
	hash := specHash("base", ref.Name, b.release(ref), base.Spec, nil)
	if img := b.find(basePrefix+ref.Name, hash); img != nil {
		return img, nil
	}
	unlock, err := b.lock(ctx, basePrefix+hash)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img := b.find(basePrefix+ref.Name, hash); img != nil {
		return img, nil // made during the wait
	}
	img, err := b.makeBase(ctx, base, ref, hash, report)
	if err != nil {
		return nil, fmt.Errorf("base environment %s: %w", name, err)
	}
	return img, nil
}

func (b *Builder) makeBase(ctx context.Context, base *Base, ref template.BaseRef, hash string, report func(Progress)) (*store.Image, error) {
	defer b.Store.Hold()()
	part, made, err := b.debian(ctx, ref.String(), ref.Release, base.Spec, report)
	if err != nil {
		return nil, err
	}
	version := part.Version
	if own, err := b.base(base.Name); err == nil && own != base { // distinct from the shared image of the base
		version += "-" + hash[:12]
	}
	config := Config{
		Base: ref.String(), Args: []string{"/bin/sh"}, Env: []string{systemPath}, Protocol: ProtocolNone,
		Labels:   map[string]string{LabelKind: KindBase, LabelSpec: hash},
		Packages: made.versions, PackageHashes: made.hashes,
	}

	if base.Finish == nil {
		config.LeftOut = made.slim.result()
		return b.put(ctx, basePrefix+base.Name, version, []store.Part{part}, config)
	}

	// Finish runs the base's programs, so the base must be linked first. The unfinished image has
	// no LabelSpec, so no build finds it. The next build removes an image that a crash left.
	unfinished := config
	unfinished.Labels = map[string]string{LabelKind: KindTools}
	raw, err := b.put(ctx, toolsPrefix+base.Name+"-unpacked", part.Version, []store.Part{part}, unfinished)
	if err != nil {
		return nil, err
	}
	defer b.removeUnfinished(context.WithoutCancel(ctx), ref.String())
	report(Progress{Step: "base", Name: base.Name, Message: "finish"})
	parts := []store.Part{part}
	err = b.stepIn(ref.Release, b.Store.Rootfs(raw.Digest), nil, nil, report, func(s *Step) error {
		s.LeavesOut = made.slim.leavesOut
		more, err := base.Finish(ctx, s)
		parts = append(parts, more...)
		return err
	})
	if err != nil {
		return nil, err
	}
	config.LeftOut = made.slim.result()
	img, err := b.put(ctx, basePrefix+base.Name, version, parts, config)
	if err == nil {
		report(Progress{Step: "base", Name: base.Name, Done: img.Size, Unit: UnitBytes, End: true})
	}
	return img, err
}

func (b *Builder) removeUnfinished(ctx context.Context, name string) {
	for _, img := range b.Store.Images() {
		c, err := ConfigOf(img)
		if err != nil || c.Base != name || c.Labels[LabelKind] != KindTools || c.Labels[LabelSpec] != "" {
			continue
		}
		if err := b.Store.RemoveImage(ctx, img.Digest); err != nil {
			b.log().WarnContext(ctx, "cannot remove an unfinished base", "image", img.Digest, "error", err)
		}
	}
}

// tools finds or builds a base's environment with further Debian packages, without dropping files.
// It starts from Debian, and not from the base, so that Finish may use tools.
func (b *Builder) tools(ctx context.Context, ref template.BaseRef, packages []string, report func(Progress)) (*store.Image, error) {
	base, err := b.base(ref.Name)
	if err != nil {
		return nil, err
	}
	packages = slices.Compact(slices.Sorted(slices.Values(packages)))
	// Packages that a base excludes from dependencies come if requested.
	left := slices.DeleteFunc(slices.Clone(base.Spec.Exclude), func(name string) bool { return slices.Contains(packages, name) })
	spec := BaseSpec{Roots: slices.Concat(base.Spec.Roots, packages), Exclude: left}
	hash := specHash("tools", base.Name, b.release(ref), spec, packages)
	name := toolsPrefix + base.Name + "-" + hash[:12]
	if img := b.find(name, hash); img != nil {
		return img, nil
	}
	unlock, err := b.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img := b.find(name, hash); img != nil {
		return img, nil
	}
	defer b.Store.Hold()()
	part, made, err := b.debian(ctx, "tools for "+ref.String(), ref.Release, spec, report)
	if err != nil {
		return nil, fmt.Errorf("tools %s for %s: %w", strings.Join(packages, ", "), ref, err)
	}
	img, err := b.put(ctx, name, part.Version, []store.Part{part}, Config{
		Base: ref.String(), Args: []string{"/bin/sh"}, Env: []string{systemPath}, Protocol: ProtocolNone,
		Labels:   map[string]string{LabelKind: KindTools, LabelSpec: hash},
		Packages: made.versions, PackageHashes: made.hashes,
	})
	if err != nil {
		return nil, err
	}
	report(Progress{Step: "base", Name: "tools for " + base.Name, Done: img.Size, Unit: UnitBytes, End: true})
	return img, nil
}

// madeOf describes the tree of a base environment.
type madeOf struct {
	versions map[string]string // by package
	hashes   map[string]string // "sha256:…" of the .deb, by package
	slim     *slimming         // the omissions
}

// debian unpacks spec.Roots with their dependencies, and the system's own files, into one tree.
func (b *Builder) debian(ctx context.Context, name, release string, spec BaseSpec, report func(Progress)) (part store.Part, made madeOf, err error) {
	if err := Offline(ctx, "base environment "+name); err != nil {
		return part, made, err
	}
	if b.Archive == nil {
		return part, made, errors.New("no Debian archive is configured")
	}
	slim, err := newSlimming(spec)
	if err != nil {
		return part, made, err
	}
	archive, err := b.Archive(release)
	if err != nil {
		return part, made, err
	}
	report(Progress{Step: "base", Name: name, Message: "resolve"})
	roots, err := spec.roots(ctx, archive)
	if err != nil {
		return part, made, err
	}
	packages, err := archive.Resolve(ctx, roots, spec.Exclude)
	if err != nil {
		return part, made, err
	}
	all, err := archive.Resolve(ctx, roots, nil)
	if err != nil {
		return part, made, err
	}
	made.versions, made.hashes = map[string]string{}, map[string]string{}
	for _, p := range packages {
		made.versions[p.Name], made.hashes[p.Name] = p.Version, "sha256:"+p.SHA256
	}
	w, err := b.Store.Create()
	if err != nil {
		return part, made, err
	}
	defer w.Abort()
	check := debian.CheckELF(w)
	err = archive.Unpack(ctx, packages, slim.over(check), slim.keep, func(pkg string, done, total int64) {
		report(Progress{Step: "base", Name: name, Message: pkg, Done: done, Total: total, Unit: UnitBytes})
	})
	if err != nil {
		return part, made, err
	}
	if err := check.Err(); err != nil {
		// The file may be an optional module, so the base may still be usable. The warning explains
		// a later failure.
		b.log().WarnContext(ctx, "files with a missing library", "base", name, "error", err)
		report(Progress{Step: "base", Name: name, Message: "warning: " + err.Error()})
	}
	if err := systemFiles(w); err != nil {
		return part, made, err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return part, made, err
	}
	for _, p := range all {
		if made.versions[p.Name] == "" {
			slim.left.Packages = append(slim.left.Packages, p.Name)
			slim.left.PackageBytes += p.InstalledSize
		}
	}
	slim.left.Apart = spec.Apart
	made.slim = slim
	return store.Part{Kind: "base", Name: name, Version: archive.Codename(), Tree: tree}, made, nil
}

// roots returns s.Roots, and the packages of s.Also that the archive has.
func (s BaseSpec) roots(ctx context.Context, archive Archive) ([]string, error) {
	roots := slices.Clone(s.Roots)
	for _, name := range s.Also {
		switch _, err := archive.Resolve(ctx, []string{name}, s.Exclude); {
		case err == nil:
			roots = append(roots, name)
		case !errors.Is(err, debian.ErrUnresolved):
			return nil, err
		}
	}
	return roots, nil
}

// systemFiles writes files that maintainer scripts and the installer would make.
func systemFiles(w debian.Writer) error {
	for _, f := range []struct{ path, content string }{
		{"etc/group", "root:x:0:\nfre:x:1000:\nnogroup:x:65534:\n"},
		{"etc/hostname", "localhost\n"},
		{"etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"},
		{"etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"},
		{"etc/passwd", "root:x:0:0:root:/work:/bin/sh\nfre:x:1000:1000:fre:/work:/bin/sh\nnobody:x:65534:65534:nobody:/work:/bin/sh\n"},
		{"etc/resolv.conf", ""}, // build steps with network mount the host's file here
	} {
		if err := w.File(f.path, 0o644, systemTime, strings.NewReader(f.content)); err != nil {
			return err
		}
	}
	return w.Symlink("etc/localtime", "/usr/share/zoneinfo/Etc/UTC", systemTime)
}

func specHash(kind, name, release string, spec BaseSpec, packages []string) string {
	text, err := json.Marshal([]any{layoutVersion, kind, name, release, spec, packages})
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// step calls f with a Step in the base environment.
func (b *Builder) step(of *buildOf, f func(*Step) error) error {
	if !of.t.ForeignBase() {
		return b.stepIn(of.release, b.Store.Rootfs(of.base.Digest), nil, of.dir, of.report, func(s *Step) error {
			s.Debian = of.debs
			return f(s)
		})
	}
	// Tools come from FRE's own bases.
	return b.stepIn("", b.Store.Rootfs(of.base.Digest), of.env, of.dir, of.report, func(s *Step) error {
		s.Platform = strings.TrimPrefix(string(of.base.Digest), "sha256:")[:12]
		return f(s)
	})
}

// stepIn calls f with a Step. The Step's scratch directory exists during the call, and its tools
// are of the given release.
func (b *Builder) stepIn(release, rootfs string, env []string, dir *os.Root, report func(Progress), f func(*Step) error) error {
	scratch, err := b.Store.MkdirScratch()
	if err != nil {
		return err
	}
	err = f(&Step{
		Rootfs: rootfs, Path: searchPath(env), Dir: dir, Store: b.Store, Run: guard{b.Run}, Settings: b.Settings, Report: report, Scratch: scratch,
		Tools: func(ctx context.Context, base string, packages ...string) (string, error) {
			img, err := b.tools(ctx, template.BaseRef{Name: base, Release: release}, packages, report)
			if err != nil {
				return "", err
			}
			return b.Store.Rootfs(img.Digest), nil
		},
	})
	return errors.Join(err, linux.RemoveAll(scratch))
}

// slimmed returns s changed by a template's slim and keep.
func (s BaseSpec) slimmed(slim template.Slim, keep []string) BaseSpec {
	switch slim {
	case template.SlimDefault:
	case template.SlimTrue:
		s.Exclude = slices.Concat(s.Exclude, s.Also, s.SlimExclude)
		s.Drop = slices.Concat(s.Drop, s.SlimDrop)
	case template.SlimFalse:
		s.Drop = documentation()
	}
	s.SlimExclude, s.SlimDrop = nil, nil
	s.Keep = slices.Compact(slices.Sorted(slices.Values(keep)))
	return s
}
