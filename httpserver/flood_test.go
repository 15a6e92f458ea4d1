package httpserver_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// flood calls each until the connection ends, and returns the code of GOAWAY. The code is empty if
// GOAWAY was lost, because the client continues to send.
func flood(t *testing.T, c *client, each func(i uint32) error) string {
	t.Helper()
	code := make(chan string, 1)
	go func() { code <- c.goAway() }()
	for i := range uint32(1 << 30) {
		if err := each(i); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection does not end")
			}
			break
		}
	}
	return <-code
}

// A flood of useless frames ends the connection (RFC 9113 section 10.5), for each kind of frame. No
// sane client sends such a flood.
func TestFloods(t *testing.T) {
	fretest.CheckLeaks(t)
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) { <-x.Context().Done() })})
	block := func(c *client) []byte {
		return c.block(":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a")
	}
	for name, each := range map[string]func(c *client, i uint32) error{
		"ping":          func(c *client, i uint32) error { return c.WritePing(false, [8]byte{byte(i)}) },
		"ping answers":  func(c *client, _ uint32) error { return c.WritePing(true, [8]byte{}) },
		"settings":      func(c *client, _ uint32) error { return c.WriteSettings() },
		"many settings": func(c *client, _ uint32) error { return c.WriteSettings(make([]http2.Setting, 1000)...) },
		"priority":      func(c *client, _ uint32) error { return c.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"unknown":       func(c *client, _ uint32) error { return c.WriteRawFrame(0xee, 0, 1, nil) },
		"window update": func(c *client, _ uint32) error { return c.WriteWindowUpdate(0, 1) },
		"empty data": func(c *client, i uint32) error {
			if i == 0 {
				if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(c), EndHeaders: true}); err != nil {
					return err
				}
			}
			return c.WriteData(1, false, nil)
		},
		"data of streams that are over": func(c *client, i uint32) error {
			if i == 0 {
				if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(c), EndHeaders: true}); err != nil {
					return err
				}
				if err := c.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			return c.WriteData(1, false, nil)
		},
		"streams refused": func(c *client, i uint32) error {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block(c), EndStream: true, EndHeaders: true})
		},
		"malformed": func(c *client, i uint32) error {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.block("X", "y"), EndStream: true, EndHeaders: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialH2(t, addr)
			if got := flood(t, c, func(i uint32) error { return each(c, i) }); got != "ENHANCE_YOUR_CALM" && got != "" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The server soon ends the connection of a client that starts streams and resets them at once
// (CVE-2023-44487). Meanwhile at most twice the allowed number of handlers run.
func TestRapidReset(t *testing.T) {
	fretest.CheckLeaks(t)
	const streams = 10
	var begun, running, most atomic.Int64
	release := make(chan struct{})
	addr := start(t, httpserver.Config{MaxStreams: streams, Handler: httpserver.HandlerFunc(func(*httpserver.Exchange) {
		begun.Add(1)
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release // ignore the reset
	})})
	c := dialH2(t, addr)
	block := c.block(":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a")
	got := flood(t, c, func(i uint32) error {
		if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block, EndStream: true, EndHeaders: true}); err != nil {
			return err
		}
		return c.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
	})
	if got != "ENHANCE_YOUR_CALM" && got != "" {
		t.Errorf("got %q", got)
	}
	close(release)
	if begun.Load() > 2*streams || most.Load() > 2*streams {
		t.Errorf("%d handlers, %d at once", begun.Load(), most.Load())
	}
}

// An endless head (CVE-2024-27316) in large, small or empty frames ends the connection. A small
// head that is large when decompressed is refused.
func TestContinuationFlood(t *testing.T) {
	fretest.CheckLeaks(t)
	addr := start(t, httpserver.Config{Handler: everything(t)})
	for name, piece := range map[string][]byte{
		"large": bytes.Repeat([]byte{0, 1, 'x', 1, 'y'}, 3000), "small": {0, 1, 'x', 1, 'y'}, "empty": {},
	} {
		c := dialH2(t, addr)
		c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(":method", "GET")}))
		if got := flood(t, c, func(uint32) error { return c.WriteContinuation(1, false, piece) }); got != "ENHANCE_YOUR_CALM" && got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	// 4 KiB in the table, named 10,000 times in 10,000 bytes.
	c := dialH2(t, addr)
	block := c.block(":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a", "x-large", strings.Repeat("a", 3900))
	block = append(block, bytes.Repeat([]byte{0xbe}, 10_000)...)
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true, EndHeaders: true}))
	if got, _ := c.answer(1); got != "431" {
		t.Errorf("bomb: got %s", got)
	}
	c.enc = hpack.NewEncoder(&c.head)
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: append([]byte{0x20}, block[:0]...), EndStream: true, EndHeaders: true}))
	if got, _ := c.answer(3); got != "PROTOCOL_ERROR" { // no pseudo-headers, but decompressed correctly
		t.Errorf("afterwards: got %s", got)
	}
}

// The server ends the connection of a client that requests more and more answers and reads none.
func TestAnswersNotTaken(t *testing.T) {
	fretest.CheckLeaks(t)
	const streams = 20
	ended := make(chan error, streams)
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) { ended <- x.Send(200, large) }), StallTimeout: 200 * time.Millisecond})
	c := dialH2(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.must(c.WriteWindowUpdate(0, 1<<30))
	var requests bytes.Buffer // in one write: the server may end the connection from the first answer on
	connection := c.Framer
	c.Framer = http2.NewFramer(&requests, nil)
	for i := range uint32(streams) {
		c.request(2*i+1, "GET", "/", true)
	}
	c.Framer = connection
	if _, err := requests.WriteTo(c.conn); err != nil {
		t.Fatal(err)
	}
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		for c.WritePing(false, [8]byte{}) == nil { // until the connection ends
		}
	}()
	failed := 0
	for range streams {
		if err := <-ended; err != nil {
			failed++
		}
	}
	if failed < streams/2 { // the kernel cannot hold so many
		t.Errorf("%d of %d answers failed", failed, streams)
	}
	_ = c.conn.Close()
	<-pinged
}

// Wrong numbers of streams, and frames at wrong times, end the connection.
func TestStates(t *testing.T) {
	fretest.CheckLeaks(t)
	addr := start(t, httpserver.Config{Handler: everything(t)})
	for name, test := range map[string]struct {
		do   func(c *client)
		want string
	}{
		"even stream":           {func(c *client) { c.request(2, "GET", "/", true) }, "PROTOCOL_ERROR"},
		"stream 0":              {func(c *client) { c.request(0, "GET", "/", true) }, "PROTOCOL_ERROR"},
		"smaller stream":        {func(c *client) { c.request(5, "GET", "/wait", true); c.request(3, "GET", "/", true) }, "STREAM_CLOSED"},
		"stream twice":          {func(c *client) { c.request(1, "GET", "/wait", true); c.request(1, "GET", "/", true) }, "STREAM_CLOSED"},
		"data of none":          {func(c *client) { c.must(c.WriteData(1, true, []byte("x"))) }, "PROTOCOL_ERROR"},
		"data of stream 0":      {func(c *client) { c.must(c.WriteData(0, true, []byte("x"))) }, "PROTOCOL_ERROR"},
		"reset of none":         {func(c *client) { c.must(c.WriteRSTStream(1, 0)) }, "PROTOCOL_ERROR"},
		"window of none":        {func(c *client) { c.must(c.WriteWindowUpdate(1, 1)) }, "PROTOCOL_ERROR"},
		"window of nothing":     {func(c *client) { c.must(c.WriteWindowUpdate(0, 0)) }, "PROTOCOL_ERROR"},
		"window too large":      {func(c *client) { c.must(c.WriteWindowUpdate(0, 1<<31-1)) }, "FLOW_CONTROL_ERROR"},
		"continuation of none":  {func(c *client) { c.must(c.WriteContinuation(1, true, nil)) }, "PROTOCOL_ERROR"},
		"push":                  {func(c *client) { c.must(c.WriteRawFrame(http2.FramePushPromise, 4, 1, make([]byte, 4))) }, "PROTOCOL_ERROR"},
		"frame too large":       {func(c *client) { c.must(c.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16<<10+1))) }, "FRAME_SIZE_ERROR"},
		"ping too short":        {func(c *client) { c.must(c.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 7))) }, "FRAME_SIZE_ERROR"},
		"settings cut":          {func(c *client) { c.must(c.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 7))) }, "FRAME_SIZE_ERROR"},
		"settings acknowledged": {func(c *client) { c.must(c.WriteRawFrame(http2.FrameSettings, 1, 0, make([]byte, 6))) }, "FRAME_SIZE_ERROR"},
		"padding":               {func(c *client) { c.must(c.WriteRawFrame(http2.FrameHeaders, 0xc, 1, []byte{9, 0x82})) }, "PROTOCOL_ERROR"},
		"padding of nothing":    {func(c *client) { c.must(c.WriteRawFrame(http2.FrameHeaders, 0xc, 1, nil)) }, "FRAME_SIZE_ERROR"},
		"frame in a head": {func(c *client) {
			c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(":method", "GET")}))
			c.must(c.WritePing(false, [8]byte{}))
		}, "PROTOCOL_ERROR"},
		"head of another": {func(c *client) {
			c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(":method", "GET")}))
			c.must(c.WriteContinuation(3, true, nil))
		}, "PROTOCOL_ERROR"},
		"no such entry": {func(c *client) {
			c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0x7f}, EndHeaders: true}))
		}, "COMPRESSION_ERROR"},
		"connection's window": {func(c *client) {
			for i := range uint32(5) {
				_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.block(":method", "POST", ":scheme", "http", ":path", "/wait", ":authority", "a"), EndHeaders: true})
				for range 16 {
					_ = c.WriteData(2*i+1, false, make([]byte, 16<<10)) // the last writes fail
				}
			}
		}, "FLOW_CONTROL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialH2(t, addr)
			c.next(http2.FrameSettings)
			test.do(c)
			if got := c.goAway(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// No input makes the server panic, and the server ends when the client ends.
func FuzzHTTP2(f *testing.F) {
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, seed := range []string{
		"", settings,
		settings + "\x00\x00\x08\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a\x53\x00",
		settings + "\x00\x00\x06\x01\x04\x00\x00\x00\x01\x83\x86\x84\x41\x01a\x00\x00\x03\x00\x01\x00\x00\x00\x01abc",
		settings + "\x00\x00\x02\x01\x01\x00\x00\x00\x01\x82\x86\x00\x00\x04\x09\x04\x00\x00\x00\x01\x84\x41\x01a",
		settings + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		settings + "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
		settings + "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
		settings + "\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x03\x10",
		settings + "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x04\x00\x00\x00\x01\x00\x05\x00\x00\x40\x00" + "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		s := httpserver.New(httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
			body, err := io.ReadAll(x.Body)
			if err != nil || len(x.Path) == 0 || len(x.Method) == 0 || len(x.Fields) == 0 {
				return
			}
			_ = x.Send(200, body)
		})})
		client, served := net.Pipe()
		l := &one{served, make(chan net.Conn, 1), make(chan struct{})}
		l.conns <- served
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.Serve(l)
		}()
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, client)
		}()
		_, _ = client.Write(append([]byte(http2.ClientPreface), input...)) // fails when the server refuses more
		_ = client.Close()
		_ = s.Close()
		<-ended
		<-read
	})
}
