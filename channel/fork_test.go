package channel

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// forkPair returns the engine's end of a child's channel, ready for Forked, and the child's end.
func forkPair(t testing.TB) (ours, theirs *net.UnixConn) {
	t.Helper()
	ours, theirs = pair(t)
	if err := ExpectFork(ours); errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("the kernel names no sender (Linux 6.5)")
	} else if err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

func forkedFrame() []byte { return wire.Header{Kind: wire.KindForked}.Append(nil) }

func TestForked(t *testing.T) {
	ours, theirs := forkPair(t)
	if _, err := theirs.Write(forkedFrame()); err != nil {
		t.Fatal(err)
	}
	pidfd, err := Forked(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID}
	if err := unix.IoctlPidfdInfo(pidfd, &info); err == nil && int(info.Tgid) != os.Getpid() {
		t.Errorf("the child is process %d, want this one, %d", info.Tgid, os.Getpid())
	}
	// From now on a message carries no pidfd: the test would not close the pidfd.
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSPIDFD); err != nil || on != 0 {
			t.Errorf("the channel names its senders still: %d, %v", on, err)
		}
	}); err != nil {
		t.Error(err)
	}
	c := NewConn(ours, Config{})
	defer c.Close()
	if err := c.Go(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, wire.HeaderSize)
	if _, err := theirs.Read(got); err != nil || !bytes.Equal(got, wire.Header{Kind: wire.KindGo}.Append(nil)) {
		t.Errorf("GO is %x, %v", got, err)
	}
}

func TestForkedErrors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, tt := range map[string]struct {
		send func(c *net.UnixConn) error
		want error
	}{
		"the end": {func(c *net.UnixConn) error { return c.Close() }, ErrClosed},
		"READY": {func(c *net.UnixConn) error {
			_, err := c.Write(wire.Header{Kind: wire.KindReady}.Append(nil))
			return err
		}, ErrProtocol},
		"a part": {func(c *net.UnixConn) error { _, err := c.Write(forkedFrame()[:7]); return err }, ErrProtocol},
		"a flag": {func(c *net.UnixConn) error {
			_, err := c.Write(wire.Header{Kind: wire.KindForked, Flags: 1}.Append(nil))
			return err
		}, ErrProtocol},
		"with files": {func(c *net.UnixConn) error { return sendFiles(c, null, 100) }, ErrProtocol},
		"nothing":    {func(*net.UnixConn) error { return nil }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := forkPair(t)
			if err := tt.send(theirs); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if errors.Is(tt.want, context.DeadlineExceeded) {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			before := openFiles(t)
			if pidfd, err := Forked(ctx, ours); !errors.Is(err, tt.want) || pidfd != -1 {
				t.Errorf("got %d, %v, want %v", pidfd, err, tt.want)
			}
			if after := openFiles(t); after != before {
				t.Errorf("%d files open, %d before", after, before)
			}
		})
	}
}

func sendFiles(c *net.UnixConn, f *os.File, count int) error {
	fds := make([]int, count)
	for i := range fds {
		fds[i] = int(f.Fd())
	}
	_, _, err := c.WriteMsgUnix(wire.Header{Kind: wire.KindData}.Append(nil), unix.UnixRights(fds...), nil)
	return err
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestFork: the frame arrives complete with its files. The caller keeps its files.
func TestFork(t *testing.T) {
	ours, theirs := forkPair(t)
	c := NewConn(ours, Config{})
	defer c.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, network := range []*os.File{nil, null} {
		if err := c.Fork(null, null, null, network); err != nil {
			t.Fatal(err)
		}
		frame, oob := make([]byte, 100), make([]byte, 1000)
		n, oobn, _, _, err := theirs.ReadMsgUnix(frame, oob)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(messages) != 1 {
			t.Fatalf("%d messages, %v", len(messages), err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
		if want := (wire.Header{Kind: wire.KindFork, FDs: len(fds)}).Append(nil); !bytes.Equal(frame[:n], want) {
			t.Errorf("FORK is %x, want %x", frame[:n], want)
		}
		if want := map[bool]int{true: 3, false: 4}[network == nil]; len(fds) != want {
			t.Errorf("%d files, want %d", len(fds), want)
		}
	}
	if _, err := null.Stat(); err != nil {
		t.Errorf("a file that was sent: %v", err)
	}
}

func FuzzForked(f *testing.F) {
	f.Add(forkedFrame())
	f.Add(forkedFrame()[:15])
	f.Add(append(forkedFrame(), 1))
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := forkPair(t)
		if len(sent) > 64<<10 {
			return
		}
		if _, err := theirs.Write(sent); err != nil {
			t.Fatal(err)
		}
		_ = theirs.Close()
		pidfd, err := Forked(t.Context(), ours)
		if want := bytes.HasPrefix(sent, forkedFrame()); want != (err == nil) || want != (pidfd >= 0) {
			t.Errorf("%x: %d, %v", sent, pidfd, err)
		}
		if pidfd >= 0 {
			unix.Close(pidfd)
		}
	})
}
