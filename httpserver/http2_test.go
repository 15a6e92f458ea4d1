package httpserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// client speaks HTTP/2 frame by frame.
type client struct {
	*http2.Framer
	t    testing.TB
	conn net.Conn
	head bytes.Buffer
	enc  *hpack.Encoder
}

// dialH2 opens an HTTP/2 connection and sends the settings.
func dialH2(t testing.TB, addr string, settings ...http2.Setting) *client {
	t.Helper()
	return dialH2On(t, dial(t, addr), settings...)
}

// dialH2On is dialH2 on an open connection.
func dialH2On(t testing.TB, nc net.Conn, settings ...http2.Setting) *client {
	t.Helper()
	c := &client{Framer: http2.NewFramer(nc, nc), t: t, conn: nc}
	c.enc = hpack.NewEncoder(&c.head)
	c.AllowIllegalWrites = true
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.SetMaxReadFrameSize(1 << 20)
	if _, err := io.WriteString(nc, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c.must(c.WriteSettings(settings...))
	return c
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// block compresses fields: name, value, name, value.
func (c *client) block(fields ...string) []byte {
	c.head.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(c.head.Bytes())
}

// request starts a request; more are fields after the pseudo-headers.
func (c *client) request(stream uint32, method, path string, end bool, more ...string) {
	c.t.Helper()
	fields := append([]string{":method", method, ":scheme", "http", ":path", path, ":authority", "a"}, more...)
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block(fields...), EndStream: end, EndHeaders: true}))
}

// next reads the next frame of these kinds, of any stream.
func (c *client) next(kinds ...http2.FrameType) http2.Frame {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			c.t.Fatalf("waiting for %v: %v", kinds, err)
		}
		if slices.Contains(kinds, f.Header().Type) {
			return f
		}
	}
}

// answer reads an answer to the end, and opens the windows for the rest.
func (c *client) answer(stream uint32) (status string, body []byte) {
	c.t.Helper()
	for {
		switch f := c.next(http2.FrameHeaders, http2.FrameData, http2.FrameRSTStream, http2.FrameGoAway).(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream {
				if status = f.PseudoValue("status"); f.StreamEnded() {
					return status, body
				}
			}
		case *http2.DataFrame:
			if f.StreamID != stream {
				continue
			}
			body = append(body, f.Data()...)
			if f.StreamEnded() {
				return status, body
			}
			if n := f.Header().Length; n > 0 {
				c.must(c.WriteWindowUpdate(0, n))
				c.must(c.WriteWindowUpdate(stream, n))
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return f.ErrCode.String(), body
			}
		case *http2.GoAwayFrame:
			c.t.Fatalf("waiting for stream %d: %v %s", stream, f.ErrCode, f.DebugData())
		}
	}
}

// goAway reads to the end of the connection and returns the code of GOAWAY, or "" without GOAWAY.
func (c *client) goAway() (code string) {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			c.t.Fatal("the connection does not end")
		}
		if err != nil {
			return code
		}
		if f, ok := f.(*http2.GoAwayFrame); ok {
			code = f.ErrCode.String()
		}
	}
}

// The frames of an answer, byte by byte.
func TestFrames(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		x.Set("Content-Type", "a/b")
		x.Set("X-Y", "z")
		x.Set("Connection", "keep-alive") // has no place in HTTP/2
		check(t, x.Send(203, []byte("body")))
	})})
	c := dial(t, addr)
	if _, err := io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
		"\x00\x00\x08\x01\x05\x00\x00\x00\x01"+"\x82\x86\x84\x41\x01a\x53\x00"); err != nil {
		t.Fatal(err)
	}
	want := "\x00\x00\x12\x04\x00\x00\x00\x00\x00" + "\x00\x03\x00\x00\x00\x64" + "\x00\x04\x00\x04\x00\x00" + "\x00\x06\x00\x01\x00\x00" +
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00" + "\x00\x0f\x00\x01" +
		"\x00\x00\x00\x04\x01\x00\x00\x00\x00" +
		"\x00\x00\x36\x01\x04\x00\x00\x00\x01" + "\x08\x03203" + "\x0f\x12\x1dDATE" + "\x0f\x10\x03a/b" + "\x00\x03x-y\x01z" + "\x0f\x0d\x014" +
		"\x00\x00\x04\x00\x01\x00\x00\x00\x01" + "body"
	got := make([]byte, len(want)-len("DATE")+len(http.TimeFormat))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	at := strings.Index(want, "DATE")
	if masked := string(got[:at]) + "DATE" + string(got[at+len(http.TimeFormat):]); masked != want {
		t.Errorf("got  %q\nwant %q", masked, want)
	}
}

// Requests according to RFC 9113 sections 8.1 to 8.3 are served; malformed requests are refused.
func TestRequests(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		body, err := io.ReadAll(x.Body)
		if err != nil {
			return
		}
		text := fmt.Appendf(nil, "%s %s %s %s", x.Method, x.Path, x.Query, x.Host)
		for _, f := range x.Fields {
			text = fmt.Appendf(text, "|%s=%s", f.Name, f.Value)
		}
		check(t, x.Send(200, append(append(text, '|'), body...)))
	}), Limits: httpserver.Limits{Head: 10_000, Target: 100, Fields: 10}})
	c := dialH2(t, addr)
	get := func(more ...string) []string {
		return append([]string{":method", "GET", ":scheme", "http", ":path", "/p?q", ":authority", "a"}, more...)
	}
	many := get()
	for i := range 11 {
		many = append(many, fmt.Sprintf("x-%d", i), "y")
	}
	stream := uint32(1)
	for _, test := range []struct {
		name   string
		fields []string
		body   string
		want   string // status, and the body of 200
	}{
		{"plain", get(), "", "200 GET /p q a|host=a|"},
		{"body", get(), "text", "200 GET /p q a|host=a|text"},
		{"length", get("content-length", "4"), "text", "200 GET /p q a|content-length=4|host=a|text"},
		{"host alone", []string{":method", "GET", ":scheme", "https", ":path", "/", "host", "b:1"}, "", "200 GET /  b:1|host=b:1|"},
		{"host the same", get("host", "a"), "", "200 GET /p q a|host=a|"},
		{"cookies", get("cookie", "a=b", "x", "y", "cookie", "c=d", "cookie", "e=f"), "", "200 GET /p q a|cookie=a=b; c=d; e=f|x=y|host=a|"},
		{"asterisk", []string{":method", "OPTIONS", ":scheme", "http", ":path", "*", ":authority", "a"}, "", "200 OPTIONS *  a|host=a|"},
		{"trailers accepted", get("te", "trailers"), "", "200 GET /p q a|te=trailers|host=a|"},

		{"host another", get("host", "b"), "", "PROTOCOL_ERROR"},
		{"no host", []string{":method", "GET", ":scheme", "http", ":path", "/"}, "", "PROTOCOL_ERROR"},
		{"two hosts", []string{":method", "GET", ":scheme", "http", ":path", "/", "host", "a", "host", "a"}, "", "PROTOCOL_ERROR"},
		{"user in the host", []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "u@a"}, "", "PROTOCOL_ERROR"},
		{"no method", []string{":scheme", "http", ":path", "/", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"no scheme", []string{":method", "GET", ":path", "/", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"no path", []string{":method", "GET", ":scheme", "http", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"empty path", []string{":method", "GET", ":scheme", "http", ":path", "", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"path of a URL", []string{":method", "GET", ":scheme", "http", ":path", "http://b/", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"path with a space", []string{":method", "GET", ":scheme", "http", ":path", "/a b", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"path with a line", []string{":method", "GET", ":scheme", "http", ":path", "/ HTTP/1.1\r\nx: y", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"method with a space", []string{":method", "GET /", ":scheme", "http", ":path", "/", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"second path", get(":path", "/"), "", "PROTOCOL_ERROR"},
		{"unknown pseudo-header", append([]string{":protocol", "websocket"}, get()...), "", "PROTOCOL_ERROR"},
		{"late pseudo-header", []string{":method", "GET", ":scheme", "http", "x", "y", ":path", "/", ":authority", "a"}, "", "PROTOCOL_ERROR"},
		{"upper case", get("X", "y"), "", "PROTOCOL_ERROR"},
		{"name with a space", get("a b", "y"), "", "PROTOCOL_ERROR"},
		{"name with a colon", get("a:b", "y"), "", "PROTOCOL_ERROR"},
		{"value with a line", get("x", "y\r\nz: 1"), "", "PROTOCOL_ERROR"},
		{"value with zero", get("x", "y\x00"), "", "PROTOCOL_ERROR"},
		{"value with space around", get("x", " y"), "", "PROTOCOL_ERROR"},
		{"connection", get("connection", "close"), "", "PROTOCOL_ERROR"},
		{"transfer-encoding", get("transfer-encoding", "chunked"), "text", "PROTOCOL_ERROR"},
		{"upgrade", get("upgrade", "h2c"), "", "PROTOCOL_ERROR"},
		{"te", get("te", "gzip"), "", "PROTOCOL_ERROR"},
		{"longer than it says", get("content-length", "3"), "text", "PROTOCOL_ERROR"},
		{"shorter than it says", get("content-length", "5"), "text", "PROTOCOL_ERROR"},
		{"nothing of what it says", get("content-length", "5"), "", "PROTOCOL_ERROR"},
		{"two lengths", get("content-length", "4", "content-length", "4"), "text", "PROTOCOL_ERROR"},
		{"no length", get("content-length", "-1"), "text", "PROTOCOL_ERROR"},

		{"connect", []string{":method", "CONNECT", ":authority", "a:1"}, "", "501"},
		{"expectation", get("expect", "more"), "", "417"},
		{"long target", []string{":method", "GET", ":scheme", "http", ":path", "/" + strings.Repeat("a", 100), ":authority", "a"}, "", "414"},
		{"many fields", many, "", "431"},
		{"large head", get("x", strings.Repeat("a", 10_000)), "", "431"},
		{"large in sum", get("x", strings.Repeat("a", 6000), "y", strings.Repeat("b", 6000)), "text", "431"},
		{"after all of them", get(), "", "200 GET /p q a|host=a|"},
	} {
		block := c.block(test.fields...)
		first := min(len(block), 7)
		c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:first], EndStream: test.body == "", PadLength: 3}))
		c.must(c.WriteContinuation(stream, true, block[first:]))
		if test.body != "" {
			c.must(c.WriteDataPadded(stream, false, []byte(test.body), make([]byte, 9)))
			c.must(c.WriteData(stream, true, nil))
		}
		got, body := c.answer(stream)
		if got == "200" {
			got += " " + string(body)
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		stream += 2
	}
}

// A trailer ends a body, and has no further effect.
func TestTrailer(t *testing.T) {
	c := dialH2(t, start(t, httpserver.Config{Handler: everything(t)}))
	for i, test := range []struct {
		trailer []string
		end     bool
		want    string
	}{
		{[]string{"x", "y"}, true, "200 text"},
		{[]string{"x", "y"}, false, "PROTOCOL_ERROR"},
		{[]string{":path", "/"}, true, "PROTOCOL_ERROR"},
		{[]string{"X", "y"}, true, "PROTOCOL_ERROR"},
	} {
		stream := uint32(2*i + 1)
		path := "/echo"
		if test.want == "PROTOCOL_ERROR" {
			path = "/wait"
		}
		c.request(stream, "POST", path, false)
		c.must(c.WriteData(stream, false, []byte("text")))
		c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block(test.trailer...), EndStream: test.end, EndHeaders: true}))
		got, body := c.answer(stream)
		if got == "200" {
			got += " " + string(body)
		}
		if got != test.want {
			t.Errorf("%v: got %q, want %q", test.trailer, got, test.want)
		}
	}
}

// A client that waits for 100 gets 100 when the handler reads the body.
func TestContinueHTTP2(t *testing.T) {
	c := dialH2(t, start(t, httpserver.Config{Handler: everything(t)}))
	c.request(1, "POST", "/echo", false, "expect", "100-continue")
	if f := c.next(http2.FrameHeaders).(*http2.MetaHeadersFrame); f.PseudoValue("status") != "100" || f.StreamEnded() {
		t.Fatalf("got %v", f)
	}
	c.must(c.WriteData(1, true, []byte("abc")))
	if status, body := c.answer(1); status != "200" || string(body) != "abc" {
		t.Errorf("got %s %q", status, body)
	}
	c.request(3, "POST", "/unread", false, "expect", "100-continue")
	if status, body := c.answer(3); status != "413" || string(body) != "no" {
		t.Errorf("got %s %q", status, body)
	}
	if f := c.next(http2.FrameRSTStream).(*http2.RSTStreamFrame); f.ErrCode != http2.ErrCodeNo {
		t.Errorf("got %v", f)
	}
}

// An answer that breaks off ends with an error code, and other streams continue.
func TestBrokenHTTP2(t *testing.T) {
	fretest.CheckLeaks(t)
	c := dialH2(t, start(t, httpserver.Config{Handler: everything(t)}))
	stream := uint32(1)
	for _, path := range []string{"/short", "/abort", "/panic"} {
		c.request(stream, "GET", path, true)
		if got, _ := c.answer(stream); got != "INTERNAL_ERROR" {
			t.Errorf("%s: got %s", path, got)
		}
		stream += 2
	}
	c.request(stream, "GET", "/hello?you", true)
	if got, body := c.answer(stream); got != "200" || string(body) != "hello you" {
		t.Errorf("afterwards: %s %q", got, body)
	}
}

// Many simultaneous requests of every kind, in both directions, work on one connection.
func TestConcurrent(t *testing.T) {
	fretest.CheckLeaks(t)
	addr := start(t, httpserver.Config{Handler: everything(t)})
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			method, path, want := "GET", "/hello?x", []byte("hello x")
			var sent io.Reader
			switch i % 6 {
			case 1:
				path, want = "/part", large[1000:101_000]
			case 2:
				method, path, want, sent = "POST", "/echo", large[:300_000], bytes.NewReader(large[:300_000])
			case 3:
				path, want = "/stream", large
			case 4:
				method, path, want, sent = "POST", "/both", large[:700_000], io.MultiReader(bytes.NewReader(large[:700_000]))
			case 5:
				method, path, want, sent = "POST", "/unread", []byte("no"), bytes.NewReader(large[:300_000])
			}
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, sent)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := tr.RoundTrip(r)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes of %d, %v", path, len(got), len(want), err)
			}
		})
	}
	wg.Wait()
}

// A client may open its windows after each read, after each frame, or late: the received data
// allows this. More updates are a flood.
func TestWindowUpdates(t *testing.T) {
	fretest.CheckLeaks(t)
	const events = 10_000
	event := bytes.Repeat([]byte("x"), 100)
	cfg := httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		piece, n := large, 4
		switch string(x.Path) {
		case "/one":
			n = 1
		case "/events":
			piece, n = event, events
		}
		check(t, x.Begin(200, int64(n*len(piece))))
		for range n {
			if _, err := x.Write(piece); err != nil {
				t.Error(err)
				return
			}
		}
	})}
	plain := start(t, cfg)
	cfg.TLS = &tls.Config{GetCertificate: certificate(t).Get}
	secure := start(t, cfg)
	for _, size := range []int{4 << 10, 512} {
		t.Run(fmt.Sprintf("net/http reads %d bytes", size), func(t *testing.T) {
			tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Get("https://" + secure)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, make([]byte, size))
			if n != int64(4*len(large)) || err != nil || resp.ProtoMajor != 2 {
				t.Errorf("%d bytes of %d by %s, %v", n, 4*len(large), resp.Proto, err)
			}
		})
	}
	t.Run("each frame", func(t *testing.T) {
		c := dialH2(t, plain)
		c.request(1, "GET", "/events", true)
		if _, body := c.answer(1); len(body) != events*len(event) {
			t.Errorf("%d bytes of %d", len(body), events*len(event))
		}
	})
	t.Run("late", func(t *testing.T) {
		c := dialH2(t, plain, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		c.must(c.WriteWindowUpdate(0, 1<<30))
		c.request(1, "GET", "/one", true)
		for got := 0; got < len(large); {
			got += int(c.next(http2.FrameData).Header().Length)
		}
		for left := len(large); left > 0; left -= 4 << 10 {
			c.must(c.WriteWindowUpdate(0, 4<<10))
			c.must(c.WriteWindowUpdate(1, 4<<10))
		}
		c.must(c.WritePing(false, [8]byte{}))
		if f := c.next(http2.FramePing, http2.FrameGoAway); f.Header().Type != http2.FramePing {
			t.Fatalf("got %v", f)
		}
		if got := flood(t, c, func(uint32) error { return c.WriteWindowUpdate(0, 1) }); got != "ENHANCE_YOUR_CALM" && got != "" {
			t.Errorf("a flood behind it: got %q", got)
		}
	})
}

// Large answers take turns: a later answer does not wait for the end of an earlier answer.
func TestTurns(t *testing.T) {
	c := dialH2(t, start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		_ = x.Send(200, large)
	})}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	for _, stream := range []uint32{1, 3, 5, 7} {
		c.request(stream, "GET", "/", true)
		// The connection's window stops the answers until all requests are sent.
		if f := c.next(http2.FrameHeaders); f.Header().StreamID != stream {
			t.Fatalf("got %v", f)
		}
	}
	c.must(c.WriteWindowUpdate(0, 1<<30))
	got := map[uint32]int{}
	for len(got) < 4 || got[1] < len(large) || got[3] < len(large) || got[5] < len(large) || got[7] < len(large) {
		f := c.next(http2.FrameData)
		got[f.Header().StreamID] += int(f.Header().Length)
		if n := got[f.Header().StreamID]; n == len(large) {
			for _, stream := range []uint32{1, 3, 5, 7} {
				// Data sent before the window opened, and one turn.
				if got[stream] < n-(3*64<<10)-65535 {
					t.Fatalf("stream %d has %d bytes when another has %d", stream, got[stream], n)
				}
			}
			return
		}
	}
}

// A client can send no more than the window beyond the handler's reads. Unread data of a finished
// request reopens the window.
func TestUploadWindow(t *testing.T) {
	fretest.CheckLeaks(t)
	read := make(chan struct{})
	var once sync.Once
	c := dialH2(t, start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		if string(x.Path) == "/read" {
			<-read
			body, err := io.ReadAll(x.Body)
			if err != nil || !bytes.Equal(body, large[:600_000]) {
				t.Errorf("read %d bytes, %v", len(body), err)
			}
		}
		check(t, x.Send(200, nil))
	})}))
	var streamWindow, connWindow int
	f := c.next(http2.FrameSettings).(*http2.SettingsFrame)
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		streamWindow = int(v)
	}
	connWindow = 65535 + int(c.next(http2.FrameWindowUpdate).(*http2.WindowUpdateFrame).Increment)
	if streamWindow != 256<<10 || connWindow != 1<<20 {
		t.Fatalf("windows of %d and %d", streamWindow, connWindow)
	}
	c.request(1, "POST", "/read", false)
	c.must(c.WriteSettingsAck())
	for rest, left := large[:600_000], streamWindow; len(rest) > 0; {
		n := min(len(rest), left, 16<<10)
		if n == 0 {
			once.Do(func() { close(read) })
			f := c.next(http2.FrameWindowUpdate).(*http2.WindowUpdateFrame)
			if f.StreamID == 1 {
				left += int(f.Increment)
			}
			continue
		}
		c.must(c.WriteData(1, n == len(rest), rest[:n]))
		rest, left = rest[n:], left-n
	}
	if got, _ := c.answer(1); got != "200" {
		t.Errorf("got %s", got)
	}
	// A hundred unread bodies are more than the connection's window.
	for i := range 100 {
		stream := uint32(3 + 2*i)
		c.request(stream, "POST", "/", false)
		for range 2 {
			c.must(c.WriteData(stream, false, large[:16<<10]))
		}
		c.must(c.WriteData(stream, true, nil))
		if got, _ := c.answer(stream); got != "200" {
			t.Fatalf("stream %d: %s", stream, got)
		}
	}
	// More than a window is an error of the stream.
	c = dialH2(t, start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) { <-x.Context().Done() })}))
	c.request(1, "POST", "/", false)
	for range 17 {
		c.must(c.WriteData(1, false, large[:16<<10]))
	}
	if got, _ := c.answer(1); got != "FLOW_CONTROL_ERROR" {
		t.Errorf("got %s", got)
	}
}

// If the client resets a stream, the handler's context, body and answer end.
func TestReset(t *testing.T) {
	fretest.CheckLeaks(t)
	ended := make(chan string, 1)
	entered := make(chan struct{}, 1)
	c := dialH2(t, start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		switch string(x.Path) {
		case "/context":
			entered <- struct{}{}
			<-x.Context().Done()
			ended <- fmt.Sprint(context.Cause(x.Context()))
		case "/body":
			entered <- struct{}{}
			_, err := io.ReadAll(x.Body)
			ended <- fmt.Sprint(err)
		case "/answer":
			entered <- struct{}{}
			ended <- fmt.Sprint(x.Send(200, large))
		default:
			check(t, x.Send(200, nil))
		}
	})}))
	stream := uint32(1)
	for path, want := range map[string]error{"/context": httpserver.ErrClientGone, "/body": io.ErrUnexpectedEOF, "/answer": httpserver.ErrClientGone} {
		c.request(stream, "POST", path, path != "/body")
		<-entered
		c.must(c.WriteRSTStream(stream, http2.ErrCodeCancel))
		if got := <-ended; got != want.Error() {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
		stream += 2
	}
	c.request(stream, "GET", "/", true)
	if got, _ := c.answer(stream); got != "200" {
		t.Errorf("afterwards: %s", got)
	}
}

// A client may announce a smaller or a larger table of header fields: all answers stay readable. A
// client that exceeds the server's table is refused.
func TestTableSize(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t)})
	for _, size := range []uint32{0, 4096, 1<<32 - 1} {
		c := dialH2(t, addr, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
		c.ReadMetaHeaders = hpack.NewDecoder(size, nil)
		for i := range 5 {
			c.request(uint32(2*i+1), "GET", "/hello?x", true)
			if got, body := c.answer(uint32(2*i + 1)); got != "200" || string(body) != "hello x" {
				t.Errorf("%d: %s %q", size, got, body)
			}
		}
	}
	// The server's table has 4096 bytes: a client that announces more is refused.
	c := dialH2(t, addr)
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x3f, 0xe2, 0x1f}, EndStream: true, EndHeaders: true}))
	if got := c.goAway(); got != "COMPRESSION_ERROR" {
		t.Errorf("got %q", got)
	}
}

// Shutdown names the last answered stream, and waits for it.
func TestShutdownHTTP2(t *testing.T) {
	fretest.CheckLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	s := httpserver.New(httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		entered <- struct{}{}
		<-leave
		check(t, x.Send(200, []byte("whole")))
	})})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	idle, busy := dialH2(t, l.Addr().String()), dialH2(t, l.Addr().String())
	idle.next(http2.FrameSettings)
	idle.next(http2.FrameSettings) // the acknowledgement
	busy.request(1, "GET", "/", true)
	<-entered
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	if got := idle.goAway(); got != "NO_ERROR" {
		t.Errorf("idle: %q", got)
	}
	f := busy.next(http2.FrameGoAway).(*http2.GoAwayFrame)
	if f.ErrCode != http2.ErrCodeNo || f.LastStreamID != 1 {
		t.Errorf("got %v", f)
	}
	busy.request(3, "GET", "/late", true) // is not answered
	close(leave)
	if got, body := busy.answer(1); got != "200" || string(body) != "whole" {
		t.Errorf("got %s %q", got, body)
	}
	if rest, err := io.ReadAll(busy.conn); len(rest) != 0 || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	check(t, s.Close())
}

// Close breaks off running requests, and waits for their handlers.
func TestCloseHTTP2(t *testing.T) {
	fretest.CheckLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan struct{})
	causes := make(chan error, 1)
	s := httpserver.New(httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		ctx := x.Context()
		entered <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
	})})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c := dialH2(t, l.Addr().String())
	c.request(1, "GET", "/", true)
	<-entered
	check(t, s.Close())
	if err := <-causes; !errors.Is(err, httpserver.ErrClosed) {
		t.Errorf("got %v", err)
	}
	<-served
}

// The server ends slow clients, in every phase.
func TestTimeoutsHTTP2(t *testing.T) {
	fretest.CheckLeaks(t)
	broken := make(chan error, 2)
	cfg := httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		if string(x.Path) == "/body" {
			_, err := io.ReadAll(x.Body)
			broken <- err
			return
		}
		broken <- x.Send(200, large)
	})}
	// One server per case: a slow machine must meet only the tested limit.
	idle, head, stall := cfg, cfg, cfg
	idle.IdleTimeout, head.HeadTimeout, stall.StallTimeout = 200*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond
	for name, test := range map[string]struct {
		text string
		cfg  httpserver.Config
	}{
		"no settings":        {http2.ClientPreface, head},
		"half a frame":       {http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x08\x06\x00\x00\x00\x00\x00abc", head},
		"half a head":        {http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x01\x01\x01\x00\x00\x00\x01\x82", head},
		"idle":               {http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00", idle},
		"first of a preface": {http2.ClientPreface[:18], head},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, l.Addr().String())
		if _, err := io.WriteString(c, test.text); err != nil {
			t.Fatal(err)
		}
		startOn(t, l, test.cfg) // the preface is sent before the connection can be idle
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Contains(got, []byte("\x07\x00\x00\x00\x00\x00")) { // GOAWAY
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	addr := start(t, stall)
	c := dialH2(t, addr)
	c.request(1, "POST", "/body", false)
	c.must(c.WriteData(1, false, []byte("ab")))
	if err := <-broken; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("slow body: %v", err)
	}
	c = dialH2(t, addr) // the window stays shut
	c.request(1, "GET", "/", true)
	if err := <-broken; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("shut window: %v", err)
	}
	c = dialH2(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}) // reads nothing
	c.must(c.WriteWindowUpdate(0, 1<<30))
	c.request(1, "GET", "/", true)
	if err := <-broken; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("full socket: %v", err)
	}
}
