package oci

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/store"
)

// Names that remove files: OCI image-spec, layer.md, "Whiteouts". Further names with the meta
// prefix are aufs' own and mean nothing here.
const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh."
)

// layerKey is the key of a layer's part in the store.
func layerKey(diff store.Digest) string { return "layer:" + string(diff) }

// unpack reads the archive r, packed or not, to the end and makes a layer of it. The caller holds
// the store. Errors: ErrLayer, ErrLimit, ErrArchive, and the errors of r and of the store.
func (j *job) unpack(ctx context.Context, r io.Reader) (store.Part, error) {
	plain, err := decompress(r, j.limits)
	if err != nil {
		return store.Part{}, err
	}
	defer plain.Close()
	w, err := j.store.CreateLayer()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()

	recipe, remove, err := j.scratchFile()
	if err != nil {
		return store.Part{}, err
	}
	defer remove()
	hash := sha256.New()
	rec, finish := newRecorder(io.TeeReader(plain, hash), recipe, func(n int64) error { return j.grow(0, n) })
	u := unpacker{job: j, w: w, rec: rec, tar: tar.NewReader(rec), skipped: map[string]bool{}, bare: map[string]bool{}, over: map[string][]string{}}
	if err := u.all(ctx); err != nil {
		return store.Part{}, err
	}
	// The digest covers the bytes after the end mark too.
	if _, err := io.Copy(io.Discard, rec); err != nil {
		return store.Part{}, err
	}
	if err := finish(); err != nil {
		return store.Part{}, err
	}
	final, removeFinal, err := j.finalRecipe(recipe, u.over)
	if err != nil {
		return store.Part{}, err
	}
	defer removeFinal()
	if err := w.Aside(recipePath, final); err != nil {
		return store.Part{}, err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return store.Part{}, err
	}
	diff := store.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil)))
	p := store.Part{Kind: "layer", Name: short(diff), Tree: tree, Diff: diff}
	return p, j.store.PutPart(ctx, layerKey(diff), p)
}

// finalRecipe returns the recipe, at its beginning: a redirected copy if later entries replaced
// contents.
func (j *job) finalRecipe(recipe *os.File, over map[string][]string) (_ *os.File, remove func(), err error) {
	if _, err := recipe.Seek(0, io.SeekStart); err != nil || len(over) == 0 {
		return recipe, func() {}, err
	}
	again, remove, err := j.scratchFile()
	if err != nil {
		return nil, nil, err
	}
	if err := redirect(recipe, again, over); err != nil {
		remove()
		return nil, nil, err
	}
	return again, remove, nil
}

type unpacker struct {
	*job
	w   *store.Writer
	rec *recorder
	tar *tar.Reader

	skipped map[string]bool     // paths of entries that no image keeps
	bare    map[string]bool     // files whose content the recipe does not take from the tree
	over    map[string][]string // by path: names of the kept contents that a later entry replaced
	aside   int                 // number of kept contents
	dirs    int                 // directories replaced by files or links
}

// maxReplacedDirs bounds the searches for entries below a directory: each search reads all entries.
const maxReplacedDirs = 100

// maxLinks is the number of symbolic links that a path may lead through (path_resolution(7)).
const maxLinks = 40

// resolve returns the path of an entry below the root, "" for the root. If the path leads through
// the layer's symlinks to directories, resolve follows them, as tar and docker do.
func (u *unpacker) resolve(name string) (string, error) {
	name, err := inside(name)
	for links := 0; err == nil; {
		at := strings.IndexByte(name, '/')
		for ; at >= 0; at = next(name, at) {
			e, ok := u.w.Lookup(name[:at])
			if !ok || e.Kind != store.KindSymlink {
				continue
			}
			if links++; links > maxLinks {
				return "", refuse("leads through more than %d symbolic links: make the layer without a cycle of links", maxLinks)
			}
			target := e.Link
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(name[:at]), target)
			}
			name = strings.TrimPrefix(path.Join(path.Clean("/"+target), name[at:]), "/")
			break
		}
		if at < 0 {
			return name, nil
		}
	}
	return "", err
}

// next returns the end of the path element after the element that ends at at; -1 after the last.
func next(name string, at int) int {
	i := strings.IndexByte(name[at+1:], '/')
	if i < 0 {
		return -1
	}
	return at + 1 + i
}

func (u *unpacker) all(ctx context.Context) error {
	for n := 0; ; n++ {
		if n%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return archiveError(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // git archive's comment
		}
		if err := u.entry(h); err != nil {
			return fmt.Errorf("%s: %w", clip(h.Name), archiveError(err))
		}
	}
}

func (u *unpacker) entry(h *tar.Header) error {
	// First, because the cost of resolving grows with the square of a path's elements.
	if len(h.Name) >= unix.PathMax {
		return refuse("a path of %d bytes is longer than %d: make the image with shorter paths", len(h.Name), unix.PathMax-1)
	}
	name, err := u.resolve(h.Name)
	if err != nil {
		return err
	}
	if err := u.enter(u.w, h, name); err != nil {
		return err
	}
	if name == "" {
		return checkRoot(h)
	}
	if done, err := u.whiteout(name); done || err != nil {
		return err
	}
	if err := u.replace(name, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	if kind := special[h.Typeflag]; kind != "" {
		u.warn(kind+" are left out: a sandbox has a private /dev, and programs create FIFOs", name)
		u.skipped[name] = true
		return nil
	}
	if err := u.own(h); err != nil {
		return err
	}
	u.leftBehind(h, name)
	return u.write(h, name)
}

// checkRoot refuses a root that is no directory.
func checkRoot(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return refuse("the root is not a directory")
	}
	return nil
}

// write writes a directory, file or link.
func (u *unpacker) write(h *tar.Header, name string) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return u.w.Directory(name, h.FileInfo().Mode(), h.ModTime)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(h, name)
	case tar.TypeSymlink:
		return u.w.Symlink(name, h.Linkname, h.ModTime)
	case tar.TypeLink:
		return u.link(name, h.Linkname)
	}
	return refuse("is neither a file, a directory nor a link (type %q)", h.Typeflag)
}

// whiteout handles the names that AUFS gave a meaning: removals, and its own files, which are left
// out. done is false for other names.
func (u *unpacker) whiteout(name string) (done bool, err error) {
	dir, base := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	switch {
	case base == whiteoutOpaque && dir == "":
		return true, refuse("removes all lower layers: start from an empty image instead")
	case base == whiteoutOpaque:
		return true, u.w.Opaque(dir)
	case strings.HasPrefix(name, whiteoutMeta), strings.Contains(name, "/"+whiteoutMeta):
		return true, nil
	case strings.HasPrefix(base, whiteoutPrefix):
		gone := base[len(whiteoutPrefix):]
		if gone == "" || gone == "." || gone == ".." {
			return true, refuse("a whiteout without a valid name: make the layer again with clean names")
		}
		return true, u.w.Whiteout(path.Join(dir, gone))
	}
	return false, nil
}

// link writes a hard link to a file of the layer.
func (u *unpacker) link(name, to string) error {
	target, err := u.resolve(to)
	if err != nil {
		return fmt.Errorf("hard link to %s: %w", clip(to), err)
	}
	if u.skipped[target] {
		u.skipped[name] = true
		return nil
	}
	u.bare[name] = true
	if e, ok := u.w.Lookup(target); !ok || e.Kind != store.KindFile && e.Kind != store.KindSymlink {
		return refuse("hard link to %s: no file of the layer", clip(to))
	}
	return u.w.Link(name, target)
}

// own sets the owner of the next entry.
func (u *unpacker) own(h *tar.Header) error {
	if h.Uid < 0 || h.Uid > store.MaxID || h.Gid < 0 || h.Gid > store.MaxID {
		return refuse("belongs to %d:%d: sandboxes have users and groups up to %d; chown it in the image", h.Uid, h.Gid, store.MaxID)
	}
	return u.w.SetOwner(uint32(h.Uid), uint32(h.Gid))
}

// special names the kinds of entries that images leave out.
var special = map[byte]string{tar.TypeChar: "devices", tar.TypeBlock: "devices", tar.TypeFifo: "fifos"}

// replace removes an earlier entry of the same path: the last entry counts. The tree keeps the
// earlier content aside, because the recipe needs it.
func (u *unpacker) replace(name string, dir bool) error {
	delete(u.skipped, name)
	old, twice := u.w.Lookup(name)
	if !twice || old.Kind == store.KindWhiteout || old.Kind == store.KindDir && dir {
		return nil
	}
	if old.Kind == store.KindDir {
		if u.dirs++; u.dirs > maxReplacedDirs {
			return refuse("more than %d directories are replaced by files: make the layer again", maxReplacedDirs)
		}
		for _, below := range u.w.Below(name) {
			if err := u.forget(below); err != nil {
				return err
			}
		}
	}
	return u.forget(name)
}

// forget removes an entry.
func (u *unpacker) forget(name string) error {
	if old, _ := u.w.Lookup(name); old.Kind == store.KindFile && old.Size > 0 && !u.bare[name] {
		u.aside++
		kept := fmt.Sprintf("%s-%d", replacedPath, u.aside)
		if err := u.w.KeepAside(name, kept); err != nil {
			return err
		}
		u.over[name] = append(u.over[name], kept)
	}
	delete(u.bare, name)
	u.w.Remove(name)
	return nil
}

func (u *unpacker) file(h *tar.Header, name string) error {
	if left := u.limits.Bytes - u.bytes.Load(); h.Size > left {
		return fmt.Errorf("%w of %d bytes", ErrLimit, u.limits.Bytes)
	}
	// The archive leaves out a sparse file's holes, so the recipe keeps the entry's bytes.
	if h.Size > 0 && !sparse(h) {
		u.rec.file(name)
		defer u.rec.rest()
	} else {
		u.bare[name] = true
	}
	return u.w.File(name, h.FileInfo().Mode(), h.ModTime, &counted{u.tar, u.job})
}

// leftBehind warns about attributes that sandboxes do not get.
func (u *unpacker) leftBehind(h *tar.Header, name string) {
	const setID = 0o6000
	if h.Mode&setID != 0 && h.Typeflag != tar.TypeDir {
		u.warn("set-user-id and set-group-id bits are dropped: no program gains rights in a sandbox", name)
	}
	for key := range h.PAXRecords {
		switch attr, ok := strings.CutPrefix(key, "SCHILY.xattr."); {
		case !ok:
		case attr == "security.capability":
			u.warn("file capabilities are dropped: start the program as root if needed", name)
		default:
			u.warn("extended attributes are dropped", name)
		}
	}
}
