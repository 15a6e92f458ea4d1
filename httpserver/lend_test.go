package httpserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// lending is a handler with the answer "hello, world". Another descriptor of the connection's
// socket, as of another process, ends the answer.
func lending(t *testing.T, ends error) httpserver.Handler {
	t.Helper()
	return httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		x.Set("X-Can", fmt.Sprint(x.CanLend()))
		if err := x.Begin(200, -1); err != nil {
			t.Error(err)
		}
		if _, err := x.Write([]byte("hello, ")); err != nil {
			t.Error(err)
		}
		if !x.CanLend() {
			if _, err := x.Lend(nil); err == nil {
				t.Error("lent all the same")
			}
			_, err := x.Write([]byte("world"))
			check(t, err)
			return
		}
		var lentTo int
		var f *os.File
		defer func() { _ = f.Close() }() // the other process keeps its descriptor
		n, err := x.Lend(func(socket syscall.RawConn) (int64, error) {
			var other int
			var derr error
			err := socket.Control(func(fd uintptr) { other, derr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
			if err = errors.Join(err, derr); err != nil {
				return 0, err
			}
			f = os.NewFile(uintptr(other), "other")
			if n, err := unix.GetsockoptInt(other, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); n != 60_000 {
				t.Errorf("a client may take nothing for %d ms, %v", n, err)
			}
			_, err = f.WriteString("5\r\nworld\r\n")
			lentTo = other
			return 5, errors.Join(err, unix.SetNonblock(other, false), ends)
		})
		flags, ferr := unix.FcntlInt(uintptr(lentTo), unix.F_GETFL, 0)
		if flags&unix.O_NONBLOCK == 0 || ferr != nil {
			t.Errorf("the socket is blocking: flags %#x, %v", flags, ferr)
		}
		if n, gerr := unix.GetsockoptInt(lentTo, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); n != 0 {
			t.Errorf("a client may take nothing for %d ms still, %v", n, gerr)
		}
		if n != 5 || !errors.Is(err, ends) {
			t.Errorf("lent: %d, %v", n, err)
		}
	})
}

// TestLend: another process ends an answer, and the connection continues.
func TestLend(t *testing.T) {
	fretest.CheckLeaks(t)
	addr := start(t, httpserver.Config{Handler: lending(t, nil)})
	c := dial(t, addr)
	r := bufio.NewReader(c)
	for _, test := range []struct {
		request, body, can string
	}{
		{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "hello, world", "true"},
		{"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "", "false"},
		{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "hello, world", "true"},
		{"GET / HTTP/1.0\r\nHost: a\r\n\r\n", "hello, world", "false"},
	} {
		if _, err := io.WriteString(c, test.request); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(test.request, " ")
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%q: %v", test.request, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != test.body || resp.Header.Get("X-Can") != test.can {
			t.Errorf("%q: %q, %v, could lend: %s", test.request, body, err, resp.Header.Get("X-Can"))
		}
	}
}

// TestLendEnds: if a lent answer fails, the client notices. The connection ends even if another
// process still has it open.
func TestLendEnds(t *testing.T) {
	fretest.CheckLeaks(t)
	whole := exchange(t, start(t, httpserver.Config{Handler: lending(t, nil)}), "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if !strings.HasSuffix(whole, "7\r\nhello, \r\n5\r\nworld\r\n0\r\n\r\n") {
		t.Errorf("%q; want it whole", whole)
	}
	addr := start(t, httpserver.Config{Handler: lending(t, errors.New("broken"))})
	got := exchange(t, addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.HasSuffix(got, "7\r\nhello, \r\n5\r\nworld\r\n") {
		t.Errorf("%q; want it broken off", got)
	}
}
