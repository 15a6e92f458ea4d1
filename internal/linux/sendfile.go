package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendFile is sendfile(2) as a raw system call, without notice to Go's scheduler. Use SendFile
// for a socket that does not block, and for bytes in the page cache. offset advances by the
// bytes sent. The caller handles EAGAIN and EINTR.
func SendFile(to, file int, offset *int64, n int) (int, error) {
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDFILE, uintptr(to), uintptr(file), uintptr(unsafe.Pointer(offset)), uintptr(n), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}
