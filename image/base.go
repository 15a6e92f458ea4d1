package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
)

// Base environments and tool images live in the store as "base/NAME" and
// "tools/NAME-HASH": a function's id cannot hold a slash. Their version is the
// distribution's codename.
const (
	basePrefix  = "base/"
	toolsPrefix = "tools/"
)

// layoutVersion goes up when the builder itself places other files in a base.
const layoutVersion = 1

// systemPath is the PATH of base environments and build steps.
const systemPath = "PATH=/usr/local/bin:/usr/bin:/bin"

// systemTime is the time stamp of files the builder writes itself: the same
// input gives the same image.
var systemTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// Base finds the base environment of that name, or builds it out of Debian
// packages. It is found as long as the runtime asks for the same; to take in
// Debian's updates, remove the image. Errors: [ErrUnknownBase], those of
// package debian, and the store's.
func (b *Builder) Base(ctx context.Context, name string, report func(Event)) (*store.Image, error) {
	report = serial(report)
	runtime, err := b.runtime(name)
	if err != nil {
		return nil, err
	}
	spec := runtime.Base()
	hash := specHash("base", name, spec, nil)
	if img := b.find(basePrefix+name, hash); img != nil {
		return img, nil
	}
	unlock, err := b.lock(ctx, basePrefix+name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img := b.find(basePrefix+name, hash); img != nil {
		return img, nil // made while we waited
	}
	img, err := b.makeBase(ctx, runtime, spec, hash, report)
	if err != nil {
		return nil, fmt.Errorf("base environment %s: %w", name, err)
	}
	return img, nil
}

func (b *Builder) makeBase(ctx context.Context, runtime Runtime, spec BaseSpec, hash string, report func(Event)) (*store.Image, error) {
	defer b.Store.Hold()()
	part, packages, err := b.debian(ctx, runtime.Name(), spec, report)
	if err != nil {
		return nil, err
	}
	config := Config{
		Base: runtime.Name(), Args: []string{"/bin/sh"}, Env: []string{systemPath}, Protocol: ProtocolNone,
		Labels: map[string]string{LabelKind: KindBase, LabelSpec: hash}, Packages: packages,
	}

	// FinishBase runs the base's programs, so that it must be linked first. That
	// image has no LabelSpec: nobody finds it, and what a crash leaves of it the
	// next build removes.
	unfinished := config
	unfinished.Labels = map[string]string{LabelKind: KindTools}
	raw, err := b.put(ctx, toolsPrefix+runtime.Name()+"-unpacked", part.Version, []store.Part{part}, unfinished)
	if err != nil {
		return nil, err
	}
	defer b.removeUnfinished(context.WithoutCancel(ctx), runtime.Name())
	report(Event{Step: "base", Name: runtime.Name(), Message: "finish"})
	parts := []store.Part{part}
	err = b.step(b.Store.Rootfs(raw.Digest), b.tools, report, func(s *Step) error {
		more, err := runtime.FinishBase(ctx, s)
		parts = append(parts, more...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return b.put(ctx, basePrefix+runtime.Name(), part.Version, parts, config)
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

// tools finds or builds a base's environment with further Debian packages and
// nothing dropped. It starts from Debian again, so that FinishBase may use it.
func (b *Builder) tools(ctx context.Context, base string, packages []string, report func(Event)) (string, error) {
	runtime, err := b.runtime(base)
	if err != nil {
		return "", err
	}
	packages = slices.Compact(slices.Sorted(slices.Values(packages)))
	spec := BaseSpec{Roots: slices.Concat(runtime.Base().Roots, packages), Exclude: runtime.Base().Exclude}
	hash := specHash("tools", base, spec, packages)
	name := toolsPrefix + base + "-" + hash[:12]
	if img := b.find(name, hash); img != nil {
		return b.Store.Rootfs(img.Digest), nil
	}
	unlock, err := b.lock(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if img := b.find(name, hash); img != nil {
		return b.Store.Rootfs(img.Digest), nil
	}
	defer b.Store.Hold()()
	part, versions, err := b.debian(ctx, "tools for "+base, spec, report)
	if err != nil {
		return "", fmt.Errorf("tools %s for %s: %w", strings.Join(packages, ", "), base, err)
	}
	img, err := b.put(ctx, name, part.Version, []store.Part{part}, Config{
		Base: base, Args: []string{"/bin/sh"}, Env: []string{systemPath}, Protocol: ProtocolNone,
		Labels: map[string]string{LabelKind: KindTools, LabelSpec: hash}, Packages: versions,
	})
	if err != nil {
		return "", err
	}
	return b.Store.Rootfs(img.Digest), nil
}

// debian unpacks the closure of spec.Roots and the system's own files into one
// tree. It returns the packages' versions by name.
func (b *Builder) debian(ctx context.Context, name string, spec BaseSpec, report func(Event)) (store.Part, map[string]string, error) {
	if b.Archive == nil {
		return store.Part{}, nil, errors.New("no Debian archive is configured")
	}
	keep, err := debian.Keep(spec.Drop)
	if err != nil {
		return store.Part{}, nil, err
	}
	archive, err := b.Archive()
	if err != nil {
		return store.Part{}, nil, err
	}
	report(Event{Step: "base", Name: name, Message: "resolve"})
	packages, err := archive.Resolve(ctx, spec.Roots, spec.Exclude)
	if err != nil {
		return store.Part{}, nil, err
	}
	versions := map[string]string{}
	for _, p := range packages {
		versions[p.Name] = p.Version
	}
	w, err := b.Store.Create()
	if err != nil {
		return store.Part{}, nil, err
	}
	defer w.Abort()
	check := debian.CheckELF(w)
	err = archive.Unpack(ctx, packages, check, keep, func(pkg string, done, total int64) {
		report(Event{Step: "base", Name: name, Message: pkg, Done: done, Total: total})
	})
	if err != nil {
		return store.Part{}, nil, err
	}
	if err := check.Err(); err != nil {
		// It may be an optional module, so that the base can still be of use; whoever
		// finds that it is not is told why.
		b.log().WarnContext(ctx, "files that miss a library", "base", name, "error", err)
		report(Event{Step: "base", Name: name, Message: "warning: " + err.Error()})
	}
	if err := systemFiles(w); err != nil {
		return store.Part{}, nil, err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return store.Part{}, nil, err
	}
	return store.Part{Kind: "base", Name: name, Version: archive.Codename(), Tree: tree}, versions, nil
}

// systemFiles writes what maintainer scripts and the installer make elsewhere.
func systemFiles(w debian.Writer) error {
	for _, f := range []struct{ path, content string }{
		{"etc/group", "root:x:0:\nfre:x:1000:\nnogroup:x:65534:\n"},
		{"etc/hostname", "localhost\n"},
		{"etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"},
		{"etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"},
		{"etc/passwd", "root:x:0:0:root:/work:/bin/sh\nfre:x:1000:1000:fre:/work:/bin/sh\nnobody:x:65534:65534:nobody:/work:/bin/sh\n"},
		{"etc/resolv.conf", ""}, // build steps with network bind the host's over it
	} {
		if err := w.File(f.path, 0o644, systemTime, strings.NewReader(f.content)); err != nil {
			return err
		}
	}
	return w.Symlink("etc/localtime", "/usr/share/zoneinfo/Etc/UTC", systemTime)
}

func (b *Builder) put(ctx context.Context, name, version string, parts []store.Part, config Config) (*store.Image, error) {
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return b.Store.PutImage(ctx, store.Manifest{Name: name, Version: version, Parts: parts, Config: raw})
}

// find returns the newest image of that name made from the same spec, or nil.
func (b *Builder) find(name, hash string) *store.Image {
	for _, img := range b.Store.Images() {
		if img.Name != name {
			continue
		}
		if c, err := ConfigOf(img); err == nil && c.Labels[LabelSpec] == hash && b.Store.Use(img.Digest) {
			return img
		}
	}
	return nil
}

func specHash(kind, name string, spec BaseSpec, packages []string) string {
	text, err := json.Marshal([]any{layoutVersion, kind, name, spec, packages})
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
