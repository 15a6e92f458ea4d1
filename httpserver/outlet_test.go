package httpserver_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// frames reads the data of an HTTP/2 answer.
type frames struct {
	*client
	rest []byte
}

func (f *frames) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		data := f.next(http2.FrameData, http2.FrameRSTStream, http2.FrameGoAway)
		switch d := data.(type) {
		case *http2.DataFrame:
			if f.rest = d.Data(); d.StreamEnded() && len(f.rest) == 0 {
				return 0, io.EOF
			}
		default:
			return 0, errors.New(data.Header().String())
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// TestStalls: the server gives up a client that reads nothing, but not a slow reader, in any
// protocol. A slow reader may even read less during the stall time than the kernel needs before the
// socket takes more.
func TestStalls(t *testing.T) {
	fretest.CheckLeaks(t)
	const stall = 2 * time.Second // enough for a client on a slow machine to read a little
	path := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(path, large, 0o600))
	file, err := os.Open(path)
	check(t, err)
	t.Cleanup(func() { check(t, file.Close()) })
	t.Run("ways", func(t *testing.T) {
		for name, way := range map[string]struct{ tls, http2, file bool }{
			"HTTP/1.1":                     {},
			"HTTP/1.1 over TLS":            {tls: true},
			"HTTP/1.1 over TLS, of a file": {tls: true, file: true},
			"HTTP/2":                       {http2: true},
			"HTTP/2 over TLS":              {http2: true, tls: true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ended := make(chan error, 2)
				cfg := httpserver.Config{StallTimeout: stall, Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
					if way.file {
						ended <- x.SendFile(200, file, 0, int64(len(large)))
					} else {
						ended <- x.Send(200, large)
					}
				})}
				if way.tls {
					cfg.TLS = &tls.Config{GetCertificate: certificate(t).Get}
				}
				addr := start(t, cfg)
				ask := func() io.Reader {
					t.Helper()
					c := dial(t, addr)
					check(t, c.(*net.TCPConn).SetReadBuffer(64<<10)) // small, so that the kernel reports each read piece
					if way.tls {
						protocol := "http/1.1"
						if way.http2 {
							protocol = "h2"
						}
						c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
					}
					if way.http2 {
						h2 := dialH2On(t, c, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
						h2.must(h2.WriteWindowUpdate(0, 1<<30))
						h2.request(1, "GET", "/", true)
						return &frames{client: h2}
					}
					return getFile(t, c, bufio.NewReader(c))
				}
				_ = ask() // unread
				body := ask()
				tick := time.NewTicker(stall / 8)
				defer tick.Stop()
				got, n := make([]byte, len(large)), 0
				for began := time.Now(); time.Since(began) < 2*stall; <-tick.C {
					if _, err := io.ReadFull(body, got[n:n+64<<10]); err != nil {
						t.Fatal(err)
					}
					n += 64 << 10
				}
				if _, err := io.ReadFull(body, got[n:]); err != nil || !bytes.Equal(got, large) {
					t.Errorf("an answer that is not whole, or not what was sent: %v", err)
				}
				stalled, whole := <-ended, <-ended // in either order
				if stalled == nil {
					stalled, whole = whole, stalled
				}
				if !errors.Is(stalled, os.ErrDeadlineExceeded) || whole != nil {
					t.Errorf("a client that takes nothing, and one that takes little: %v, %v", stalled, whole)
				}
			})
		}
	})
}

// TestStallsOfStreams: a stream waits for its turn, however long other streams take, as long as the
// client reads. If the connection's window stays shut, the stream ends.
func TestStallsOfStreams(t *testing.T) {
	fretest.CheckLeaks(t)
	const stall, streams, size = 2 * time.Second, 28, 16 << 10
	ended := make(chan error, streams)
	addr := start(t, httpserver.Config{StallTimeout: stall, Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		ended <- x.Send(200, large[:size])
	})})
	c := dialH2(t, addr)
	c.must(c.WriteWindowUpdate(0, 1)) // makes the window four times size
	for i := range uint32(streams) {
		c.request(2*i+1, "GET", "/", true)
	}
	tick := time.NewTicker(stall / 14) // all streams together take twice as long
	defer tick.Stop()
	for got := 0; got < streams*size; {
		f := c.next(http2.FrameData, http2.FrameRSTStream, http2.FrameGoAway)
		if f.Header().Type != http2.FrameData {
			t.Fatalf("%v behind %d bytes", f, got)
		}
		got += int(f.Header().Length)
		<-tick.C
		c.must(c.WriteWindowUpdate(0, f.Header().Length))
	}
	for range streams {
		check(t, <-ended)
	}
	const more = 6 // the connection's window takes four of them
	for i := range uint32(more) {
		c.request(2*(streams+i)+1, "GET", "/", true)
	}
	stalled := 0
	for range more {
		if errors.Is(<-ended, os.ErrDeadlineExceeded) {
			stalled++
		}
	}
	if stalled != more-4 {
		t.Errorf("%d of %d answers end as the connection's window stays shut", stalled, more)
	}
}
