package httpserver_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
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

// fileServer serves a file larger than any socket's buffer, and reports the end of each answer.
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

// getFile requests the file and returns the body.
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

// readSlowly reads a piece of body at each tick until the time total has passed, then the rest. late
// reports that more than half of stall passed between two reads: a server with that time limit may
// have given up a client that the machine delayed.
func readSlowly(body io.Reader, piece int64, tick, total, stall time.Duration) (got []byte, late bool, err error) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var read bytes.Buffer
	last := time.Now()
	for began := last; time.Since(began) < total && err == nil; <-ticker.C {
		_, err = io.CopyN(&read, body, piece)
		late = late || time.Since(last) > stall/2
		last = time.Now()
	}
	if err == nil {
		_, err = read.ReadFrom(body)
	}
	return read.Bytes(), late, err
}

// untilPunctual runs attempt on connections of its own until no machine delayed the client.
func untilPunctual(t *testing.T, addr string, attempt func(c net.Conn) (late bool, err error)) {
	t.Helper()
	for {
		late, err := attempt(dial(t, addr))
		if err == nil {
			return
		}
		if !late {
			t.Fatal(err)
		}
		t.Log("the machine delayed the client: again,", err)
	}
}

// TestSendFileStalls: the server gives up a client that reads nothing, but not a slow reader. The
// deadline of an answer does not affect the next answer.
func TestSendFileStalls(t *testing.T) {
	t.Parallel()                  // mostly waits
	const stall = 2 * time.Second // enough for a client on a slow machine to read a little
	addr, content, ended := fileServer(t, httpserver.Config{StallTimeout: stall})
	idle := dial(t, addr)
	body := getFile(t, idle, bufio.NewReader(idle))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that takes nothing: %v", err)
	}
	if err := body.Close(); err == nil {
		t.Error("its answer is whole")
	}
	untilPunctual(t, addr, func(slow net.Conn) (bool, error) {
		r := bufio.NewReader(slow)
		for range 2 { // the second answer starts after the first deadline
			got, late, err := readSlowly(getFile(t, slow, r), 256<<10, stall/20, stall*3/2, stall)
			if err := errors.Join(err, <-ended); err != nil {
				return late, fmt.Errorf("a client that takes little: %d bytes of %d, %w", len(got), len(content), err)
			}
			if !bytes.Equal(got, content) {
				t.Errorf("%d bytes of %d differ", len(got), len(content))
			}
			<-time.After(stall * 3 / 2)
		}
		return false, nil
	})
}

// TestSendFileSlow: a slow reader is not given up, even if it reads less per wait than the kernel
// needs before the socket takes more.
func TestSendFileSlow(t *testing.T) {
	t.Parallel()                  // mostly waits
	const stall = 2 * time.Second // enough for a client on a slow machine to read a little
	addr, content, ended := fileServer(t, httpserver.Config{StallTimeout: stall})
	untilPunctual(t, addr, func(c net.Conn) (bool, error) {
		check(t, c.(*net.TCPConn).SetReadBuffer(64<<10)) // small, so that the kernel reports each read piece
		got, late, err := readSlowly(getFile(t, c, bufio.NewReader(c)), 64<<10, stall/8, stall*5/2, stall)
		if err := errors.Join(err, <-ended); err != nil {
			return late, fmt.Errorf("%d bytes of %d, %w", len(got), len(content), err)
		}
		if !bytes.Equal(got, content) {
			t.Errorf("%d bytes of %d differ", len(got), len(content))
		}
		return false, nil
	})
}

// TestSendFileInterrupted: signals of the runtime end sendfile(2) early. The socket is not full
// then, so no event would continue the answer: the server must retry at once.
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
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // the runtime's own signal; the thread may have ended
			}
		}
	}()
	defer func() { close(done); <-stopped }()
	c := dial(t, addr)
	// The client's window takes the whole file: only signals leave a rest.
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

// accepted reports each accepted connection.
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

// TestSendFileCorked: only whole segments of a long file leave, except at the end.
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

// TestSendFileFromDisk: a file that the kernel must first read from disk arrives completely.
func TestSendFileFromDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("not in memory, "), 1<<18)
	check(t, os.WriteFile(path, content, 0o600))
	f, err := os.Open(path)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	check(t, f.Sync())
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		// Only a part, to meet the gap in the middle; a tmpfs keeps all pages.
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
