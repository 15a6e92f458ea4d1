package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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

// hashFile returns size and digest of the content of f from its offset on.
func hashFile(f *os.File, buf []byte) (int64, Digest, error) {
	hash := sha256.New()
	n, err := io.CopyBuffer(hash, struct{ io.Reader }{f}, buf)
	return n, Digest(digestPrefix + hex.EncodeToString(hash.Sum(nil))), err
}

// isObject reports whether a file is one of the copies of an object.
func (k *disk) isObject(key string, ino uint64) bool {
	for n := 0; ; n++ {
		var st unix.Stat_t
		if unix.Fstatat(int(k.objects.Fd()), objectName(key, n), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
		if st.Ino == ino {
			return true
		}
	}
}

// objectLinks returns the number of links to a file of objects/ and its disk use in bytes; 0 if
// the file is missing.
func (k *disk) objectLinks(name string) (links uint64, bytes int64) {
	var st unix.Stat_t
	if unix.Fstatat(int(k.objects.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0, 0
	}
	return uint64(st.Nlink), st.Blocks * 512 //nolint:unconvert // 32 bits on arm64
}
