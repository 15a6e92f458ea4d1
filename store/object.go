package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// key returns the name of the file's object. Hard links share metadata, so the key covers mode,
// owner and mtime as well as content: Python ignores bytecode if its source's mtime differs. The
// store keeps no extended attributes.
func (e *Entry) key() string {
	b := make([]byte, 0, 128)
	b = append(b, "fre object 1\n"...)
	b = append(b, e.Digest.hex()...)
	b = append(b, '\n')
	b = strconv.AppendUint(b, uint64(e.Mode), 8)
	for _, id := range []uint32{e.UID, e.GID} {
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	b = append(b, ' ')
	b = strconv.AppendInt(b, e.MTime, 10)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// hasObject reports whether the entry has an object. Empty files have none: each image has its
// own.
func (e *Entry) hasObject() bool { return e.Kind == KindFile && e.Size > 0 }

// objectName returns the name below objects/ of a key's n-th copy.
func objectName(key string, n int) string {
	if n == 0 {
		return key[:2] + "/" + key
	}
	return key[:2] + "/" + key + "." + strconv.Itoa(n)
}

// parseObjectName is the inverse of objectName for the last path element; ok is false if name is
// not the name of an object.
func parseObjectName(name string) (key string, n int, ok bool) {
	key, tail, copied := strings.Cut(name, ".")
	if copied {
		var err error
		if n, err = strconv.Atoi(tail); err != nil || n < 1 || n > maxCopies {
			return "", 0, false
		}
	}
	return key, n, len(key) == 2*sha256.Size && isHex(key)
}

// maxCopies is more than any store needs: a file system has at most 2^32 inodes,
// and each copy takes thousands of links.
const maxCopies = 1 << 20

// linkObject links the object of key to name below the directory fd. A file system limits the
// links of a file (65,000 on ext4). At the limit linkObject makes a further copy: key.1, key.2,
// …
func (k *disk) linkObject(key string, dir int, name string) error {
	for n := k.copies.firstFree(key); ; {
		err := k.linkat(int(k.objects.Fd()), objectName(key, n), dir, name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EMLINK):
			n++
			k.copies.setFull(key, n)
		case errors.Is(err, unix.ENOENT) && n > 0:
			if err := k.copyObject(key, n); err != nil {
				return fmt.Errorf("copy object %s: %w", key, err)
			}
		default:
			return fmt.Errorf("link object %s to %s: %w", key, name, err)
		}
	}
}

// linkat is link(2) with the lower limit that tests may set.
func (k *disk) linkat(oldDir int, oldName string, newDir int, newName string) error {
	if k.linkLimit > 0 {
		var st unix.Stat_t
		if err := unix.Fstatat(oldDir, oldName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if uint64(st.Nlink) >= k.linkLimit { //nolint:unconvert // 32 bits on arm64
			return unix.EMLINK
		}
	}
	return unix.Linkat(oldDir, oldName, newDir, newName, 0)
}

// enterObject links a durable staged file as the object of key. An existing object has the same
// content, so it stays.
func (k *disk) enterObject(key string, dir int, name string) error {
	root := int(k.objects.Fd())
	err := unix.Linkat(dir, name, root, objectName(key, 0), 0)
	if errors.Is(err, unix.ENOENT) { // objects/ab is made when first needed
		if err := unix.Mkdirat(root, key[:2], 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("mkdir objects/%s: %w", key[:2], err)
		}
		err = unix.Linkat(dir, name, root, objectName(key, 0), 0)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("enter object %s: %w", key, err)
	}
	return nil
}

// copyObject makes the n-th copy of an object, durable before it gets its name.
func (k *disk) copyObject(key string, n int) error {
	root := int(k.objects.Fd())
	src, err := openat(root, objectName(key, 0), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	tmp := "copy-" + key + "." + strconv.Itoa(n) + "-" + strconv.FormatUint(k.serial.Add(1), 10)
	tmpFD := int(k.tmp.Fd())
	dst, err := openat(tmpFD, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Unlinkat(tmpFD, tmp, 0) }()
	_, err = io.Copy(dst, src)
	if err == nil {
		err = setMeta(dst, tmpFD, tmp, &Entry{Mode: st.Mode & 0o777, MTime: st.Mtim.Sec, UID: st.Uid, GID: st.Gid})
	}
	if err == nil {
		err = dst.Sync()
	}
	if err := errors.Join(err, dst.Close()); err != nil {
		return err
	}
	err = unix.Linkat(tmpFD, tmp, root, objectName(key, n), 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// setMeta gives the open file f the owner, mode and mtime of e. f is name below dir, and this
// process has created it.
func setMeta(f *os.File, dir int, name string, e *Entry) error {
	// chown before chmod: chown may clear mode bits.
	if err := e.chown(dir, name); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), e.Mode); err != nil {
		return err
	}
	return setMTime(dir, name, e.MTime)
}

// chown gives name below dir, which this process has created, the owner of e. Files of root
// belong to the user that the engine runs as.
func (e *Entry) chown(dir int, name string) error {
	if e.UID == 0 && e.GID == 0 {
		return nil
	}
	return unix.Fchownat(dir, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW)
}

func setMTime(dir int, name string, mtime int64) error {
	t := unix.Timespec{Sec: mtime}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

// openat opens name below dir, never through a symlink, close-on-exec.
func openat(dir int, name string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

// hashFile returns size and digest of the content of f from its offset on.
func hashFile(f *os.File, buf []byte) (int64, Digest, error) {
	hash := sha256.New()
	n, err := io.CopyBuffer(hash, struct{ io.Reader }{f}, buf)
	return n, Digest(digestPrefix + hex.EncodeToString(hash.Sum(nil))), err
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
