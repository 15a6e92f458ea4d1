package linux

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/quota.h, linux/dqblk_xfs.h and linux/fs.h.
const (
	qGetQuota = 0x800007
	qSetQuota = 0x800008
	qXGetStat = 'X'<<8 + 5

	prjQuota = 2

	qifBlockLimits = 1
	qifInodeLimits = 4

	quotaProjectEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD

	fsIocGetXattr       = 0x801c581f
	fsIocSetXattr       = 0x401c5820
	xflagProjectInherit = 0x200
)

// ProjectQuota is the usage and the limits of one project on a file system.
type ProjectQuota struct {
	Bytes, Inodes         int64 // in use; Bytes are those of disk blocks, including data not yet written
	ByteLimit, InodeLimit int64 // 0: unlimited
}

// dqblk is struct if_dqblk.
type dqblk struct {
	byteHard, byteSoft, bytes    uint64 // limits in units of 1024 bytes
	inodeHard, inodeSoft, inodes uint64
	byteTime, inodeTime          uint64
	valid                        uint32
	_                            uint32
}

// quotactlFD is quotactl_fd(2), which needs no path to a block device (Linux 5.14).
func quotactlFD(fd, cmd int, id uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(cmd<<8|prjQuota), uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// EnforcesProjectQuota reports whether the file system of an open file enforces the limits of
// projects. The error is ENOSYS if the kernel or the file system has no quotas.
func EnforcesProjectQuota(fd int) (bool, error) {
	var stat struct { // fs_quota_stat
		version int8
		flags   uint16
		_       [96]byte
	}
	if err := quotactlFD(fd, qXGetStat, 0, unsafe.Pointer(&stat)); err != nil {
		return false, fmt.Errorf("state of project quotas: %w", err)
	}
	return stat.flags&quotaProjectEnforced != 0, nil
}

// GetProjectQuota reads the usage and the limits of a project on the file system of an open
// file, by one system call.
func GetProjectQuota(fd int, id uint32) (ProjectQuota, error) {
	var q dqblk
	if err := quotactlFD(fd, qGetQuota, id, unsafe.Pointer(&q)); err != nil {
		return ProjectQuota{}, fmt.Errorf("quota of project %d: %w", id, err)
	}
	return ProjectQuota{
		Bytes: int64(q.bytes), Inodes: int64(q.inodes),
		ByteLimit: int64(q.byteHard) << 10, InodeLimit: int64(q.inodeHard),
	}, nil
}

// SetProjectQuota sets the limits of a project on the file system of an open file; 0 means
// unlimited. Bytes are rounded up to whole KiB. On ext4 the limits do not bind processes with
// CAP_SYS_RESOURCE in the first user namespace.
func SetProjectQuota(fd int, id uint32, bytes, inodes int64) error {
	q := dqblk{byteHard: uint64(bytes+1023) >> 10, inodeHard: uint64(inodes), valid: qifBlockLimits | qifInodeLimits}
	if err := quotactlFD(fd, qSetQuota, id, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d: %w", id, err)
	}
	return nil
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// Project returns the project of an open file. inherits reports whether new files in an open
// directory inherit the project.
func Project(fd int) (id uint32, inherits bool, err error) {
	var x fsxattr
	if err := ioctl(fd, fsIocGetXattr, unsafe.Pointer(&x)); err != nil {
		return 0, false, fmt.Errorf("project of a file: %w", err)
	}
	return x.project, x.flags&xflagProjectInherit != 0, nil
}

// SetProject assigns an open file to a project. With inherit, new files in an open directory
// inherit the project.
func SetProject(fd int, id uint32, inherit bool) error {
	var x fsxattr
	if err := ioctl(fd, fsIocGetXattr, unsafe.Pointer(&x)); err != nil {
		return fmt.Errorf("project of a file: %w", err)
	}
	x.project = id
	x.flags &^= xflagProjectInherit
	if inherit {
		x.flags |= xflagProjectInherit
	}
	if err := ioctl(fd, fsIocSetXattr, unsafe.Pointer(&x)); err != nil {
		return fmt.Errorf("set project of a file: %w", err)
	}
	return nil
}

// ext4ResizeFS is EXT4_IOC_RESIZE_FS.
const ext4ResizeFS = 0x40086610

// ResizeExt4 grows the mounted ext4 of an open file to a number of blocks.
func ResizeExt4(fd int, blocks uint64) error {
	if err := ioctl(fd, ext4ResizeFS, unsafe.Pointer(&blocks)); err != nil {
		return fmt.Errorf("resize ext4 to %d blocks: %w", blocks, err)
	}
	return nil
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
