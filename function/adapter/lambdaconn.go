package adapter

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// Clients send two requests for each event, always in the same form. A connection's loop answers
// usual requests itself, in one goroutine and with one write each. net/http would add a second
// goroutine that reads ahead, and make a request, a context and two maps of headers. At the first
// unusual request the loop leaves the connection to net/http for good.
const (
	headBytes = 16 << 10
	endOfHead = "\r\n\r\n"
)

// accept serves the connections of a client until the process ends.
func (api *runtimeAPI) accept(l net.Listener, unusual *handedOver) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			r := bufio.NewReaderSize(c, headBytes)
			if api.serveConn(c.(*net.TCPConn), r) {
				_ = c.Close()
				return
			}
			unusual.conns <- &readAhead{c, r}
		}()
	}
}

// serveConn answers usual requests. It returns true after the connection has ended, and false
// before an unusual request, which it has not consumed.
func (api *runtimeAPI) serveConn(c *net.TCPConn, r *bufio.Reader) (done bool) {
	var out []byte
	for {
		head, err := peekHead(r)
		if err != nil {
			return r.Buffered() == 0 // at the end, or at a head that is too long
		}
		q, ok := usual(head)
		if !ok {
			return false
		}
		var inv *invocation
		switch {
		case q.next:
			_, _ = r.Discard(len(head)) // the bytes are buffered
			api.once.Do(func() { close(api.asked) })
			inv = <-api.next
			if r.Buffered() == 0 && hungUp(c) {
				go api.giveBack(inv)
				return true
			}
			api.mu.Lock()
			api.current = inv
			api.mu.Unlock()
			if out, err = inv.send(c, out[:0]); err != nil {
				inv.answer <- answered{err: fmt.Errorf("the client did not take the event: %w", err)}
				return true
			}
			continue
		case q.length > smallAnswer:
			return false
		}
		_, _ = r.Discard(len(head))
		body := make([]byte, q.length)
		if _, err := io.ReadFull(r, body); err != nil {
			return true // without an answer, the process's end decides the event's fate
		}
		if inv = api.takeID(q.id); inv != nil {
			inv.answer <- q.answer(body, api.whole)
			runtime.Gosched() // let the engine take the answer before the client asks for more
		}
		if _, err := c.Write(acceptedAnswer); err != nil {
			return true
		}
	}
}

var acceptedAnswer = []byte("HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n" + `{"status":"OK"}`)

// peekHead waits for the head of a request, with its empty line. The head of an unusual request may
// be incomplete.
func peekHead(r *bufio.Reader) ([]byte, error) {
	for n := 1; ; {
		if _, err := r.Peek(n); err != nil {
			return nil, err
		}
		p, _ := r.Peek(r.Buffered()) // returns the buffered bytes without a read
		if i := bytes.Index(p, []byte(endOfHead)); i >= 0 {
			return p[:i+len(endOfHead)], nil
		}
		if bareLine(p) {
			return p, nil
		}
		n = len(p) + 1
	}
}

// bareLine reports whether a line ends without a carriage return. net/http accepts such lines.
func bareLine(head []byte) bool {
	return bytes.Count(head, []byte("\n")) != bytes.Count(head, []byte("\r\n"))
}

// usualRequest is a parsed usual request.
type usualRequest struct {
	next   bool   // asks for an event; else it is an answer
	id     string // of the answered event
	failed bool   // the answer is an error
	kind   string // type of the body, or of the error
	length int
}

// usual parses a head. It returns false for all but the requests that clients send all the time.
func usual(head []byte) (q usualRequest, ok bool) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if bareLine(head) || !q.line(line) {
		return q, false
	}
	var f usualFields
	for len(rest) > 2 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, colon := bytes.Cut(line, []byte(":"))
		if !colon || len(name) == 0 || bytes.ContainsAny(name, " \t") || !f.add(name, bytes.Trim(value, " \t")) {
			return q, false
		}
	}
	q.kind = f.kind
	if q.failed {
		q.kind = f.errorType
	}
	if f.sized {
		q.length = f.length
	}
	return q, q.next && q.length == 0 || !q.next && q.length >= 0
}

// line parses a request line. The length of an answer is -1 until its header comes.
func (q *usualRequest) line(line []byte) bool {
	method, line, _ := bytes.Cut(line, []byte(" "))
	path, version, _ := bytes.Cut(line, []byte(" "))
	path, ok := bytes.CutPrefix(path, []byte(runtimeVersion+"/invocation/"))
	switch {
	case !ok || string(version) != "HTTP/1.1":
		return false
	case string(method) == "GET" && string(path) == "next":
		q.next = true
		return true
	case string(method) == "POST":
		id, what, _ := bytes.Cut(path, []byte("/"))
		if string(what) != "response" && string(what) != "error" || bytes.IndexByte(id, '%') >= 0 {
			return false
		}
		q.id, q.failed, q.length = string(id), string(what) == "error", -1
		return true
	}
	return false
}

// usualFields are the header fields of a usual request.
type usualFields struct {
	kind, errorType string
	length          int
	sized           bool
}

// add takes a field. It returns false for a field that usual requests do not have.
func (f *usualFields) add(name, value []byte) bool {
	switch string(bytes.ToLower(name)) {
	case "transfer-encoding", "expect", "upgrade", "trailer", "lambda-runtime-function-response-mode":
		return false
	case "connection":
		return strings.EqualFold(string(value), "keep-alive")
	case "content-length":
		n, err := strconv.ParseUint(string(value), 10, 31)
		if err != nil || f.sized {
			return false
		}
		f.length, f.sized = int(n), true
	case "content-type":
		f.kind = string(value)
		return f.kind != integrationResponse
	case "lambda-runtime-function-error-type":
		f.errorType = string(value)
	}
	return true
}

// answer converts an answer's body.
func (q *usualRequest) answer(body []byte, whole bool) answered {
	switch {
	case q.failed:
		return answered{err: failureIn(q.kind, body[:min(len(body), maxError)])}
	case whole:
		a := &channel.Answer{Status: 200}
		if err := httpAnswer(a, body); err != nil {
			return answered{err: err}
		}
		return answered{a: a}
	}
	return answered{a: &channel.Answer{Status: 200, Headers: [][2]string{{"content-type", answerType(q.kind)}}, Body: bytes.NewReader(body)}}
}

// fields are the headers of /next for an event.
func (inv *invocation) fields() [][2]string {
	e := inv.e
	out := [][2]string{
		{"Content-Type", "application/json"}, // without it clients take the event for bytes
		{"Lambda-Runtime-Aws-Request-Id", e.ID},
		{"Lambda-Runtime-Deadline-Ms", strconv.FormatInt(e.DeadlineMS, 10)},
		{"Lambda-Runtime-Invoked-Function-Arn", arn(e)},
		{"Lambda-Runtime-Trace-Id", traceID(e)},
	}
	if c, err := base64.StdEncoding.DecodeString(header(e, "X-Amz-Client-Context")); err == nil && len(c) > 0 {
		var line bytes.Buffer
		if json.Compact(&line, c) == nil {
			out = append(out, [2]string{"Lambda-Runtime-Client-Context", line.String()})
		}
	}
	if inv.length >= 0 {
		out = append(out, [2]string{"Content-Length", strconv.FormatInt(inv.length, 10)})
	}
	return out
}

// send answers /next, by one write for a short payload. It returns buf, grown.
func (inv *invocation) send(w io.Writer, buf []byte) ([]byte, error) {
	buf = append(buf, "HTTP/1.1 200 OK\r\n"...)
	for _, f := range inv.fields() {
		buf = append(append(append(append(buf, f[0]...), ": "...), f[1]...), "\r\n"...)
	}
	if inv.length < 0 {
		buf = append(buf, "Transfer-Encoding: chunked\r\n"...)
	}
	buf = append(buf, "\r\n"...)
	if inv.length >= 0 {
		_, err := w.Write(append(buf, inv.payload...))
		if err == nil && inv.rest != nil {
			_, err = io.Copy(w, inv.rest)
		}
		return buf, err
	}
	if _, err := w.Write(buf); err != nil {
		return buf, err
	}
	chunks := httputil.NewChunkedWriter(w)
	_, err := io.Copy(chunks, io.MultiReader(bytes.NewReader(inv.payload), inv.rest))
	if err == nil {
		err = chunks.Close()
	}
	if err == nil {
		_, err = io.WriteString(w, "\r\n")
	}
	return buf, err
}

// hungUp reports whether the client closed the connection while it waited for an event.
func hungUp(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != unix.EAGAIN
	})
	return gone || err != nil
}

// giveBack waits until the client asks for an event on another connection.
func (api *runtimeAPI) giveBack(inv *invocation) {
	select {
	case api.next <- inv:
	case <-inv.gone:
	case <-api.server.exited:
	}
}

// handedOver is the listener of net/http's server.
type handedOver struct {
	net.Listener
	conns chan net.Conn
}

// Accept waits for a connection with an unusual request.
func (l *handedOver) Accept() (net.Conn, error) { return <-l.conns, nil }

// readAhead is a connection with buffered bytes.
type readAhead struct {
	net.Conn
	r *bufio.Reader
}

// Read returns the buffered bytes first.
func (c *readAhead) Read(p []byte) (int, error) { return c.r.Read(p) }
