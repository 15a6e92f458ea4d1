package security

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/sandbox"
)

// call invokes a function and requires the given status.
func call(t testing.TB, d *testdaemon.Daemon, name, path, body string, status int) string {
	t.Helper()
	a, err := testdaemon.Event{Method: http.MethodPost, Path: path, Body: body}.Call(t.Context(), http.DefaultClient, d.Addr(), name)
	if err != nil {
		t.Errorf("%s%s: %v", name, path, err)
		return ""
	}
	if a.Status != status {
		t.Errorf("%s%s: status %d: %s; want %d", name, path, a.Status, a.Body, status)
	}
	return string(a.Body)
}

// eventually waits for a condition.
func eventually(t testing.TB, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := testdaemon.Until(ctx, condition); err != nil {
		t.Fatal(err)
	}
}

// holders returns the processes of the host with an open memfd of the given name.
func holders(t testing.TB, name string) []int {
	t.Helper()
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || target != "/memfd:"+name+" (deleted)" {
			continue // an unreadable process is already gone
		}
		pid, err := strconv.Atoi(strings.Split(fd, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

var echo = testdaemon.Function{Name: "echo"}

// At its time limit a function ends with all its processes, including daemons in their own sessions
// that ignore SIGTERM.
func TestTimeouts(t *testing.T) {
	late := testdaemon.Function{Name: "late", Config: image.Config{Protocol: image.ProtocolStdio}}
	late.Config.Resources.Timeout = 2 * time.Second
	d := daemontest.Serve(t, late, echo)
	call(t, d, "echo", "", "a", 200)
	before := len(testdaemon.Programs(d.PID()))
	most := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		call(t, d, "late", "/daemons", "", 504)
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			most = max(most, len(testdaemon.Programs(d.PID())))
		}
	}
	if most < before+4 {
		t.Errorf("%d processes at most, %d before: the function left no daemons: the test proves nothing", most, before)
	}
	eventually(t, func() error {
		if now := testdaemon.Programs(d.PID()); len(now) > before {
			return fmt.Errorf("%d processes, %d before: %v", len(now), before, now)
		}
		return nil
	})
	call(t, d, "echo", "", "b", 200)
}

// The engine never receives files that a function attaches to its frames.
func TestChannelRights(t *testing.T) {
	hostile := testdaemon.Function{Name: "hostile"}
	d := daemontest.Serve(t, hostile)
	if got := call(t, d, "hostile", "/rights", "", 200); got != "5060" {
		t.Fatalf("sent %s open files: the test proves nothing", got)
	}
	if pids := holders(t, "rights"); len(pids) != 1 || pids[0] == d.PID() {
		t.Errorf("processes %v have the function's file, the engine is %d; want the function alone", pids, d.PID())
	}
	call(t, d, "hostile", "", "still there", 200)
}

// The engine accepts only regular files as answers. Any other kind ends the instance, and the
// engine keeps no file open.
func TestChannelFiles(t *testing.T) {
	const content = "what a function gives as its answer"
	hostile := testdaemon.Function{Name: "hostile"}
	d := daemontest.Serve(t, hostile)
	for _, kind := range []string{"sealed", "unsealed", "named", "named-open"} {
		if got := call(t, d, "hostile", "/file/"+kind, "", 200); got != content {
			t.Errorf("%s: got %q", kind, got)
		}
	}
	for _, kind := range []string{
		"pipe", "socket", "directory", "device", "path", "write-only", "proc",
		"two", "none", "longer", "overflow", "outside", "link", "fifo",
	} {
		if got := call(t, d, "hostile", "/file/"+kind, "", 502); strings.Contains(got, content) {
			t.Errorf("%s: %s", kind, got)
		}
	}
	eventually(t, func() error {
		if pids := holders(t, "wrong"); slices.Contains(pids, d.PID()) {
			return fmt.Errorf("the engine, %d, has files of the function's open", d.PID())
		}
		return nil
	})
	call(t, d, "hostile", "", "still there", 200)
}

// The engine never receives files that a client attaches on the control socket. An endless request
// ends.
func TestSocketRights(t *testing.T) {
	d := daemontest.Serve(t, echo)
	file, err := unix.MemfdCreate("socket-rights", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	rights := slices.Repeat([]int{file}, 253)
	conn := dial(t, d.Socket())
	for _, part := range []string{"GET /v1/version HTTP/1.1\r\n", "Host: fre\r\n", "\r\n"} {
		if _, _, err := conn.WriteMsgUnix([]byte(part), unix.UnixRights(rights...), nil); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %s", resp.Status)
	}
	if pids := holders(t, "socket-rights"); !slices.Equal(pids, []int{os.Getpid()}) {
		t.Errorf("processes %v have the file; want this one alone, %d: the engine is %d", pids, os.Getpid(), d.PID())
	}
}

func dial(t testing.TB, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// The control socket refuses requests over its limits before it reads them into memory.
func TestSocketSizes(t *testing.T) {
	d := daemontest.Serve(t, echo)
	for _, c := range []struct{ name, head, more, want string }{
		{"header", "GET /v1/version HTTP/1.1\r\nHost: fre\r\n", "X-Large: " + strings.Repeat("x", 1000) + "\r\n", "431"},
		{"request line", "GET /v1/", strings.Repeat("x", 1000), "431"},
		{"JSON", "POST /v1/functions HTTP/1.1\r\nHost: fre\r\nContent-Type: application/json\r\nContent-Length: 1099511627776\r\n\r\n{\"name\":\"", strings.Repeat("x", 1000), "413"},
		{"event", "POST /v1/functions/echo/invoke HTTP/1.1\r\nHost: fre\r\nContent-Length: 1099511627776\r\n\r\n", strings.Repeat("x", 1000), "413"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, d.Socket())
			if _, err := io.WriteString(conn, c.head); err != nil {
				t.Fatal(err)
			}
			// The engine may answer and close at any moment from here on.
			for range 128 << 10 {
				if _, err := io.WriteString(conn, c.more); err != nil {
					break
				}
			}
			answer := make([]byte, 64)
			n, err := conn.Read(answer)
			if got := string(answer[:n]); !strings.HasPrefix(got, "HTTP/1.1 "+c.want) {
				t.Errorf("got %q, %v; want status %s", got, err, c.want)
			}
		})
	}
	call(t, d, "echo", "", "still there", 200)
}

// The control socket checks the peer. A sandbox with access to the socket by an operator's mistake
// gets 403, even as its tenant's root.
func TestSocketPeer(t *testing.T) {
	d := daemontest.Serve(t, echo)
	h := openHost(t)
	root := fretest.Rootfs(t)
	if err := os.Chmod(d.Socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(d.Socket())
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []uint32{0, 1000} {
		spec := prog(root, "http", filepath.Join("/opt", filepath.Base(d.Socket())), "/v1/version")
		spec.User.UID, spec.User.GID = uid, uid
		spec.Mounts = []sandbox.Mount{{Source: dir, Target: "/opt"}}
		if got := run(t, h, spec); !strings.HasPrefix(got, "connected\nHTTP/1.1 403 ") {
			t.Errorf("the control socket as uid %d of a sandbox: %q", uid, got)
		}
	}
	conn := dial(t, d.Socket())
	if _, err := io.WriteString(conn, "GET /v1/version HTTP/1.1\r\nHost: fre\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		t.Errorf("the control socket as root: %q, %v: the test proves nothing", answer, err)
	}
}
