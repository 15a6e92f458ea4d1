package security

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

// servers listens at places that a function must not reach: the host's loopback in both protocols,
// an abstract socket, and a socket in a directory. It returns each network and address.
func servers(t *testing.T) [][2]string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	var found [][2]string
	for _, s := range [][2]string{
		{"tcp4", "127.0.0.1:0"},
		{"tcp6", "[::1]:0"},
		{"unix", "@fre-attack-" + filepath.Base(filepath.Dir(socket)) + fmt.Sprint(os.Getpid())},
		{"unix", socket},
	} {
		l, err := net.Listen(s[0], s[1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		found = append(found, [2]string{s[0], l.Addr().String()})
	}
	return found
}

// A function without a network cannot reach servers of the host by any kind of socket, nor another
// sandbox's loopback.
func TestHostSockets(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, s := range servers(t) {
		want := "ECONNREFUSED\n"
		if strings.HasPrefix(s[1], "/") {
			want = "ENOENT\n"
		}
		if got := run(t, h, prog(root, "connect", s[0], s[1])); got != want {
			t.Errorf("connect to %s %s: %q, want %q", s[0], s[1], got, want)
		}
		// A build step is on the host's network: it reaches loopback only.
		spec := prog(root, "connect", s[0], s[1])
		spec.Network = sandbox.NetworkHost
		switch {
		case strings.HasPrefix(s[1], "/"):
		case s[0] == "unix" && slices.Contains(h.Defences(), "landlock"):
			want = "EPERM\n"
		default:
			want = "done\n"
		}
		if got := run(t, h, spec); got != want {
			t.Errorf("connect to %s %s on the host's network: %q, want %q", s[0], s[1], got, want)
		}
		spec.Without = sandbox.DefenceLandlock
		if got := run(t, h, spec); got != "done\n" && !strings.HasPrefix(s[1], "/") {
			t.Errorf("connect to %s %s, undefended: %q: the test proves nothing", s[0], s[1], got)
		}
	}
}

// A sandbox cannot reach a server or an abstract socket of another sandbox, even of the same
// tenant.
func TestNeighbourSockets(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, address := range [][2]string{{"tcp4", "127.0.0.1:8099"}, {"unix", "@fre-neighbour"}} {
		spec := prog(root, "listen", address[0], address[1])
		_, _, line := startReady(t, h, spec)
		if line != "reached myself: done" {
			t.Fatalf("listen on %v: %q: the test proves nothing", address, line)
		}
		if got := run(t, h, prog(root, "connect", address[0], address[1])); got != "ECONNREFUSED\n" {
			t.Errorf("a neighbour's %v: %q", address, got)
		}
	}
}

// Only a socket in a directory that the host mounts by mistake is reachable, and only as far as the
// socket's mode allows.
func TestGivenSocket(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, "s"), 0o660)); err != nil {
		t.Fatal(err)
	}
	spec := prog(root, "connect", "unix", "/opt/s")
	spec.User.UID, spec.User.GID = 0, 0
	spec.Mounts = []sandbox.Mount{{Source: dir, Target: "/opt"}}
	if got := run(t, h, spec); got != "EACCES\n" {
		t.Errorf("the host's socket as the tenant's root: %q, want EACCES", got)
	}
	if err := os.Chmod(filepath.Join(dir, "s"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := run(t, h, spec); got != "done\n" {
		t.Errorf("a socket open to all: %q: the test proves nothing", got)
	}
}
