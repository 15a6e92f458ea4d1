package httpserver_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/httpserver"
)

// fileServer serves a file that no socket takes at once, and tells how each answer ended.
func fileServer(t *testing.T, cfg httpserver.Config) (addr string, content []byte, ended <-chan error) {
	t.Helper()
	content = make([]byte, 24<<20)
	for i := range content {
		content[i] = byte(i ^ i>>8 ^ i>>16)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, f.Close()) })
	ends := make(chan error, 16)
	cfg.Handler = httpserver.HandlerFunc(func(x *httpserver.Exchange) { ends <- x.SendFile(200, f, 0, int64(len(content))) })
	return start(t, cfg), content, ends
}

// getFile asks for the file and returns what is to be read of it.
func getFile(t *testing.T, c net.Conn, r *bufio.Reader) io.ReadCloser {
	t.Helper()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body
}

// TestSendFileStalls: a client that takes nothing is given up, one that takes little at a time
// is not; what was to be given up by some time is forgotten with the answer.
func TestSendFileStalls(t *testing.T) {
	t.Parallel()                  // it waits most of its time
	const stall = 2 * time.Second // in which even a slow machine has its client take something
	addr, content, ended := fileServer(t, httpserver.Config{StallTimeout: stall})
	idle := dial(t, addr)
	body := getFile(t, idle, bufio.NewReader(idle))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that takes nothing: %v", err)
	}
	if err := body.Close(); err == nil {
		t.Error("its answer is whole")
	}
	slow := dial(t, addr)
	r := bufio.NewReader(slow)
	for range 2 { // the second answer begins when the first's time is over
		body := getFile(t, slow, r)
		tick := time.NewTicker(stall / 20)
		var got bytes.Buffer
		for began := time.Now(); time.Since(began) < stall*3/2; <-tick.C {
			if _, err := io.CopyN(&got, body, 256<<10); err != nil {
				t.Fatal(err)
			}
		}
		tick.Stop()
		if _, err := got.ReadFrom(body); err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("%d bytes of %d, %v", got.Len(), len(content), err)
		}
		if err := <-ended; err != nil {
			t.Errorf("a client that takes little: %v", err)
		}
		<-time.After(stall * 3 / 2)
	}
}

// TestSendFileSlow: a client that takes less while the server waits than what the kernel has a
// socket take more after is not given up.
func TestSendFileSlow(t *testing.T) {
	t.Parallel()                  // it waits most of its time
	const stall = 2 * time.Second // in which even a slow machine has its client take something
	addr, content, ended := fileServer(t, httpserver.Config{StallTimeout: stall})
	c := dial(t, addr)
	check(t, c.(*net.TCPConn).SetReadBuffer(64<<10)) // so that the kernel tells of each piece that is taken
	body := getFile(t, c, bufio.NewReader(c))
	tick := time.NewTicker(stall / 8)
	defer tick.Stop()
	var got bytes.Buffer
	for began := time.Now(); time.Since(began) < stall*5/2; <-tick.C {
		if _, err := io.CopyN(&got, body, 64<<10); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := got.ReadFrom(body); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes of %d, %v", got.Len(), len(content), err)
	}
	check(t, <-ended)
}

// TestSendFileInterrupted: signals end sendfile(2) early, as the runtime's do; the socket is
// not full then, and no event would go on with the answer.
func TestSendFileInterrupted(t *testing.T) {
	addr, content, ended := fileServer(t, httpserver.Config{})
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			threads, _ := os.ReadDir("/proc/self/task") // as root and otherwise
			for _, thread := range threads {
				tid := 0
				for _, d := range thread.Name() {
					tid = 10*tid + int(d-'0')
				}
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // which the runtime takes for its own; the thread may have ended
			}
		}
	}()
	defer func() { close(done); <-stopped }()
	c := dial(t, addr)
	// The client's window takes the whole file: only signals leave something over.
	check(t, c.(*net.TCPConn).SetReadBuffer(64<<20))
	r := bufio.NewReader(c)
	for range 10 {
		check(t, c.SetDeadline(time.Now().Add(hangs)))
		got, err := io.ReadAll(getFile(t, c, r))
		if err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(content), err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// accepted tells of each connection that it accepts.
type accepted struct {
	net.Listener
	conns chan *net.TCPConn
}

func (l *accepted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns <- c.(*net.TCPConn)
	}
	return c, err
}

// TestSendFileCorked: of a long file only whole segments leave, but not longer than to its end.
func TestSendFileCorked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("whole segments, "), 1<<20)
	check(t, os.WriteFile(path, content, 0o600))
	f, err := os.Open(path)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	l := &accepted{tcp, make(chan *net.TCPConn, 1)}
	ended := make(chan error, 1)
	addr := startOn(t, l, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) { ended <- x.SendFile(200, f, 0, int64(len(content))) })})
	c := dial(t, addr)
	raw, err := (<-l.conns).SyscallConn()
	check(t, err)
	corked := func() (on bool) {
		t.Helper()
		check(t, raw.Control(func(fd uintptr) {
			v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK)
			check(t, err)
			on = v != 0
		}))
		return on
	}
	r := bufio.NewReader(c)
	for range 2 {
		body := getFile(t, c, r)
		if !corked() {
			t.Error("a long file's is not corked while it is being sent")
		}
		got, err := io.ReadAll(body)
		if err := errors.Join(err, <-ended); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if corked() {
			t.Error("it stays corked")
		}
	}
}

// TestSendFileFromDisk: what the kernel has to read first comes as well.
func TestSendFileFromDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("not in memory, "), 1<<18)
	check(t, os.WriteFile(path, content, 0o600))
	f, err := os.Open(path)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	check(t, f.Sync())
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		// Some of it, so that it is met in the middle; a tmpfs keeps it all.
		if err := unix.Fadvise(int(f.Fd()), 1<<20, 0, unix.FADV_DONTNEED); err != nil {
			t.Error(err)
		}
		if err := x.SendFile(200, f, 0, int64(len(content))); err != nil {
			t.Error(err)
		}
	})})
	c := dial(t, addr)
	r := bufio.NewReader(c)
	for range 3 {
		if got, err := io.ReadAll(getFile(t, c, r)); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(content), err)
		}
	}
}
