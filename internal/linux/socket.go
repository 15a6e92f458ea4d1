package linux

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawBytes is the most that Send and Recv move without telling Go's scheduler: 64 KiB, and
// what they may be framed by.
const rawBytes = 64<<10 + 64

// Recv receives into p from a connected socket, and into oob what comes along with it
// (recvmsg(2), cmsg(3)). It never waits: EAGAIN says that nothing is there. n is 0 at
// the end of the stream, got the flags that the kernel returns, 0 without oob.
//
// Up to 64 KiB it is a raw system call, of which Go's scheduler is not told: where the
// kernel runs the other process in the middle of an ordinary one, which is what a
// message to a sleeper on the same CPU makes it do, the scheduler takes the goroutine's
// P away, and wakes a thread to do so. A message's round trip takes half the time
// without that. Copying more would hold up who else wants to run on that P, so that
// larger buffers go by ordinary calls.
func Recv(fd int, p, oob []byte, flags int) (n, oobn, got int, err error) {
	flags |= unix.MSG_DONTWAIT
	if len(p) > rawBytes {
		return recvOrdinary(fd, p, oob, flags)
	}
	if len(oob) == 0 { // what recvmsg(2) reads of the message's head costs as much as a small message
		for {
			r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
			if errno == 0 {
				received(p[:r])
				return int(r), 0, 0, nil
			}
			if errno != unix.EINTR {
				return 0, 0, 0, errno
			}
		}
	}
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	m := unix.Msghdr{Iov: &iov, Iovlen: 1}
	setControl(&m, oob)
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), uintptr(flags))
		if errno == 0 {
			received(p[:r])
			return int(r), int(m.Controllen), int(m.Flags), nil
		}
		if errno != unix.EINTR {
			return 0, 0, 0, errno
		}
	}
}

func recvOrdinary(fd int, p, oob []byte, flags int) (n, oobn, got int, err error) {
	for {
		n, oobn, got, _, err = unix.RecvmsgBuffers(fd, [][]byte{p}, oob, flags)
		if err == nil {
			received(p[:n])
			return n, oobn, got, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, 0, 0, err
		}
	}
}

// maxParts is the most buffers that Send gathers in a raw call.
const maxParts = 4

// Send sends the parts, any of which may be empty, as one message to a connected
// socket, with oob along (sendmsg(2)), and says how much of them the socket has taken.
// It never waits and raises no SIGPIPE: EAGAIN says that the socket takes nothing now.
// It is a raw system call where [Recv] is one, and the parts are no more than four.
func Send(fd int, parts [][]byte, oob []byte, flags int) (n int, err error) {
	flags |= unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	sum := 0
	for _, p := range parts {
		sum += len(p)
		sending(p)
	}
	if sum > rawBytes || len(parts) > maxParts {
		return sendOrdinary(fd, parts, oob, flags)
	}
	if len(parts) == 1 && len(oob) == 0 {
		for {
			p := parts[0]
			r, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
			if errno == 0 {
				return int(r), nil
			}
			if errno != unix.EINTR {
				return 0, errno
			}
		}
	}
	var iov [maxParts]unix.Iovec
	gather(iov[:], parts)
	m := unix.Msghdr{Iov: &iov[0]} // here: another function's would be on the heap
	m.SetIovlen(len(parts))
	setControl(&m, oob)
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), uintptr(flags))
		if errno == 0 {
			return int(r), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// gathered is the most buffers that sendOrdinary gathers without taking memory.
const gathered = 64

func sendOrdinary(fd int, parts [][]byte, oob []byte, flags int) (n int, err error) {
	if len(parts) > gathered {
		for {
			n, err := unix.SendmsgBuffers(fd, parts, oob, nil, flags)
			if !errors.Is(err, unix.EINTR) {
				return max(n, 0), err
			}
		}
	}
	var iov [gathered]unix.Iovec
	gather(iov[:], parts)
	m := unix.Msghdr{Iov: &iov[0]} // here: another function's would be on the heap
	m.SetIovlen(len(parts))
	setControl(&m, oob)
	for {
		r, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), uintptr(flags))
		if errno == 0 {
			return int(r), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// SendFile is sendfile(2) as a raw system call, of which Go's scheduler is not told: for a
// socket that does not block, and bytes that the kernel has in memory. offset moves by what was
// sent; EAGAIN and EINTR are the caller's.
func SendFile(to, file int, offset *int64, n int) (int, error) {
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDFILE, uintptr(to), uintptr(file), uintptr(unsafe.Pointer(offset)), uintptr(n), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// gather has iov lead to the parts, of which it has room for.
func gather(iov []unix.Iovec, parts [][]byte) {
	for i, p := range parts {
		iov[i].Base = unsafe.SliceData(p)
		iov[i].SetLen(len(p))
	}
}

func setControl(m *unix.Msghdr, oob []byte) {
	if len(oob) > 0 {
		m.Control = unsafe.SliceData(oob)
		m.SetControllen(len(oob))
	}
}
