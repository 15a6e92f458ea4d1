package linux

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// peerEnv makes this test binary a client of the named socket.
const peerEnv = "FRE_TEST_PEER"

func TestMain(m *testing.M) {
	path := os.Getenv(peerEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, conn) // until the test has asked
}

// TestPeerGroups: PeerGroups returns all groups of the peer, even if they exceed the first buffer.
func TestPeerGroups(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	for _, n := range []int{0, 1, 64, 65, 1000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			want := make([]uint32, n)
			for i := range want {
				want[i] = uint32(2000 + i)
			}
			got, err := groupsOfPeer(t, want)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("got %v, %v; want %v", got, err, want)
			}
		})
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := PeerGroups(int(r.Fd())); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("of a pipe: %v, want %v", err, unix.ENOTSOCK)
	}
}

// groupsOfPeer returns the groups of a client with these groups.
func groupsOfPeer(t *testing.T, groups []uint32) ([]uint32, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fre") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), peerEnv+"="+path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: groups}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	var failed error
	err = raw.Control(func(fd uintptr) { got, failed = PeerGroups(int(fd)) })
	if err := errors.Join(err, conn.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	return got, failed
}
