package httpserver_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// until polls for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(hangs); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A connection that waits for its client holds no memory of the pool, in any protocol. The next
// request is served on the same connection.
func TestWaitingHoldsNothing(t *testing.T) {
	fretest.CheckLeaks(t)
	pool := fretest.Buffers(t, 16<<20)
	cfg := httpserver.Config{Handler: everything(t), Memory: buffer.Memory{Pool: pool}}
	plain := start(t, cfg)
	cfg.TLS = &tls.Config{GetCertificate: certificate(t).Get}
	secure := start(t, cfg)
	for _, test := range []struct {
		name, url string
		http2     bool
	}{
		{"HTTP/1.1", "http://" + plain, false},
		{"HTTP/2", "http://" + plain, true},
		{"HTTP/1.1 over TLS", "https://" + secure, false},
		{"HTTP/2 over TLS", "https://" + secure, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			ended := keeps(tr)
			tr.Protocols.SetHTTP1(!test.http2)
			tr.Protocols.SetHTTP2(test.http2)
			tr.Protocols.SetUnencryptedHTTP2(test.http2)
			defer tr.CloseIdleConnections()
			for i := range 3 {
				resp, err := (&http.Client{Transport: tr}).Post(test.url+"/echo", "", bytes.NewReader(large[:i*100_000]))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || !bytes.Equal(got, large[:i*100_000]) || resp.Close {
					t.Fatalf("%d bytes, %v, close %t", len(got), err, resp.Close)
				}
				until(t, "all memory is given back", func() bool { return pool.Stats().Held == 0 })
			}
			if n := ended(); n != 0 {
				t.Errorf("the server has ended %d connections", n)
			}
		})
	}
}

// asked records the waiting times of its callers, and refuses buffers of more than most bytes.
type asked struct {
	httpserver.Memory
	mu    sync.Mutex
	most  int
	waits []time.Duration
}

func (m *asked) Acquire(size int, wait time.Duration) (httpserver.Buffer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits = append(m.waits, wait)
	if size > m.most {
		return nil, buffer.ErrExhausted
	}
	return m.Memory.Acquire(size, 0)
}

func (m *asked) set(most int) (waits []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.most = most
	waits, m.waits = m.waits, nil
	return waits
}

// Without memory requests are refused, the second at once. With memory they are answered again.
func TestNoMemory(t *testing.T) {
	fretest.CheckLeaks(t)
	pool := fretest.Buffers(t, 4<<20)
	memory := &asked{Memory: buffer.Memory{Pool: pool}, most: 1 << 20}
	s, addr := startServer(t, httpserver.Config{Handler: everything(t), Memory: memory})
	const request = "GET /hello?1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	kept := dialH2(t, addr)
	kept.request(1, "GET", "/hello?2", true)
	if status, body := kept.answer(1); status != "200" || string(body) != "hello 2" {
		t.Errorf("HTTP/2: %s %q", status, body)
	}
	until(t, "what the connection has is given back", func() bool { return pool.Stats().Held == 0 })

	memory.set(0)
	for i := range 2 {
		if got := exchange(t, addr, request); !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, "\r\nConnection: close\r\n") || !strings.HasSuffix(got, httpserver.ErrNoMemory.Error()+"\n") {
			t.Errorf("request %d: got %q", i, got)
		}
		if waits := memory.set(0); len(waits) != 1 || (waits[0] > 0) != (i == 0) {
			t.Errorf("request %d was to wait for %v", i, waits)
		}
	}
	kept.request(3, "GET", "/hello?3", true)
	if code := kept.goAway(); code != http2.ErrCodeEnhanceYourCalm.String() {
		t.Errorf("HTTP/2: %s", code)
	}
	if n := s.Stats().NoMemory; n != 3 {
		t.Errorf("%d times no memory, want 3", n)
	}

	memory.set(1 << 20)
	for range 2 {
		if got := exchange(t, addr, request); !strings.HasSuffix(got, "hello 1") {
			t.Errorf("got %q", got)
		}
	}
	if waits := memory.set(1 << 20); len(waits) != 2 || waits[0] != 0 || waits[1] == 0 {
		t.Errorf("with memory again they were to wait for %v", waits)
	}
}

// If there is no memory for an upload over HTTP/2, the upload ends and later requests on the
// connection are answered.
func TestNoMemoryForBody(t *testing.T) {
	memory := &asked{Memory: buffer.Memory{Pool: fretest.Buffers(t, 4<<20)}, most: 8 << 10} // a body needs a larger buffer
	addr := start(t, httpserver.Config{Memory: memory, Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		_, err := io.ReadAll(x.Body)
		if (err == nil) != (x.Body == nil) {
			t.Errorf("the body's end: %v", err)
		}
		if err == nil {
			check(t, x.Send(200, nil))
		}
	})})
	c := dialH2(t, addr)
	c.request(1, "POST", "/", false)
	c.must(c.WriteData(1, true, []byte("body")))
	if status, _ := c.answer(1); status != http2.ErrCodeInternal.String() {
		t.Errorf("got %s", status)
	}
	c.request(3, "GET", "/", true)
	if status, _ := c.answer(3); status != "200" {
		t.Errorf("behind it: got %s", status)
	}
}

// NewMemory hands out only its own memory.
func TestNewMemory(t *testing.T) {
	m := httpserver.NewMemory(128 << 10)
	first, err := m.Acquire(65<<10, 0)
	if err != nil || len(first.Bytes()) != 128<<10 {
		t.Fatalf("%d bytes, %v", len(first.Bytes()), err)
	}
	for _, wait := range []time.Duration{0, time.Millisecond} {
		if _, err := m.Acquire(1, wait); err == nil {
			t.Error("more than all")
		}
	}
	got := make(chan httpserver.Buffer)
	for range 2 {
		go func() {
			b, err := m.Acquire(8<<10, time.Minute)
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
	}
	first.Release()
	for range 2 {
		b := <-got
		if len(b.Bytes()) != 8<<10 {
			t.Errorf("%d bytes", len(b.Bytes()))
		}
		b.Release()
	}
	if _, err := m.Acquire(1<<40, 0); err == nil {
		t.Error("more than there is")
	}
	if b, err := m.Acquire(128<<10, 0); err != nil {
		t.Errorf("not all came back: %v", err)
	} else {
		b.Release()
	}
}
