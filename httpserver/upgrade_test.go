package httpserver_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fre-engine/fre/httpserver"
)

const ask = "GET /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n"

// A connection that switches its protocol is a tunnel, from the first byte after the request until
// the client ends its direction.
func TestSwitch(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		_ = x.Context() // the context's watch must read nothing of the tunnel
		x.Set("Upgrade", string(x.Get("upgrade")))
		tunnel, err := x.Switch(time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		buf := make([]byte, 100)
		for {
			n, err := tunnel.Read(buf)
			if _, err := tunnel.Write(bytes.ToUpper(buf[:n])); n > 0 && err != nil {
				t.Error(err)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				return
			}
		}
	})})
	c := dial(t, addr)
	if _, err := io.WriteString(c, ask+"early"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "shout" || resp.Header.Get("Connection") != "Upgrade" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	for _, want := range []string{"EARLY", "LATER"} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
		if _, err := io.WriteString(c, "later"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "LATER" {
		t.Errorf("at the end %q, %v", rest, err)
	}
}

// An unrequested or ambiguous switch is refused before any output.
func TestSwitchRefused(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		if _, err := x.Switch(time.Minute); !errors.Is(err, httpserver.ErrNoSwitch) {
			t.Errorf("%s: %v", x.Target, err)
		}
		check(t, x.Send(426, nil))
	})})
	for name, request := range map[string]string{
		"not asked for": "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
		"with a body":   "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: x\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.0":      "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
	} {
		if got := exchange(t, addr, request); !strings.HasPrefix(got, "HTTP/1.1 426 ") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Close ends a running Read; so does a time without traffic.
func TestSwitchEnds(t *testing.T) {
	ended := make(chan error, 1)
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		idle := time.Minute
		if string(x.Query) != "" {
			idle = 20 * time.Millisecond
		}
		tunnel, err := x.Switch(idle)
		if err != nil {
			t.Error(err)
			return
		}
		reading := make(chan error, 1)
		go func() {
			buf := make([]byte, 1)
			_, err := tunnel.Read(buf)
			for err == nil {
				_, err = tunnel.Read(buf)
			}
			reading <- err
		}()
		if idle == time.Minute {
			_ = tunnel.Close()
		}
		ended <- <-reading
	})})
	for query, want := range map[string]error{"": io.EOF, "idle": os.ErrDeadlineExceeded} {
		got := exchange(t, addr, strings.Replace(ask, "/up", "/up?"+query, 1))
		err := <-ended
		if !strings.HasPrefix(got, "HTTP/1.1 101 ") || !errors.Is(err, want) {
			t.Errorf("%q: %q, %v, want %v", query, got, err, want)
		}
	}
}

// one is a listener with one connection.
type one struct {
	net.Conn
	conns chan net.Conn
	done  chan struct{}
}

func (l *one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *one) Close() error   { close(l.done); return nil }
func (l *one) Addr() net.Addr { return l.LocalAddr() }

// A tunnel in which only the server sends is not idle.
func TestSwitchOneWay(t *testing.T) {
	const times, pause, idle = 20, 15 * time.Millisecond, 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		client, served := net.Pipe()
		l := &one{served, make(chan net.Conn, 1), make(chan struct{})}
		l.conns <- served
		s := httpserver.New(httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
			tunnel, err := x.Switch(idle)
			if err != nil {
				t.Error(err)
				return
			}
			begun, read := time.Now(), make(chan error, 1)
			go func() {
				_, err := tunnel.Read(make([]byte, 1))
				read <- err
			}()
			for range times {
				<-time.After(pause)
				_, err := tunnel.Write([]byte("x"))
				check(t, err)
			}
			if err, took := <-read, time.Since(begun); !errors.Is(err, os.ErrDeadlineExceeded) || took != times*pause+idle {
				t.Errorf("%v after %v", err, took)
			}
		})})
		go func() { _ = s.Serve(l) }()
		go func() { _, _ = io.WriteString(client, ask) }()
		got, err := io.ReadAll(client)
		if err != nil || !strings.HasSuffix(string(got), strings.Repeat("x", times)) {
			t.Errorf("%q, %v", got, err)
		}
		check(t, s.Close())
	})
}
