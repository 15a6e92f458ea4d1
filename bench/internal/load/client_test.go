package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// ask returns a request of a Client.
func ask(c *Client, path string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, c.Host())
}

func newClient(t *testing.T, c ClientConfig) *Client {
	t.Helper()
	client, err := NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// A client discards or keeps bodies with a length or in chunks, also over TLS.
func TestClient(t *testing.T) {
	fretest.CheckLeaks(t)
	long := strings.Repeat("0123456789", 100_000)
	var accepted int
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/length":
			w.Header().Set("Content-Length", strconv.Itoa(len(long)))
			_, _ = w.Write([]byte(long))
		case "/chunks":
			for part := range 10 {
				_, _ = w.Write([]byte(long[part*1000 : (part+1)*1000]))
				w.(http.Flusher).Flush()
			}
		case "/busy":
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(503)
		case "/end":
			w.Header().Set("Connection", "close")
		}
	})
	for _, secure := range []bool{false, true} {
		s := httptest.NewUnstartedServer(handler)
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				accepted++ // by the only goroutine that accepts
			}
		}
		config := ClientConfig{}
		if secure {
			s.StartTLS()
			config.TLS = s.Client().Transport.(*http.Transport).TLSClientConfig
		} else {
			s.Start()
		}
		config.URL = s.URL
		c := newClient(t, config)
		for _, want := range []struct {
			path string
			text string
			a    Answer
		}{
			{"/length", long, Answer{Status: 200, Bytes: int64(len(long))}},
			{"/chunks", long[:10_000], Answer{Status: 200, Bytes: 10_000}},
			{"/busy", "", Answer{Status: 503, RetryAfter: 7 * time.Second}},
			{"/end", "", Answer{Status: 200}},
			{"/length", long, Answer{Status: 200, Bytes: int64(len(long))}},
		} {
			for _, text := range []*bytes.Buffer{nil, new(bytes.Buffer)} {
				before := time.Now()
				a, err := c.Do(t.Context(), ask(c, want.path), text)
				if err != nil {
					t.Fatal(want.path, err)
				}
				if a.FirstByte.Before(before) || a.FirstByte.After(time.Now()) {
					t.Errorf("%s: the first byte came %v after the request", want.path, a.FirstByte.Sub(before))
				}
				a.FirstByte = time.Time{}
				if a != want.a || text != nil && text.String() != want.text {
					t.Errorf("%s, TLS %v: got %+v, %v; want %+v", want.path, secure, a, text != nil, want.a)
				}
			}
		}
		c.Close()
		s.Close()
	}
	if accepted != 6 { // the first connection, and a new connection after each /end
		t.Errorf("%d connections, want 6", accepted)
	}
}

// A client refuses to keep an endless body.
func TestClientText(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for range maxText>>20 + 1 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	c := newClient(t, ClientConfig{URL: s.URL})
	if _, err := c.Do(t.Context(), ask(c, "/"), new(bytes.Buffer)); !errors.Is(err, errText) {
		t.Error(err)
	}
	if a, err := c.Do(t.Context(), ask(c, "/"), nil); err != nil || a.Bytes != maxText+1<<20 {
		t.Errorf("%+v, %v", a, err)
	}
}

// The server sees a weak network: its segments are short, and it cannot send faster than the client
// reads.
func TestWeak(t *testing.T) {
	fretest.CheckLeaks(t)
	const size, rate = 1 << 20, 40e6
	segment := make(chan int, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := r.Context().Value(connKey{}).(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(size))
		_, _ = w.Write(make([]byte, size))
		if err := raw.Control(func(fd uintptr) {
			n, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
			if err != nil {
				t.Error(err)
			}
			segment <- n
		}); err != nil {
			t.Error(err)
		}
	}))
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	s.Start()
	defer s.Close()
	c := newClient(t, ClientConfig{URL: s.URL, Rate: rate})
	began := time.Now()
	a, err := c.Do(t.Context(), ask(c, "/"), nil)
	took := time.Since(began)
	c.Close()
	if err != nil || a.Bytes != size {
		t.Fatalf("%+v, %v", a, err)
	}
	if n := <-segment; n > weakSegment {
		t.Errorf("segments of %d bytes, want %d at most", n, weakSegment)
	}
	// Faster than the rate is wrong; a busy machine is slower.
	if least := time.Duration(8 * size / rate * float64(time.Second)); took < least-2*paceSlack {
		t.Errorf("%d bytes in %v, at the rate they take %v", size, took, least)
	}
}

type connKey struct{}

func TestRetryAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "3": 3 * time.Second, "999999999999999999999": 0, "99999999999": time.Hour, "-1": 0, "soon": 0,
		"Thu, 01 Jan 1970 00:00:00 GMT": 0, "Fri, 01 Jan 2100 00:00:00 GMT": time.Hour,
	} {
		if got := retryAfter([]byte(text)); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestClientErrors(t *testing.T) {
	for _, c := range []ClientConfig{{}, {URL: "ftp://x/"}, {URL: "http://"}, {URL: "http://x", Rate: -1}, {URL: "http://x", Timeout: -1}} {
		if _, err := NewClient(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	c := newClient(t, ClientConfig{URL: "http://" + fretest.Refusing(t)})
	if _, err := c.Do(t.Context(), ask(c, "/"), nil); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}
