package sandbox

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// secretsTarget is the mount point of newSecrets: every root has /run, so images need no change
// for secrets.
const secretsTarget = "/run"

// newSecrets returns an fd of a detached read-only mount with the secrets below secrets/,
// readable by one host id. The mount belongs to one sandbox and ends with it. A ramfs, unlike a
// tmpfs, is never written to swap space.
func newSecrets(all []Secret, uid, gid uint32) (_ int, err error) {
	mount, err := newMount("ramfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, [2]string{"mode", "0755"})
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(mount)
		}
	}()
	if err := unix.Mkdirat(mount, "secrets", 0o700); err != nil {
		return -1, fmt.Errorf("make /run/secrets: %w", err)
	}
	dir, err := unix.Openat(mount, "secrets", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /run/secrets: %w", err)
	}
	defer unix.Close(dir)
	for _, s := range all {
		if err := writeSecret(dir, s, uid, gid); err != nil {
			return -1, fmt.Errorf("write /run/secrets/%s: %w", s.Name, err)
		}
	}
	if err := errors.Join(unix.Fchmod(dir, 0o500), unix.Fchown(dir, int(uid), int(gid))); err != nil {
		return -1, fmt.Errorf("own /run/secrets: %w", err)
	}
	if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return -1, fmt.Errorf("mount_setattr /run: %w", err)
	}
	return mount, nil
}

func writeSecret(dir int, s Secret, uid, gid uint32) error {
	fd, err := unix.Openat(dir, s.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if n, err := unix.Write(fd, s.Value); err != nil || n != len(s.Value) {
		return errors.Join(err, fs.ErrInvalid)
	}
	return errors.Join(unix.Fchmod(fd, 0o400), unix.Fchown(fd, int(uid), int(gid)))
}
