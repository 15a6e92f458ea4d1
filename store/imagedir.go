package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// sized is the disk use of an image's own files, for putImage.
type sized struct{ bytes, inodes int64 }

// stageImage builds the image's directory below tmp/, syncs, and returns the size of the
// directory without the objects, like ownSize.
func (k *disk) stageImage(ctx context.Context, entries []Entry, hidden map[string]bool, manifest []byte, name string) (own sized, err error) {
	dir, err := k.mkdirTmp(name)
	if err != nil {
		return own, err
	}
	defer dir.Close()
	if err := k.linkTree(ctx, int(dir.Fd()), entries); err != nil {
		return own, err
	}
	if err := k.linkHidden(int(dir.Fd()), hidden); err != nil {
		return own, err
	}
	if err := writeFileAt(int(dir.Fd()), "manifest.json", manifest); err != nil {
		return own, err
	}
	if err := k.syncfs(); err != nil {
		return own, err
	}
	return ownSizeOf(int(dir.Fd()), entries, len(hidden) > 0)
}

// linkTree makes rootfs below dir. Joining paths is safe here: this call has made every parent
// directory, and no other process can reach them.
func (k *disk) linkTree(ctx context.Context, dir int, entries []Entry) error {
	if err := unix.Mkdirat(dir, "rootfs", 0o700); err != nil {
		return fmt.Errorf("mkdir rootfs: %w", err)
	}
	root, err := openat(dir, "rootfs", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	fd := int(root.Fd())
	for i := range entries {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := k.linkEntry(fd, &entries[i]); err != nil {
			return fmt.Errorf("%s: %w", entries[i].Path, err)
		}
	}
	if err := setDirs(fd, entries); err != nil {
		return err
	}
	return setMeta(root, dir, "rootfs", &Entry{Mode: 0o755})
}

func (k *disk) linkEntry(root int, e *Entry) error {
	switch {
	case e.Kind == KindDir:
		return unix.Mkdirat(root, e.Path, 0o700)
	case e.Kind == KindSymlink:
		if err := unix.Symlinkat(e.Link, root, e.Path); err != nil {
			return err
		}
		return errors.Join(e.chown(root, e.Path), setMTime(root, e.Path, e.MTime))
	case e.Size == 0:
		f, err := openat(root, e.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(setMeta(f, root, e.Path, e), f.Close())
	default:
		return k.linkObject(e.key(), root, e.Path)
	}
}

// setDirs sets the metadata of directories, last and deepest first: adding entries changes the
// mtime of a directory.
func setDirs(fd int, entries []Entry) error {
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		if e.Kind != KindDir {
			continue
		}
		if err := e.chown(fd, e.Path); err != nil {
			return fmt.Errorf("chown %s: %w", e.Path, err)
		}
		if err := unix.Fchmodat(fd, e.Path, e.Mode, 0); err != nil {
			return fmt.Errorf("chmod %s: %w", e.Path, err)
		}
		if err := setMTime(fd, e.Path, e.MTime); err != nil {
			return fmt.Errorf("set mtime of %s: %w", e.Path, err)
		}
	}
	return nil
}

// linkHidden links the objects that the root does not show to hidden/KEY. So an object whose
// only link is in objects/ belongs to no image.
func (k *disk) linkHidden(dir int, keys map[string]bool) error {
	if len(keys) == 0 {
		return nil
	}
	if err := unix.Mkdirat(dir, hiddenName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("mkdir %s: %w", hiddenName, err)
	}
	d, err := openat(dir, hiddenName, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	for key := range keys {
		if err := k.linkObject(key, int(d.Fd()), key); err != nil {
			return err
		}
	}
	return nil
}

// linkMissingHidden is linkHidden for an image of an old version without hidden links, or of an
// Open that a crash interrupted. It logs damage and leaves the repair to Check. The caller
// syncs.
func (k *disk) linkMissingHidden(d Digest, m Manifest, tree func(Digest) (*Tree, error)) error {
	damaged := func(err error) {
		k.log.Error("image is damaged: fre system fsck says how", "image", d, "error", err)
	}
	_, hidden, err := merge(m, tree)
	if err != nil {
		damaged(err)
		return nil
	}
	dir, err := openat(int(k.images.Fd()), d.hex(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		defer dir.Close()
		for key := range hidden {
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), hiddenName+"/"+key, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				delete(hidden, key)
			}
		}
		err = k.linkHidden(int(dir.Fd()), hidden)
	}
	if errors.Is(err, fs.ErrNotExist) {
		damaged(err)
		return nil
	}
	return err
}

func (k *disk) renameImage(staged string, d Digest) error {
	if err := unix.Renameat(int(k.tmp.Fd()), staged, int(k.images.Fd()), d.hex()); err != nil {
		return fmt.Errorf("rename image %s: %w", d, err)
	}
	if err := k.failpoint("image renamed"); err != nil {
		return err
	}
	return k.images.Sync()
}

// moveToTmp takes an image directory away in one step.
func (k *disk) moveToTmp(name string) error {
	err := unix.Renameat(int(k.images.Fd()), name, int(k.tmp.Fd()), name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		k.removeTmp(name)
		err = unix.Renameat(int(k.images.Fd()), name, int(k.tmp.Fd()), name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("move image %s aside: %w", name, err)
	}
	return nil
}

// ownSizeOf is ownSize for an image just linked in dir: it does not stat files that are objects.
func ownSizeOf(dir int, entries []Entry, hidden bool) (own sized, err error) {
	add := func(path string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		own.bytes += st.Blocks * 512
		own.inodes++
		return nil
	}
	paths := []string{".", "rootfs", "manifest.json"}
	if hidden {
		paths = append(paths, hiddenName)
	}
	for _, path := range paths {
		if err := add(path); err != nil {
			return own, err
		}
	}
	for i := range entries {
		if e := &entries[i]; e.Kind != KindFile || e.Size == 0 {
			if err := add("rootfs/" + e.Path); err != nil {
				return own, err
			}
		}
	}
	return own, nil
}

// ownSize returns the disk use of an image without its linked objects: the directory dir, with
// rootfs, hidden and manifest.json.
func ownSize(dir string) (bytes, inodes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && (e.IsDir() || st.Nlink == 1) {
			bytes += st.Blocks * 512
			inodes++
		}
		return nil
	})
	return bytes, inodes, err
}
