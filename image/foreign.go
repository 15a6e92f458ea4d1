package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// mountedFiles must exist in every root beside its directories: the engine mounts files over them.
var mountedFiles = []string{"etc/hosts", "etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"}

// environmentOf is a build's knowledge of its base environment.
type environmentOf struct {
	image   *store.Image
	loaded  map[store.Digest]int // new images that this build loaded, and how often
	spec    string               // finds a loaded image again
	release string               // codename, for Debian packages; "" for the host's release
	digest  store.Digest         // the registry's digest, if from a registry
	debs    map[string]string    // installed Debian packages
	env     []string             // from an ordinary image's configuration
	left    *LeftOut             // by slimming, if FRE made the base
}

// foreign makes the base environment from an image that FRE did not build, or from a directory: its
// parts, and over them the mount points of a sandbox.
func (b *Builder) foreign(ctx context.Context, dir *os.Root, ref template.BaseRef, locked LockedBase, report func(Progress)) (*environmentOf, error) {
	e, err := b.findForeign(ctx, dir, ref, locked, report)
	if err != nil {
		var field *template.FieldError
		if errors.As(err, &field) {
			return nil, err
		}
		return nil, fmt.Errorf("base %s: %w", ref, err)
	}
	return e, nil
}

func (b *Builder) findForeign(ctx context.Context, dir *os.Root, ref template.BaseRef, locked LockedBase, report func(Progress)) (_ *environmentOf, err error) {
	if b.Images == nil && ref.Kind != template.BaseDir {
		return nil, errors.New("the engine does not accept foreign images")
	}
	var e environmentOf
	var from *store.Image
	var bring func() ([]*store.Image, error) // loads an image without a name
	version := ""
	switch ref.Kind {
	case template.BaseOCI:
		var pinned store.Digest
		if locked.Name == ref.String() {
			pinned = locked.Digest
		}
		if err := Offline(ctx, "the base oci:"+ref.Name); err != nil {
			return nil, err
		}
		// A build must not find an image that another caller's login brought: each build asks the
		// registry for permission.
		var name string
		if name, err = b.Images.Resolve(ctx, ref.Name, pinned); err != nil {
			return nil, err
		}
		if name == "" {
			from, e.digest, err = b.Images.Pull(ctx, ref.Name, pinned, report)
			break
		}
		_, version, _ = strings.Cut(name, "@sha256:")
		e.digest = store.Digest("sha256:" + version)
		e.spec = specHash("pulled", name, "", BaseSpec{}, nil)
		bring = func() ([]*store.Image, error) {
			img, err := b.Images.Take(ctx, name, report)
			return []*store.Image{img}, err
		}
	case template.BaseArchive, template.BaseLayout:
		open := archiveOf(ctx, dir, ref)
		if version, err = sumOf(ref, open); err != nil {
			return nil, err
		}
		e.spec = specHash("loaded", string(ref.Kind), version, BaseSpec{}, nil)
		bring = func() ([]*store.Image, error) {
			r, err := open()
			if err != nil {
				return nil, err
			}
			images, err := b.Images.Load(ctx, r, report)
			return images, errors.Join(err, r.Close())
		}
	case template.BaseDir:
		return b.directory(ctx, dir, ref, report)
	case template.BaseDebian:
		err = fmt.Errorf("%w: a base of packages", ErrUnknownBase)
	}
	if bring != nil {
		// Another build of the same base would find this build's image, which is removed.
		unlock, lockErr := b.lock(ctx, "loaded:"+e.spec)
		if lockErr != nil {
			return nil, lockErr
		}
		defer unlock()
		defer func() { err = errors.Join(err, b.removeLoaded(context.WithoutCancel(ctx), &e)) }()
		from, err = b.loadBase(ref, bring, &e)
	}
	if err != nil {
		return nil, err
	}
	c, err := ConfigOf(from)
	if err != nil {
		return nil, err
	}
	if c.Container == nil && c.Labels[LabelKind] != KindBase {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s is a function's image: name a base image", ref)}
	}
	parts := slices.DeleteFunc(slices.Clone(from.Parts), func(p store.Part) bool { return p.Kind == "config" })
	for i := range parts {
		parts[i].Kind = "base"
	}
	e.env, e.left = c.Env, c.LeftOut
	version = cmp.Or(version, strings.TrimPrefix(string(from.Digest), "sha256:"))[:12]
	err = b.finishForeign(ctx, &e, ref, version, b.Store.Rootfs(from.Digest), parts)
	return &e, err
}

// removeLoaded removes the images that were loaded for e; the base has their layers. An image that
// another caller loaded too stays.
func (b *Builder) removeLoaded(ctx context.Context, e *environmentOf) (err error) {
	for d, puts := range e.loaded {
		if gone := b.Store.RemovePut(ctx, d, puts); !errors.Is(gone, store.ErrInUse) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// archiveOf opens the archive of images that ref names.
func archiveOf(ctx context.Context, dir *os.Root, ref template.BaseRef) func() (io.ReadCloser, error) {
	if ref.Kind == template.BaseLayout {
		return func() (io.ReadCloser, error) { return packLayout(ctx, dir, ref.Name), nil }
	}
	return func() (io.ReadCloser, error) { return openRegular(dir, ref.Name) }
}

// sumOf returns the digest of an archive's bytes, by which its images are found again.
func sumOf(ref template.BaseRef, open func() (io.ReadCloser, error)) (string, error) {
	r, err := open()
	if err == nil {
		sum := sha256.New()
		_, err = io.Copy(sum, r)
		if err = errors.Join(err, r.Close()); err == nil {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s: no such file below the template's directory (%s)", ref, err)}
	}
	if err != nil && !ofHost(err) {
		err = &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s: %s", ref, whyUnread(err))}
	}
	return "", err
}

// loadBase finds the image of e.spec in the store, or calls bring.
func (b *Builder) loadBase(ref template.BaseRef, bring func() ([]*store.Image, error), e *environmentOf) (*store.Image, error) {
	before := map[store.Digest]bool{}
	for _, have := range b.Store.Images() {
		before[have.Digest] = true
		if !slices.ContainsFunc(have.Names, ReservedName) { // a foreign image may have any label
			continue
		}
		if c, err := ConfigOf(have); err == nil && c.Labels[LabelSpec] == e.spec && b.Store.Use(have.Digest) {
			return have, nil
		}
	}
	images, err := bring()
	if err != nil {
		return nil, err
	}
	e.loaded = map[store.Digest]int{}
	for _, img := range images {
		if !before[img.Digest] {
			e.loaded[img.Digest]++
		}
	}
	if len(images) != 1 {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s holds %d images: save only the base image", ref, len(images))}
	}
	return images[0], nil
}

// packLayout packs an OCI layout's directory into an archive, sorted by name, so that equal layouts
// give equal bytes.
func packLayout(ctx context.Context, dir *os.Root, name string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		w.CloseWithError(func() error {
			root, err := dir.OpenRoot(name)
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			tw := tar.NewWriter(w)
			err = fs.WalkDir(root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
				if err == nil {
					err = ctx.Err()
				}
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				f, err := openRegular(root, p)
				if err != nil {
					return err
				}
				defer func() { _ = f.Close() }()
				info, err := f.Stat()
				if err != nil {
					return err
				}
				if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: 0o644, Size: info.Size()}); err != nil {
					return err
				}
				_, err = io.Copy(tw, f)
				return err
			})
			return errors.Join(err, tw.Close())
		}())
	}()
	return r
}

// directory makes a base environment from the directory of a root file system.
func (b *Builder) directory(ctx context.Context, dir *os.Root, ref template.BaseRef, report func(Progress)) (*environmentOf, error) {
	root, err := dir.OpenRoot(ref.Name)
	if err != nil {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s: no such directory below the template's directory (%s)", ref, err)}
	}
	defer func() { _ = root.Close() }()
	report(Progress{Step: "base", Name: ref.String(), Message: "read"})
	w, err := b.Store.Create()
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	if err := w.AddDir(root, ""); err != nil {
		return nil, err
	}
	part := store.Part{Kind: "base", Name: ref.String()}
	if part.Tree, err = w.Commit(ctx); err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(string(part.Tree), "sha256:")[:12]
	unlock, err := b.lock(ctx, toolsPrefix+"dir-unpacked:"+version) // another build of the directory would share the image
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Link the tree once unchanged, to inspect it as a sandbox would see it.
	raw, err := b.put(ctx, toolsPrefix+"dir-unpacked", version, []store.Part{part}, Config{
		Base: ref.String(), Protocol: ProtocolNone, Labels: map[string]string{LabelKind: KindTools},
	})
	if err != nil {
		return nil, misplaced(ref, err)
	}
	var e environmentOf
	err = b.finishForeign(ctx, &e, ref, version, b.Store.Rootfs(raw.Digest), []store.Part{part})
	return &e, errors.Join(err, b.Store.RemoveImage(context.WithoutCancel(ctx), raw.Digest))
}

// finishForeign adds to parts, whose root is at rootfs, the files that a sandbox needs, and makes
// the base environment's image.
func (b *Builder) finishForeign(ctx context.Context, e *environmentOf, ref template.BaseRef, version, rootfs string, parts []store.Part) error {
	if err := checkMachine(rootfs); err != nil {
		return &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s: %s", ref, err)}
	}
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", rootfs, err)
	}
	defer unix.Close(root)
	w, err := b.Store.Create()
	if err != nil {
		return err
	}
	defer w.Abort()
	some := false
	for _, name := range append([]string{bootstrapPrefix + "/"}, mountedFiles...) { // a Compiler's steps mount the bootstrap there
		if isThere(root, name) {
			continue
		}
		some = true
		for dir := range parents(name) {
			if _, ok := w.Lookup(dir); !ok {
				if err := w.Directory(dir, 0o755, systemTime); err != nil {
					return err
				}
			}
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := w.File(name, 0o644, systemTime, bytes.NewReader(nil)); err != nil {
			return err
		}
	}
	if some {
		tree, err := w.Commit(ctx)
		if err != nil {
			return err
		}
		parts = append(parts, store.Part{Kind: "base", Name: "mount points", Tree: tree})
	}
	if e.debs, e.release, err = debianOf(root); err != nil {
		return err
	}
	config := Config{
		Base: ref.String(), Args: []string{"/bin/sh"}, Env: e.env, Protocol: ProtocolNone, Packages: e.debs,
		Labels: map[string]string{LabelKind: KindBase}, LeftOut: e.left,
	}
	if e.spec != "" {
		config.Labels[LabelSpec] = e.spec
	}
	e.image, err = b.put(ctx, basePrefix+string(ref.Kind)+"/"+slug(ref.Name), version, parts, config)
	return misplaced(ref, err)
}

// misplaced turns a conflict with FRE's own directories into a fault of the base.
func misplaced(ref template.BaseRef, err error) error {
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	return &template.FieldError{Field: "base", Message: fmt.Sprintf("base %s conflicts with a directory of every sandbox: %s", ref, err)}
}

// parents yields the directories above name, the topmost first.
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range name {
			if c == '/' && !yield(name[:i]) {
				return
			}
		}
	}
}

var unfit = lazyregexp.New(`[^a-z0-9]+`)

// slug turns s into a valid image name.
func slug(s string) string {
	s = strings.Trim(unfit.ReplaceAllString(strings.ToLower(s), "-"), "-")
	return cmp.Or(s[:min(len(s), 100)], "root")
}

// debianOf returns the Debian packages of a root, and its release; nothing for other roots.
func debianOf(root int) (map[string]string, string, error) {
	const most = 64 << 20
	status, err := readIn(root, "var/lib/dpkg/status", most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	installed, err := debian.ParseStatus(status)
	if err != nil {
		return nil, "", fmt.Errorf("var/lib/dpkg/status: %w", err)
	}
	text, err := readIn(root, "etc/os-release", 1<<16)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	release := ""
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			release = strings.Trim(value, `"'`)
		}
	}
	if !releasePattern.MatchString(release) {
		return nil, "", nil // not a release with a codename
	}
	return installed, release, nil
}

var releasePattern = lazyregexp.New(`^[a-z]{1,32}$`)

// readIn reads a file in root; symbolic links stay inside root.
func readIn(root int, name string, most int64) ([]byte, error) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, fmt.Errorf("read %s of the base: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("more than %s", template.FormatBytes(most))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of the base: %w", name, err)
	}
	return text, nil
}

// checkMachine checks, with one program of a root, that the root is for this machine.
func checkMachine(rootfs string) error {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", rootfs, err)
	}
	defer unix.Close(root)
	for _, name := range []string{"bin/sh", "usr/bin/env", "bin/busybox"} {
		fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err != nil {
			continue
		}
		f := os.NewFile(uintptr(fd), name)
		_, err = interpreters(f)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
		return nil
	}
	return nil // the root may hold a single program
}

// Interpreter is the program of a runtime, for bases that FRE did not make.
type Interpreter struct {
	Name string // "python3"
	// Version are arguments that print the version, and fail if the library lacks a part that the
	// bootstrap needs.
	Version []string
	Before  string // text before the version in the output: "Lua "
	Least   string // lowest version: "3.9"
}

// Interpreted is a Runtime that works with the interpreter of any base. On an image that FRE did
// not make, a build checks the interpreter's version.
type Interpreted interface {
	Runtime
	Interpreter() Interpreter
}

// interpret finds the program of a command line, meant for FRE's bases, along the PATH of a foreign
// base, and checks its version.
func (b *Builder) interpret(ctx context.Context, of *buildOf, runtime Runtime) (string, error) {
	args, _, err := runtime.Command(of.t)
	if err != nil {
		return "", err
	}
	program := args[0]
	if strings.HasPrefix(program, "/"+codePrefix+"/") || strings.HasPrefix(program, "/"+bootstrapPrefix+"/") {
		return program, nil
	}
	instead := fmt.Sprintf("name an image with the program, or a base of FRE's: %s", strings.Join(runtime.Bases(), " or "))
	rootfs := b.Store.Rootfs(of.base.Digest)
	found, err := lookPath(rootfs, path.Base(program), searchPath(of.env))
	if errors.Is(err, fs.ErrNotExist) {
		return "", &template.FieldError{Field: "base", Message: fmt.Sprintf("the runtime %s needs a program missing in the base %s: %s; %s", runtime.Name(), of.t.Base, err, instead)}
	}
	i, ok := runtime.(Interpreted)
	if err != nil || !ok {
		return found, err
	}
	want := i.Interpreter()
	var out bytes.Buffer
	err = b.Run.Run(ctx, Command{Rootfs: rootfs, Args: append([]string{found}, want.Version...), Env: of.env, Dir: "/", Stdout: &out, Stderr: &out})
	if err != nil {
		return "", &template.FieldError{Field: "base", Message: fmt.Sprintf("%s of the base %s cannot run the runtime %s: %s; %s",
			found, of.t.Base, runtime.Name(), strings.TrimSpace(cmp.Or(out.String(), err.Error())), instead)}
	}
	_, said, _ := strings.Cut(out.String(), want.Before)
	if got := versionIn(said); got == nil || slices.Compare(got, versionIn(want.Least)) < 0 {
		return "", &template.FieldError{Field: "base", Message: fmt.Sprintf("the runtime %s needs %s %s or newer, but the base %s has %q; %s",
			runtime.Name(), want.Name, want.Least, of.t.Base, strings.TrimSpace(out.String()), instead)}
	}
	return found, nil
}

var versionNumber = lazyregexp.New(`[0-9]{1,6}(\.[0-9]{1,6})*`)

// versionIn returns the numbers of the first version in a text.
func versionIn(text string) []int {
	var out []int
	for n := range strings.SplitSeq(versionNumber.FindString(text), ".") {
		if v, err := strconv.Atoi(n); err == nil {
			out = append(out, v)
		}
	}
	return out
}
