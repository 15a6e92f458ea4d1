package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// calls makes system calls that a filter checks by number or by argument, and prints the result of
// each.
func calls() error {
	raw := func(nr uintptr, args ...uintptr) func() error {
		var a [6]uintptr
		copy(a[:], args)
		return func() error {
			_, _, errno := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
			if errno != 0 {
				return errno
			}
			return nil
		}
	}
	socket := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	for _, attempt := range []struct {
		name string
		try  func() error
	}{
		{"unix socket", socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)},
		{"tcp socket", socket(unix.AF_INET, unix.SOCK_STREAM, 0)},
		{"udp socket", socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP)},
		{"netlink route", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
		{"netlink audit", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)},
		{"vsock", socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"packet", socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"alg", socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"sctp", socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
		{"clone3", raw(unix.SYS_CLONE3)},
		{"unshare nothing", raw(unix.SYS_UNSHARE)},
		{"no such call", raw(1000)},
		{"io_uring", raw(unix.SYS_IO_URING_SETUP)},
		{"bpf", raw(unix.SYS_BPF)},
		{"userfaultfd", raw(unix.SYS_USERFAULTFD)},
		{"perf", raw(unix.SYS_PERF_EVENT_OPEN)},
		{"ptrace", raw(unix.SYS_PTRACE, 0xffff)},
		{"keyctl", raw(unix.SYS_KEYCTL, 0xffff)},
		{"file handle", raw(unix.SYS_NAME_TO_HANDLE_AT)},
		{"personality asked", raw(unix.SYS_PERSONALITY, 0xffffffff)},
		{"personality without randomness", raw(unix.SYS_PERSONALITY, 0x40000)},
		{"terminal input", raw(unix.SYS_IOCTL, 0, unix.TIOCSTI)},
		{"other terminal call", raw(unix.SYS_IOCTL, 0, unix.TIOCGWINSZ)},
	} {
		var errno syscall.Errno
		if err := attempt.try(); errors.As(err, &errno) {
			fmt.Println(attempt.name + ": " + unix.ErrnoName(errno))
		} else {
			fmt.Println(attempt.name+":", err)
		}
	}
	return nil
}

// dial connects to a Unix socket. A name that begins with @ is abstract.
func dial(name string) error {
	c, err := net.Dial("unix", name)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	return c.Close()
}
