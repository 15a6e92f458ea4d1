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
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
)

// Images brings ordinary images into the store: package image/oci does, by way of
// the engine.
type Images interface {
	// Pull finds the image of a registry's reference in the store, or pulls it.
	// digest is what the registry calls it, pinned what it has to be called unless
	// empty.
	Pull(ctx context.Context, ref string, pinned store.Digest, report func(Event)) (img *store.Image, digest store.Digest, err error)

	// Resolve asks a registry, with the login that the build came with for it, what it
	// calls the image of a reference: "name@sha256:…". It is "" where the build came
	// without one, or has the image in the store by that name: Pull brings it then.
	Resolve(ctx context.Context, ref string, pinned store.Digest) (name string, err error)

	// Take pulls with that login what Resolve has named, and gives it no name.
	Take(ctx context.Context, name string, report func(Event)) (*store.Image, error)

	// Load reads an archive of images, which get no names.
	Load(ctx context.Context, r io.Reader, report func(Event)) ([]*store.Image, error)
}

// mountedFiles are what every root needs beside its directories: the engine places
// something over them.
var mountedFiles = []string{"etc/hosts", "etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"}

// environmentOf is what a build knows of its base environment.
type environmentOf struct {
	image   *store.Image
	loaded  map[store.Digest]int // images that this build has brought and nobody asked for, and how often
	spec    string               // what a loaded image is found by again
	release string               // codename, for Debian packages; "" for the host's own
	digest  store.Digest         // at the registry, where it came from one
	debs    map[string]string    // installed Debian packages
	env     []string             // of an ordinary image's configuration
	left    *LeftOut             // by slimming, where FRE made it
}

// foreign makes the base environment of an image that FRE did not build, or of a
// directory: its parts, and over them what a sandbox mounts something on.
func (b *Builder) foreign(ctx context.Context, dir *os.Root, ref BaseRef, locked LockedBase, report func(Event)) (*environmentOf, error) {
	e, err := b.findForeign(ctx, dir, ref, locked, report)
	if err != nil {
		var field *FieldError
		if errors.As(err, &field) {
			return nil, err
		}
		return nil, fmt.Errorf("base %s: %w", ref, err)
	}
	return e, nil
}

func (b *Builder) findForeign(ctx context.Context, dir *os.Root, ref BaseRef, locked LockedBase, report func(Event)) (_ *environmentOf, err error) {
	if b.Images == nil && ref.Kind != BaseDir {
		return nil, errors.New("this engine takes no images from elsewhere")
	}
	var e environmentOf
	var from *store.Image
	var bring func() ([]*store.Image, error) // an image that nobody asked for by a name
	version := ""
	switch ref.Kind {
	case BaseOCI:
		var pinned store.Digest
		if locked.Name == ref.String() {
			pinned = locked.Digest
		}
		if err := Offline(ctx, "the base oci:"+ref.Name); err != nil {
			return nil, err
		}
		// What came with one caller's login is found by no other's build: each has the
		// registry say that it may have it.
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
	case BaseArchive, BaseLayout:
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
	case BaseDir:
		return b.directory(ctx, dir, ref, report)
	case BaseDebian:
		err = fmt.Errorf("%w: it is made of packages", ErrUnknownBase)
	}
	if bring != nil {
		// Another build of the same would find this one's image, which goes with it.
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
		return nil, &FieldError{"base", fmt.Sprintf("base %s is a function's image: name one to build functions on", ref)}
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

// removeLoaded removes the images that were loaded for e: their layers are the
// base's. One that somebody else has loaded, too, is that one's.
func (b *Builder) removeLoaded(ctx context.Context, e *environmentOf) (err error) {
	for d, puts := range e.loaded {
		if gone := b.Store.RemovePut(ctx, d, puts); !errors.Is(gone, store.ErrInUse) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// archiveOf opens the archive of images that ref names.
func archiveOf(ctx context.Context, dir *os.Root, ref BaseRef) func() (io.ReadCloser, error) {
	if ref.Kind == BaseLayout {
		return func() (io.ReadCloser, error) { return packLayout(ctx, dir, ref.Name), nil }
	}
	return func() (io.ReadCloser, error) { return openRegular(dir, ref.Name) }
}

// sumOf is the digest of an archive's bytes, by which what is loaded of it is known.
func sumOf(ref BaseRef, open func() (io.ReadCloser, error)) (string, error) {
	r, err := open()
	if err == nil {
		sum := sha256.New()
		_, err = io.Copy(sum, r)
		if err = errors.Join(err, r.Close()); err == nil {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", &FieldError{"base", fmt.Sprintf("base %s: there is no such file below the template's directory (%s)", ref, err)}
	}
	if err != nil && !ofHost(err) {
		err = &FieldError{"base", fmt.Sprintf("base %s: %s", ref, whyUnread(err))}
	}
	return "", err
}

// loadBase finds the image that bring would bring by e.spec, or has it do that.
func (b *Builder) loadBase(ref BaseRef, bring func() ([]*store.Image, error), e *environmentOf) (*store.Image, error) {
	before := map[store.Digest]bool{}
	for _, have := range b.Store.Images() {
		before[have.Digest] = true
		if !slices.ContainsFunc(have.Names, ReservedName) { // one from elsewhere may have any label
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
		return nil, &FieldError{"base", fmt.Sprintf("base %s holds %d images: save the one to build on", ref, len(images))}
	}
	return images[0], nil
}

// packLayout is an OCI layout's directory as an archive, files by name, so that
// the same layout gives the same bytes.
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

// directory makes a base environment of a root file system's directory.
func (b *Builder) directory(ctx context.Context, dir *os.Root, ref BaseRef, report func(Event)) (*environmentOf, error) {
	root, err := dir.OpenRoot(ref.Name)
	if err != nil {
		return nil, &FieldError{"base", fmt.Sprintf("base %s: there is no such directory below the template's (%s)", ref, err)}
	}
	defer func() { _ = root.Close() }()
	report(Event{Step: "base", Name: ref.String(), Message: "read"})
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
	unlock, err := b.lock(ctx, toolsPrefix+"dir-unpacked:"+version) // another build of the same would use and remove it as well
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Linked once as it is, so that what it has can be looked at as in a sandbox.
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

// finishForeign adds to parts, whose root stands at rootfs, what a sandbox needs,
// and makes the base environment's image.
func (b *Builder) finishForeign(ctx context.Context, e *environmentOf, ref BaseRef, version, rootfs string, parts []store.Part) error {
	if err := checkMachine(rootfs); err != nil {
		return &FieldError{"base", fmt.Sprintf("base %s: %s", ref, err)}
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
	for _, name := range append([]string{bootstrapPrefix + "/"}, mountedFiles...) { // a Compiler's steps have the bootstrap there
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

// misplaced blames the base for what stands where FRE needs something else.
func misplaced(ref BaseRef, err error) error {
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	return &FieldError{"base", fmt.Sprintf("base %s has something else where every sandbox has a directory: %s", ref, err)}
}

// parents are the directories above name, the topmost first.
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range name {
			if c == '/' && !yield(name[:i]) {
				return
			}
		}
	}
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// slug is a name in the grammar of images' names.
func slug(s string) string {
	s = strings.Trim(unfit.ReplaceAllString(strings.ToLower(s), "-"), "-")
	return cmp.Or(s[:min(len(s), 100)], "root")
}

// debianOf reads what a root says of itself: the Debian packages it has, and of
// which release; nothing where it has none.
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
		return nil, "", nil // of no release that one could ask for
	}
	return installed, release, nil
}

var releasePattern = regexp.MustCompile(`^[a-z]{1,32}$`)

// readIn reads a file in the directory root, links followed as inside it.
func readIn(root int, name string, most int64) ([]byte, error) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, fmt.Errorf("read %s of the base: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("more than %s", formatBytes(most))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of the base: %w", name, err)
	}
	return text, nil
}

// checkMachine looks at one program of a root: whether it is for this machine.
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
	return nil // it may hold one program and nothing else
}

// Interpreter is the program that a runtime runs, in bases that FRE did not make.
type Interpreter struct {
	Name    string   // "python3"
	Version []string // arguments with which it prints its version, and fails without what the bootstrap needs of its library
	Before  string   // what it prints just before its version, where it may say more: "PHP "
	Least   string   // version: "3.9"
}

// Interpreted is a Runtime whose interpreter may be of any base: a build on an
// image that FRE did not make asks it for its version.
type Interpreted interface {
	Runtime
	Interpreter() Interpreter
}

// searchPath is the PATH of a base environment.
func searchPath(env []string) string {
	return strings.TrimPrefix(cmp.Or(last(env, "PATH="), systemPath), "PATH=")
}

// last is the last of env with that beginning, or "".
func last(env []string, prefix string) string {
	for _, v := range slices.Backward(env) {
		if strings.HasPrefix(v, prefix) {
			return v
		}
	}
	return ""
}

// lookPath finds the program name along PATH in the root at rootfs: its absolute
// path there. Errors: fs.ErrNotExist, which says where it was looked for.
func lookPath(rootfs, name, search string) (string, error) {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", rootfs, err)
	}
	defer unix.Close(root)
	for dir := range strings.SplitSeq(search, ":") {
		if p := path.Join(dir, name); path.IsAbs(p) && executable(root, p) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no program %s along %s: %w", name, search, fs.ErrNotExist)
}

// interpret fits a command line that is meant for FRE's own bases to another: the
// program is looked for along that one's PATH, and asked for its version.
func (b *Builder) interpret(ctx context.Context, of *buildOf, runtime Runtime) (string, error) {
	args, _, err := runtime.Command(of.t)
	if err != nil {
		return "", err
	}
	program := args[0]
	if strings.HasPrefix(program, "/"+codePrefix+"/") || strings.HasPrefix(program, "/"+bootstrapPrefix+"/") {
		return program, nil
	}
	instead := fmt.Sprintf("name an image that has it, or one of FRE's bases: %s", strings.Join(runtime.Bases(), " or "))
	rootfs := b.Store.Rootfs(of.base.Digest)
	found, err := lookPath(rootfs, path.Base(program), searchPath(of.env))
	if errors.Is(err, fs.ErrNotExist) {
		return "", &FieldError{"base", fmt.Sprintf("the runtime %s needs a program that the base %s does not have: %s; %s", runtime.Name(), of.t.Base, err, instead)}
	}
	i, ok := runtime.(Interpreted)
	if err != nil || !ok {
		return found, err
	}
	want := i.Interpreter()
	var out bytes.Buffer
	err = b.Run.Run(ctx, Command{Rootfs: rootfs, Args: append([]string{found}, want.Version...), Env: of.env, Dir: "/", Stdout: &out, Stderr: &out})
	if err != nil {
		return "", &FieldError{"base", fmt.Sprintf("%s of the base %s does not run what the runtime %s needs: %s; %s",
			found, of.t.Base, runtime.Name(), strings.TrimSpace(cmp.Or(out.String(), err.Error())), instead)}
	}
	_, said, _ := strings.Cut(out.String(), want.Before)
	if got := versionIn(said); got == nil || slices.Compare(got, versionIn(want.Least)) < 0 {
		return "", &FieldError{"base", fmt.Sprintf("the runtime %s needs %s %s or newer: that of the base %s says %q; %s",
			runtime.Name(), want.Name, want.Least, of.t.Base, strings.TrimSpace(out.String()), instead)}
	}
	return found, nil
}

var versionNumber = regexp.MustCompile(`[0-9]{1,6}(\.[0-9]{1,6})*`)

// versionIn are the numbers of the first version in what a program says.
func versionIn(text string) []int {
	var out []int
	for n := range strings.SplitSeq(versionNumber.FindString(text), ".") {
		if v, err := strconv.Atoi(n); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// withPath has env's PATH be that of a base environment, after the directories that
// a runtime has beside those of every base.
func withPath(env []string, base string) []string {
	theirs := strings.Split(base, ":")
	dirs := slices.DeleteFunc(strings.Split(searchPath(env), ":"), func(dir string) bool {
		return slices.Contains(theirs, dir) || slices.Contains(strings.Split(searchPath(nil), ":"), dir)
	})
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	return append(env, "PATH="+strings.Join(append(dirs, theirs...), ":"))
}

// under are env's variables that over does not set, and then over.
func under(env, over []string) []string {
	set := map[string]bool{}
	for _, v := range over {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	var out []string
	for _, v := range env {
		if name, _, ok := strings.Cut(v, "="); ok && !set[name] && !strings.HasPrefix(name, "FRE_") {
			out = append(out, v)
		}
	}
	return append(out, over...)
}
