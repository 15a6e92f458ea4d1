package load

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// recorded is a connection that accepts all output and returns text in pieces of the given size.
type recorded struct {
	net.Conn
	text  []byte
	piece int
}

func (c *recorded) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.piece)], c.text)
	c.text = c.text[n:]
	return n, nil
}

func (*recorded) Write(p []byte) (int, error) { return len(p), nil }
func (*recorded) SetDeadline(time.Time) error { return nil }
func (*recorded) Close() error                { return nil }
func replay(text string, piece int) *conn {
	return &conn{net: &recorded{text: []byte(text), piece: piece}, stop: func() bool { return true }, buf: make([]byte, 4096)}
}

func TestAnswers(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name, text string
		isHead     bool
		want       answer
		keep       bool
		err        error
	}{
		{name: "length", text: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", want: answer{status: 200, bytes: 3}, keep: true},
		{name: "no reason", text: "HTTP/1.1 200\r\ncontent-length:3\r\n\r\nabc", want: answer{status: 200, bytes: 3}, keep: true},
		{name: "longer than the buffer", text: "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + long, want: answer{status: 200, bytes: 10_000}, keep: true},
		{name: "empty", text: "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", want: answer{status: 404, bytes: 0}, keep: true},
		{name: "no content", text: "HTTP/1.1 204 No Content\r\n\r\n", want: answer{status: 204, bytes: 0}, keep: true},
		{name: "not modified", text: "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", want: answer{status: 304, bytes: 0}, keep: true},
		{name: "HEAD", text: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", isHead: true, want: answer{status: 200, bytes: 0}, keep: true},
		{name: "chunks", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA ;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n", want: answer{status: 200, bytes: 13}, keep: true},
		{name: "chunks beat length", text: "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: answer{status: 200, bytes: 0}, keep: true},
		{name: "to the end", text: "HTTP/1.1 200 OK\r\n\r\n" + long, want: answer{status: 200, bytes: 10_000}},
		{name: "close", text: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Foo, Close\r\n\r\n", want: answer{status: 200, bytes: 0}},
		{name: "1.0", text: "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", want: answer{status: 200, bytes: 0}},
		{name: "1.0 kept", text: "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", want: answer{status: 200, bytes: 0}, keep: true},
		{name: "interim", text: "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", want: answer{status: 200, bytes: 1}, keep: true},
		{name: "more than was asked for", text: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabHTTP", want: answer{status: 200, bytes: 1}, keep: false},
		{name: "nothing", err: errEnded},
		{name: "half a head", text: "HTTP/1.1 200 OK\r\nA: b\r\n", err: errBroken},
		{name: "half a body", text: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na", err: errBroken},
		{name: "half a trailer", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n", err: errBroken},
		{name: "endless head", text: "HTTP/1.1 200 OK\r\nA: " + long, err: errTooLong},
		{name: "endless chunk size", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + long, err: errTooLong},
		{name: "not HTTP", text: "SSH-2.0-x\r\n\r\n", err: errAnswer},
		{name: "HTTP/2", text: "HTTP/2.0 200 OK\r\n\r\n", err: errAnswer},
		{name: "status", text: "HTTP/1.1 2x0 OK\r\n\r\n", err: errAnswer},
		{name: "long status", text: "HTTP/1.1 2000 OK\r\n\r\n", err: errAnswer},
		{name: "lengths that differ", text: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", err: errAnswer},
		{name: "negative length", text: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", err: errAnswer},
		{name: "huge length", text: "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", err: errAnswer},
		{name: "no name", text: "HTTP/1.1 200 OK\r\nwhat\r\n\r\n", err: errAnswer},
		{name: "chunk size", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", err: errAnswer},
		{name: "no chunk size", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n;\r\n", err: errAnswer},
		{name: "huge chunk", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", err: errAnswer},
		{name: "chunk too long", text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", err: errAnswer},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{1, 7, 1 << 20} {
				got, keep, err := replay(c.text, piece).do([]byte("request"), c.isHead, time.Second)
				if !errors.Is(err, c.err) || err == nil && (got != c.want || keep != c.keep && piece == 1<<20) {
					t.Errorf("in pieces of %d: got %+v, keep %v, %v; want %+v, %v, %v", piece, got, keep, err, c.want, c.keep, c.err)
				}
			}
		})
	}
}

// A request allocates no memory. The server of the test allocates no memory either.
func TestAllocations(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	body := strings.Repeat("x", 1<<20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in, out := make([]byte, 4096), []byte("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\nX: y\r\n\r\n"+body)
		for {
			if _, err := c.Read(in); err != nil {
				return
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}()
	p, err := Config{URL: "http://" + l.Addr().String()}.plan()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{plan: p}
	shard := newRecorder(p).shard(0)
	n := testing.AllocsPerRun(50, func() {
		now := time.Now()
		a, err := s.call(t.Context())
		if err != nil || a.bytes != 1<<20 {
			t.Errorf("%+v, %v", a, err)
		}
		shard.add(outcome{due: now, sent: now, end: time.Now(), answer: a})
	})
	s.close()
	<-done
	if n != 0 {
		t.Errorf("%v allocations a request, want none", n)
	}
}

// The parser agrees with net/http about status and length of the body for each answer that both
// accept.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n",
		"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\nto the end",
		"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n",
	} {
		f.Add(text, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, piece uint8) {
		got, _, err := replay(text, int(piece)+1).do(nil, false, time.Second)
		if err != nil {
			return
		}
		if got.bytes < 0 || got.bytes > int64(len(text)) || got.status < 100 {
			t.Fatalf("%+v of %d bytes", got, len(text))
		}
		// net/http also accepts, or reads differently on purpose: lines without CR, folded lines,
		// codings of HTTP/1.0, interim answers.
		bare := strings.ReplaceAll(text, "\r\n", "")
		if strings.ContainsAny(bare, "\r\n") || strings.Contains(text, "\n ") || strings.Contains(text, "\n\t") || !strings.HasPrefix(text, "HTTP/1.1 ") {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader([]byte(text))), nil)
		if err != nil || resp.StatusCode < 200 {
			return
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, resp.Body)
		if err == nil && (resp.StatusCode != got.status || n != got.bytes) {
			t.Errorf("status %d and %d bytes, net/http has %d and %d", got.status, got.bytes, resp.StatusCode, n)
		}
	})
}
