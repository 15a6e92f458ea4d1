package main

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

var loopback = unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}

// floodDatagrams sends 144 MB to sockets without a reader, then reads the sockets and prints the
// number of bytes that the kernel kept.
func floodDatagrams() error {
	body := make([]byte, 60000)
	var all []int
	for range 300 {
		r, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		all = append(all, r)
		if err := unix.Bind(r, &loopback); err != nil {
			return err
		}
		to, err := unix.Getsockname(r)
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(r, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<24)
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		for range 8 {
			_ = unix.Sendto(s, body, unix.MSG_DONTWAIT, to) // a refusal is fine: the limit works
		}
		if err := unix.Close(s); err != nil {
			return err
		}
	}
	kept := 0
	for _, r := range all {
		for {
			n, _, err := unix.Recvfrom(r, body, unix.MSG_DONTWAIT)
			if err != nil {
				break
			}
			kept += n
		}
	}
	fmt.Println("kept", kept)
	return nil
}

// floodConnections fills connections to itself without a reader, and keeps the connections.
func floodConnections() error {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(l, &loopback); err != nil {
		return err
	}
	if err := unix.Listen(l, 16); err != nil {
		return err
	}
	to, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	body := make([]byte, 1<<20)
	for {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil { // the limit of open files is reached
			break
		}
		if err := unix.Connect(c, to); err != nil {
			return err
		}
		if _, _, err := unix.Accept(l); err != nil {
			break
		}
		if err := unix.SetNonblock(c, true); err != nil {
			return err
		}
		for {
			if _, err := unix.Write(c, body); err != nil {
				break
			}
		}
	}
	forever()
	return nil //nolint:nilerr // having all that it may have is its end
}

// floodNetlink asks the kernel repeatedly about loopback and reads no answer.
func floodNetlink() error {
	ask := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(ask, uint32(len(ask)))
	binary.NativeEndian.PutUint16(ask[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(ask[20:], 1) // index of the interface
	for {
		s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil { // the limit of open files is reached
			break
		}
		for range 200 {
			if err := unix.Sendto(s, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				break
			}
		}
	}
	forever()
	return nil //nolint:nilerr // having all that it may have is its end
}

// floodLocks holds a million file locks, on every other byte of a thousand files.
func floodLocks() error {
	for i := range 1000 {
		fd, err := unix.Open(fmt.Sprintf("/tmp/lock%d", i), unix.O_RDWR|unix.O_CREAT, 0o600)
		if err != nil {
			return err
		}
		for k := range int64(1000) {
			lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 2 * k, Len: 1}
			if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lock); err != nil {
				return err
			}
		}
	}
	forever()
	return nil
}
