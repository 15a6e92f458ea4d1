package adapter

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/fre-engine/fre/function/channel"
)

// startAPI serves the Runtime API to the test itself.
func startAPI(t *testing.T) (api *runtimeAPI, address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	api = &runtimeAPI{
		server: &server{gone: context.Background(), child: &child{exited: make(chan struct{})}, listener: -1},
		next:   make(chan *invocation), asked: make(chan struct{}), failed: make(chan *channel.Failure, 1),
	}
	unusual := &handedOver{Listener: l, conns: make(chan net.Conn)}
	go api.accept(l, unusual)
	go func() { _ = (&http.Server{Handler: api.handler()}).Serve(unusual) }()
	t.Cleanup(func() {
		close(api.server.exited)
		_ = l.Close()
	})
	return api, l.Addr().String()
}

// event lets the API handle an event.
func event(ctx context.Context, api *runtimeAPI, id, body string) <-chan answered {
	done := make(chan answered, 1)
	go func() {
		a, err := api.handle(ctx, &channel.Event{Invocation: channel.Invocation{ID: id, Request: channel.Request{Body: strings.NewReader(body), Length: int64(len(body))}}})
		done <- answered{a, err}
	}()
	return done
}

type rawClient struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, address string) *rawClient {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &rawClient{t, c, bufio.NewReader(c)}
}

func (c *rawClient) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// got is a complete answer.
type got struct {
	status int
	length int64 // the length in its head, -1 without one
	id     string
	kind   string
	body   string
}

func (c *rawClient) read() got {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return got{resp.StatusCode, resp.ContentLength, resp.Header.Get("Lambda-Runtime-Aws-Request-Id"), resp.Header.Get("Content-Type"), string(body)}
}

const askNext = "GET " + runtimeVersion + "/invocation/next HTTP/1.1\r\nHost: x\r\n\r\n"

// TestUsualAndUnusual: One connection carries usual requests, in pieces and ahead of their turn,
// and then an unusual request. net/http answers this request and all later requests.
func TestUsualAndUnusual(t *testing.T) {
	api, address := startAPI(t)
	c := dial(t, address)
	answer := func(id, more, body string) string {
		return "POST " + runtimeVersion + "/invocation/" + id + "/response HTTP/1.1\r\nHost: x\r\n" + more + "\r\n\r\n" + body
	}
	for i, request := range []string{
		answer("a0", "Content-Length: 3", `"a"`),
		answer("a1", "Transfer-Encoding: chunked", "3\r\n\"b\"\r\n0\r\n\r\n"),
		answer("a2", "Content-Length: 3", `"c"`),
		answer("a3", fmt.Sprintf("Content-Length: %d", smallAnswer+2), `"`+strings.Repeat("d", smallAnswer)+`"`),
	} {
		id := fmt.Sprint("a", i)
		done := event(t.Context(), api, id, `{"n":1}`)
		c.send(askNext[:7])
		c.send(askNext[7:])
		if e := c.read(); e.id != id || e.kind != "application/json" || e.body != `{"n":1}` {
			t.Fatalf("event %s: %+v", id, e)
		}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			c.send(request)
		}()
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		body, err := io.ReadAll(got.a.Body)
		if err != nil || !bytes.HasPrefix(body, []byte{'"', 'a' + byte(i)}) {
			t.Errorf("answer %s: %.10q, %v", id, body, err)
		}
		if closer, ok := got.a.Body.(io.Closer); ok {
			_ = closer.Close()
		}
		if a := c.read(); a.status != http.StatusAccepted || a.body != `{"status":"OK"}` {
			t.Errorf("after %s: %+v", id, a)
		}
		<-sent
	}
}

// TestLargeEvents: Large events of known and of unknown length arrive complete.
func TestLargeEvents(t *testing.T) {
	api, address := startAPI(t)
	c := dial(t, address)
	text := strings.Repeat("x", 1<<20)
	for _, length := range []int64{1 << 20, -1} {
		done := make(chan answered, 1)
		go func() {
			a, err := api.handle(t.Context(), &channel.Event{Invocation: channel.Invocation{ID: "big", Request: channel.Request{Body: strings.NewReader(text), Length: length}}})
			done <- answered{a, err}
		}()
		c.send(askNext)
		if e := c.read(); e.body != text || e.length != length {
			t.Errorf("%d bytes, of %d, want %d of %d", len(e.body), e.length, len(text), length)
		}
		c.send("POST " + runtimeVersion + "/invocation/big/error HTTP/1.1\r\nLambda-Runtime-Function-Error-Type: Late\r\nContent-Length: 24\r\n\r\n" + `{"errorMessage":"tired"}`)
		var f *channel.Failure
		if got := <-done; !errors.As(got.err, &f) || f.Type != "Late" || f.Message != "tired" {
			t.Errorf("got %v, want Late: tired", got.err)
		}
		c.read()
	}
}

// TestClientHangsUp: An event skips a client that has closed its connection and goes to the next
// client.
func TestClientHangsUp(t *testing.T) {
	api, address := startAPI(t)
	first := dial(t, address)
	first.send(askNext)
	<-api.asked
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	done := event(t.Context(), api, "a", "{}")
	second := dial(t, address)
	second.send(askNext)
	if e := second.read(); e.id != "a" {
		t.Fatalf("got %+v", e)
	}
	second.send("POST " + runtimeVersion + "/invocation/a/response HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
	if got := <-done; got.err != nil {
		t.Error(got.err)
	}
}

// TestBareLineFeeds: net/http answers heads with bare line feeds, which the loop refuses.
func TestBareLineFeeds(t *testing.T) {
	api, address := startAPI(t)
	for _, end := range []string{"\n\n", "\n\r\n"} {
		done := event(t.Context(), api, "a", "{}")
		c := dial(t, address)
		c.send("GET " + runtimeVersion + "/invocation/next HTTP/1.1\nHost: x" + end)
		if e := c.read(); e.id != "a" {
			t.Fatalf("got %+v", e)
		}
		c.send("POST " + runtimeVersion + "/invocation/a/response HTTP/1.1\nHost: x\nContent-Length: 2" + end + "{}")
		if got := <-done; got.err != nil {
			t.Error(got.err)
		}
	}
}

// FuzzUsual: The loop and net/http read the same request from a head.
func FuzzUsual(f *testing.F) {
	f.Add([]byte(askNext))
	f.Add([]byte("POST " + runtimeVersion + "/invocation/8476a536/response HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n"))
	f.Add([]byte("POST " + runtimeVersion + "/invocation/8476a536/error HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n"))
	f.Add([]byte("GET " + runtimeVersion + "/invocation/next HTTP/1.1\r\nHost: x\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if !bytes.HasSuffix(head, []byte(endOfHead)) || bytes.Index(head, []byte(endOfHead)) != len(head)-len(endOfHead) {
			return
		}
		q, ok := usual(head)
		if !ok {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil {
			return // net/http also checks names and values
		}
		want := "/invocation/next"
		if !q.next {
			want = "/invocation/" + q.id + "/response"
			if q.failed {
				want = "/invocation/" + q.id + "/error"
			}
		}
		if r.RequestURI != runtimeVersion+want || r.ContentLength != int64(q.length) || len(r.TransferEncoding) > 0 || r.Close {
			t.Errorf("%q: %+v, net/http has %s %d %v", head, q, r.RequestURI, r.ContentLength, r.TransferEncoding)
		}
	})
}
