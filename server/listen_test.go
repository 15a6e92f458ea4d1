package server

import (
	"bufio"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

// peerEnv makes this test binary a client of the named socket that prints the answer.
const peerEnv = "FRE_TEST_PEER"

func TestMain(m *testing.M) {
	path := os.Getenv(peerEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		resp, readErr := http.ReadResponse(bufio.NewReader(conn), nil)
		if err = readErr; err == nil {
			os.Stdout.WriteString(resp.Status)
			_ = resp.Body.Close()
		}
	}
	if err != nil {
		os.Stdout.WriteString(err.Error())
	}
}

// On a socket open to all, the server accepts root and members of the group only.
func TestPeers(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	dir, err := os.MkdirTemp("", "fre") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := Listen(path, "nogroup") // every Debian has the group, with the id 65534
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	in := make(chan struct{})
	go func() {
		defer close(in)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 let in\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "client") // a place where every user can run the program
	if err := os.WriteFile(bin, program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		credential syscall.Credential
		want       string
	}{
		{"root", syscall.Credential{}, "200 let in"},
		{"somebody", syscall.Credential{Uid: 1234, Gid: 1234}, "403 Forbidden"},
		{"a tenant's root", syscall.Credential{Uid: 0x10000000, Gid: 0x10000000, Groups: []uint32{0x10000000}}, "403 Forbidden"},
		{"in the group", syscall.Credential{Uid: 1234, Gid: 1234, Groups: []uint32{7, 65534}}, "200 let in"},
		{"with the group", syscall.Credential{Uid: 1234, Gid: 65534}, "200 let in"},
		{"root's group", syscall.Credential{Uid: 1234, Gid: 0}, "403 Forbidden"},
	} {
		cmd := exec.Command(bin)
		cmd.Env = []string{peerEnv + "=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &c.credential}
		if got, err := cmd.Output(); err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	_ = l.Close()
	<-in
}

func TestListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "fre") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "run", "fre.sock")

	l, err := Listen(path, "no-such-group-here")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("socket's mode = %v, %v; want %v", info.Mode(), err, fs.ModeSocket|0o660)
	}
	if _, err := Listen(path, ""); !errors.Is(err, ErrRunning) {
		t.Errorf("second Listen = %v, want ErrRunning", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("after Close: %v, %v; want nothing", left, err)
	}

	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err = Listen(path, "")
	if err != nil {
		t.Fatalf("Listen over a dead socket: %v", err)
	}
	_ = l.Close()

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, ""); err == nil {
		t.Error("Listen over a file succeeded")
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "precious" {
		t.Errorf("the file in the way is %q, %v", content, err)
	}
}
