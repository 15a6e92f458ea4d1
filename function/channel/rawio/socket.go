// Package rawio sends to and receives from connected sockets without notice to Go's scheduler. It
// is one of the few packages that use package unsafe: golang.org/x/sys has no such calls.
package rawio

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawBytes is the most bytes that Send and Recv move without notice to Go's scheduler: 64 KiB
// and room for a frame's header.
const rawBytes = 64<<10 + 64

// Recv receives into p from a connected socket, and ancillary data into oob (recvmsg(2),
// cmsg(3)). Recv never blocks: the error is EAGAIN if no data waits. n is 0 at the end of the
// stream. got holds the flags that the kernel returns, 0 if oob is empty.
//
// Up to 64 KiB, Recv is a raw system call, without notice to Go's scheduler. A message to a
// process that sleeps on the same CPU makes the kernel run that process in the middle of the
// system call. After an ordinary call, the scheduler then takes the goroutine's P away and
// wakes a thread. Without that, the round trip of a message takes half the time. A longer copy
// would delay the other goroutines of the P, so larger buffers use ordinary calls.
func Recv(fd int, p, oob []byte, flags int) (n, oobn, got int, err error) {
	flags |= unix.MSG_DONTWAIT
	if len(p) > rawBytes {
		return recvOrdinary(fd, p, oob, flags)
	}
	if len(oob) == 0 { // for recvmsg(2), reading the message's head costs as much as a small message
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

// Send sends the parts, any of which may be empty, as one message to a connected socket, with
// oob as ancillary data (sendmsg(2)). n is the number of bytes that the socket has accepted.
// Send never blocks and raises no SIGPIPE: the error is EAGAIN if the socket is full. Send is a
// raw system call under the conditions of [Recv], for at most four parts.
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
	m := unix.Msghdr{Iov: &iov[0]} // not in a helper, which would allocate the Msghdr
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

// gathered is the most buffers that sendOrdinary gathers without an allocation.
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
	m := unix.Msghdr{Iov: &iov[0]} // not in a helper, which would allocate the Msghdr
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

// gather points iov at the parts. iov must have room for all parts.
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
