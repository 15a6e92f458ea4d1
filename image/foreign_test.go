package image

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/store"
)

// otherMachine is the header of a program for a foreign processor.
func otherMachine(t *testing.T) string {
	t.Helper()
	h := make([]byte, 64)
	copy(h, elf.ELFMAG)
	h[elf.EI_CLASS], h[elf.EI_DATA], h[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	binary.LittleEndian.PutUint16(h[16:], uint16(elf.ET_EXEC))
	binary.LittleEndian.PutUint16(h[18:], uint16(elf.EM_VAX))
	binary.LittleEndian.PutUint32(h[20:], 1)
	binary.LittleEndian.PutUint16(h[52:], 64)
	return string(h)
}

// TestBaseDirectory: A function runs on a root file system beside its template.
func TestBaseDirectory(t *testing.T) {
	const script = "#!/bin/sh\n"
	for name, tt := range map[string]struct {
		files map[string]string
		links map[string]string
		want  []string // args
		deb   bool
		wrong string
	}{
		"interpreter along PATH": {
			files: map[string]string{"root/usr/local/bin/python3": script, "root/bin/sh": script, "root/etc/motd": "hi"},
			want:  []string{"/usr/local/bin/python3", "/opt/fre/bootstrap.py", "main.handle"},
		},
		"interpreter by a link": {
			files: map[string]string{"root/opt/py/bin/python3.12": script},
			links: map[string]string{"root/usr/bin/python3": "/opt/py/bin/python3.12"},
			want:  []string{"/usr/bin/python3", "/opt/fre/bootstrap.py", "main.handle"},
		},
		"no interpreter":                {files: map[string]string{"root/bin/sh": script}, wrong: "needs a program missing in the base dir:root: no program python3 along /usr/local/bin:"},
		"link that leads out":           {files: map[string]string{"root/bin/sh": script}, links: map[string]string{"root/usr/bin/python3": "../../../../../../../../usr/bin/env"}, wrong: "python3"},
		"no directory":                  {wrong: "no such directory"},
		"other machine":                 {files: map[string]string{"root/bin/sh": otherMachine(t)}, wrong: "program for EM_VAX"},
		"file in a mount point's place": {files: map[string]string{"root/work": "x", "root/usr/bin/python3": script}, wrong: "conflicts with a directory of every sandbox"},
		"not of Debian packages":        {files: map[string]string{"root/usr/bin/python3": script}, deb: true, wrong: "has no Debian packages"},
		"odd list of packages":          {files: map[string]string{"root/usr/bin/python3": script, "root/var/lib/dpkg/status": "x\n"}, wrong: "var/lib/dpkg/status: line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			template := "id: f\nbase: dir:root\nruntime: python\n"
			if tt.deb {
				template += "packages: {deb: [curl]}\n"
			}
			r := newRig(t, map[string]string{"fret.yaml": template, "main.py": "", ".freignore": "root\n"})
			r.write(t, tt.files)
			for link, target := range tt.links {
				link = filepath.Join(r.dir, link)
				if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(target, link)); err != nil {
					t.Fatal(err)
				}
			}
			img, lock, err := r.Build(t.Context(), r.root, nil)
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("got %v, want %q in it", err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := ConfigOf(img)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.Args, tt.want) || c.Parked != nil {
				t.Errorf("args %q, parked interpreter %+v, want %q and none: the engine visits parked interpreters", c.Args, c.Parked, tt.want)
			}
			if lock.Base.Name != "dir:root" || len(lock.Base.Packages) > 0 {
				t.Errorf("lock: %+v", lock.Base)
			}
			for _, base := range r.Store.Images() {
				if c, err := ConfigOf(base); err != nil || c.Labels[LabelKind] != KindBase {
					continue
				}
				for _, name := range append([]string{"opt/fre"}, mountedFiles...) {
					if _, err := os.Stat(filepath.Join(r.Store.Rootfs(base.Digest), name)); err != nil {
						t.Errorf("nothing to mount on: %v", err)
					}
				}
			}
			again, _, err := r.Build(t.Context(), r.root, nil)
			if err != nil || again.Digest != img.Digest {
				t.Errorf("built again: %v, %v, want %s", again, err, img.Digest)
			}
		})
	}
}

// TestBaseVersion: The build finds an interpreter that is too old.
func TestBaseVersion(t *testing.T) {
	for said, wrong := range map[string]string{
		"Python 3.12.1\n": "",
		"Picked up 3 options\nPython 3.9.0 of 2020\n": "",
		"Python 3.8.20\n":         "needs python3 3.9 or newer, but the base dir:root has \"Python 3.8.20\"; name an image with the program",
		"no such option 12\n":     "needs python3 3.9 or newer",
		"No module named '_json'": "python3 of the base dir:root cannot run the runtime python: No module named '_json'; name",
	} {
		r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: dir:root\nruntime: python\n", "main.py": "", "root/usr/bin/python3": "#!/bin/sh\n"})
		r.Run = says(said)
		r.Runtimes = []Runtime{interpreted{tinyPython{"python"}}}
		_, _, err := r.Build(t.Context(), r.root, nil)
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: got %v, want %q in it", said, err, wrong)
		}
	}
}

type says string

func (s says) Run(_ context.Context, c Command) error {
	_, err := c.Stdout.Write([]byte(s))
	if strings.HasPrefix(string(s), "No ") {
		err = errors.Join(err, &ExitError{Args: c.Args, Status: 1})
	}
	return err
}

type interpreted struct{ tinyPython }

func (interpreted) Interpreter() Interpreter {
	return Interpreter{Name: "python3", Version: []string{"--version"}, Before: "Python ", Least: "3.9"}
}

// archives loads images from lists of words: an image for each word; a word without a colon is a
// function's image.
type archives struct{ *store.Store }

func (archives) Pull(context.Context, string, store.Digest, func(Progress)) (*store.Image, store.Digest, error) {
	return nil, "", errors.ErrUnsupported
}

func (archives) Resolve(context.Context, string, store.Digest) (string, error) { return "", nil }

func (archives) Take(context.Context, string, func(Progress)) (*store.Image, error) {
	return nil, errors.ErrUnsupported
}

func (a archives) Load(ctx context.Context, r io.Reader, _ func(Progress)) (images []*store.Image, err error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	for word := range strings.FieldsSeq(string(text)) {
		w, err := a.Create()
		if err != nil {
			return nil, err
		}
		defer w.Abort()
		if err := w.File("usr/bin/python3", 0o755, systemTime, strings.NewReader("#!"+word)); err != nil {
			return nil, err
		}
		tree, err := w.Commit(ctx)
		if err != nil {
			return nil, err
		}
		config := `{"container":{}}`
		if !strings.Contains(word, ":") {
			config = "{}"
		}
		img, err := a.PutImage(ctx, store.Manifest{Parts: []store.Part{{Kind: "layer", Tree: tree}}, Config: []byte(config)})
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}

// TestBaseArchive: A base's archive gives only the base: a failed build leaves none of its images,
// and builds at the same time do not disturb each other.
func TestBaseArchive(t *testing.T) {
	r := newRig(t, nil)
	r.Images = archives{r.Store}
	build := func(archive string) error {
		dir := t.TempDir()
		for name, text := range map[string]string{"fret.yaml": "id: f\nbase: archive:base.tar\nruntime: python\n", "main.py": "", ".freignore": "*.tar\n", "base.tar": archive} {
			file := filepath.Join(dir, name)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return err
			}
			if err := os.Chtimes(file, time.Time{}, time.Unix(1, 0)); err != nil {
				return err
			}
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		_, _, err = r.Build(t.Context(), root, nil)
		return err
	}
	names := func() []string {
		var out []string
		for _, img := range r.Store.Images() {
			out = append(out, strings.Join(img.Names, " "))
		}
		return out
	}
	for archive, want := range map[string]string{"a:1 b:1 a:1": "holds 3 images", "": "holds 0 images", "function": "is a function's image"} {
		if err := build(archive); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q in it", archive, err, want)
		}
		if left := names(); len(left) > 0 {
			t.Errorf("%q has left %q", archive, left)
		}
	}
	var g errgroup.Group
	for range 8 {
		g.Go(func() error { return build("base:1") })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if got := names(); len(got) != 2 || slices.Contains(got, "") {
		t.Errorf("images %q, want the function and its base", got)
	}

	// A foreign image may claim to be the base.
	w, err := r.Store.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	tree, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("wanted:1"))
	config, err := json.Marshal(Config{Labels: map[string]string{LabelKind: KindBase, LabelSpec: specHash("loaded", "archive", hex.EncodeToString(sum[:]), BaseSpec{}, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Store.PutImage(t.Context(), store.Manifest{Name: "evil", Version: "1", Parts: []store.Part{{Kind: "base", Tree: tree}}, Config: config}); err != nil {
		t.Fatal(err)
	}
	if err := build("wanted:1"); err != nil {
		t.Errorf("beside an image that says it is the one: %v", err)
	}

	// An image that a user loaded stays.
	mine, err := archives{r.Store}.Load(t.Context(), strings.NewReader("mine:1"), nil)
	if err == nil {
		err = build("mine:1")
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Store.Image(string(mine[0].Digest)); err != nil {
		t.Error(err)
	}
}

// private serves the images of a registry that asks for a login.
type private struct {
	archives
	taken *[]string
}

type loginKey struct{}

func (private) Pull(context.Context, string, store.Digest, func(Progress)) (*store.Image, store.Digest, error) {
	return nil, "", fs.ErrPermission
}

func (private) Resolve(ctx context.Context, ref string, _ store.Digest) (string, error) {
	if ctx.Value(loginKey{}) == nil {
		return "", nil
	}
	name, _, _ := strings.Cut(ref, ":")
	return name + "@" + hashA, nil
}

func (p private) Take(ctx context.Context, name string, report func(Progress)) (*store.Image, error) {
	*p.taken = append(*p.taken, name)
	images, err := p.Load(ctx, strings.NewReader("private:1"), report)
	if err != nil {
		return nil, err
	}
	return images[0], nil
}

// TestBaseLogin: A base pulled with a login is open only to users whom the registry admits at each
// build.
func TestBaseLogin(t *testing.T) {
	r := newRig(t, nil)
	var taken []string
	r.Images = private{archives{r.Store}, &taken}
	build := func(ctx context.Context, base string, lock *Lock) (*store.Image, *Lock, error) {
		dir := t.TempDir()
		for name, text := range map[string]string{"fret.yaml": "id: f\nbase: oci:" + base + "\nruntime: python\n", "main.py": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(filepath.Join(dir, name), systemTime, systemTime); err != nil {
				t.Fatal(err)
			}
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if lock != nil {
			if err := WriteLock(root, lock); err != nil {
				t.Fatal(err)
			}
		}
		return r.Build(ctx, root, nil)
	}
	ann := context.WithValue(t.Context(), loginKey{}, "ann")
	img, lock, err := build(ann, "app:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if lock.Base.Digest != store.Digest(hashA) {
		t.Errorf("locked %+v", lock.Base)
	}
	for range 2 {
		again, _, err := build(ann, "app:1", lock)
		if err != nil || again.Digest != img.Digest || len(taken) != 1 {
			t.Errorf("with a login again: %v, image %v, want %s; taken %q", err, again, img.Digest, taken)
		}
	}
	for name, lock := range map[string]*Lock{"unlocked": nil, "locked": lock} {
		if _, _, err := build(t.Context(), "app:1", lock); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s, without a login: got %v", name, err)
		}
	}
	// An image in another repository does not count.
	if _, _, err := build(ann, "other:1", nil); err != nil || !slices.Equal(taken, []string{"app@" + hashA, "other@" + hashA}) {
		t.Errorf("another repository: %v, taken %q", err, taken)
	}
	for _, img := range r.Store.Images() {
		if c, err := ConfigOf(img); err != nil || c.Container != nil {
			t.Errorf("the pulled image stays: %v, %v", img.Names, err)
		}
	}
}

// Two builds on one directory at once do not disturb each other.
func TestBaseDirectoryAtOnce(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: dir:root\nruntime: python\n", "main.py": "", ".freignore": "root\n", "root/usr/bin/python3": "#!/bin/sh\n"})
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			_, _, err := r.Build(t.Context(), r.root, nil)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
