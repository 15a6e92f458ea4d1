package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Exchange is a request and its answer. One goroutine may use it, until the handler returns.
//
// An answer is one call of [Exchange.Send], [Exchange.SendFile] or [Exchange.Switch], or
// [Exchange.Begin] followed by any number of [Exchange.Write] and [Exchange.Lend]. Header fields
// must be set before. If the handler returns without an answer, the client gets 500. If the
// answer is incomplete when the handler returns, or after [Exchange.Abort], the connection is
// broken: HTTP has no other signal.
type Exchange struct {
	Head       // of the request
	Body *Body // of the request

	over transport
	ctx  context.Context

	fields  []byte // of the answer's head
	begun   bool
	closes  bool  // the connection ends with the answer
	chunked bool  // the answer's body marks its own end
	hollow  bool  // the answer has no body; the handler's writes are dropped
	missing int64 // bytes of the answer's body still to send; -1 if unknown
	err     error // why the answer broke off
}

// transport is the connection of an exchange: an HTTP/1.1 connection or an HTTP/2 stream. Its
// calls return after the bytes are sent.
type transport interface {
	memory() *pool
	protocol() string // as in HTTP/1.1
	remoteAddr() string
	secure() bool // TLS

	// context returns a context that ends when the server is closed or, until unwatch, the client
	// has gone. unwatch also ends the tunnel.
	context() context.Context
	unwatch()

	// head builds the head of an answer with length bytes, -1 if unknown. bodyless omits the
	// length, as 204 and 304 need. The head is valid until the next call of the transport.
	head(x *Exchange, status int, length int64, bodyless bool) []byte
	// send sends a head, a part of a body, or both. last marks the end of the answer.
	send(head, body []byte, last bool) error
	// sendFile sends a head and length bytes of f from offset on, and ends the answer.
	sendFile(head []byte, f *os.File, offset, length int64) error
	// chunk sends a part of a body of unknown length; an empty p ends the body.
	chunk(p []byte) error
	// canLend reports whether another process can send chunks; lend lets a process do so.
	canLend() bool
	lend(to func(socket syscall.RawConn) (int64, error)) (int64, error)
}

// keptHead limits, in bytes, the memory of an answer's head that is kept for the next answer.
const keptHead = 16 << 10

// begin starts an exchange with the given body.
func (x *Exchange) begin(body *Body) {
	x.Body = body
	x.ctx = nil
	if cap(x.fields) > keptHead {
		x.fields = nil
	}
	x.fields, x.begun, x.closes, x.chunked, x.hollow, x.missing, x.err = x.fields[:0], false, x.Close, false, false, 0, nil
}

// end ends the context, the tunnel and the body, and waits for their goroutines.
func (x *Exchange) end() {
	x.over.unwatch()
	x.Body.end()
}

// Context returns a context that ends when the server is closed or the client has gone; then its
// cause is [ErrClientGone]. The server notices that the client has gone only once the request's
// body has been read. Over HTTP/1.1 all exchanges of a connection share the context: it does not
// end with the exchange, and neither do contexts or callbacks attached to it.
func (x *Exchange) Context() context.Context {
	if x.ctx == nil {
		x.ctx = x.over.context()
	}
	return x.ctx
}

// RemoteAddr returns the client's address.
func (x *Exchange) RemoteAddr() string { return x.over.remoteAddr() }

// Protocol returns "HTTP/1.0", "HTTP/1.1" or "HTTP/2".
func (x *Exchange) Protocol() string {
	if x.Minor == 0 {
		return "HTTP/1.0"
	}
	return x.over.protocol()
}

// Secure reports whether the client uses TLS.
func (x *Exchange) Secure() bool { return x.over.secure() }

// Set adds a field to the answer's head. It panics if name is not a token or value could end the
// field; check foreign input with [ValidField]. The server itself sets Date, Content-Length,
// Transfer-Encoding and Connection.
func (x *Exchange) Set(name, value string) {
	if !ValidField(name, value) {
		panic(fmt.Sprintf("httpserver: header field %q: %q", name, value))
	}
	x.fields = append(x.fields, name...)
	x.fields = append(x.fields, ": "...)
	x.fields = append(x.fields, value...)
	x.fields = append(x.fields, "\r\n"...)
}

// CloseAfter ends the connection after the answer, without waiting for the rest of the request's
// body. Called before the answer begins, it adds Connection: close. It has no effect on HTTP/2,
// whose streams end by themselves.
func (x *Exchange) CloseAfter() { x.closes = true }

// ValidField reports whether an answer's head can have the field.
func ValidField(name, value string) bool {
	for i := range len(name) {
		if !tokenBytes[name[i]] {
			return false
		}
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return name != ""
}

// Send answers with a body in memory.
func (x *Exchange) Send(status int, body []byte) error {
	head, err := x.head(status, int64(len(body)))
	if err != nil {
		return err
	}
	if x.hollow {
		body = nil
	}
	x.missing = 0
	return x.sent(x.over.send(head, body, true))
}

// SendFile answers with length bytes of f from offset on, sent by the kernel. The bytes must not
// change until the client has them, which may be long after SendFile has returned. f stays the
// caller's, and its own offset does not move.
func (x *Exchange) SendFile(status int, f *os.File, offset, length int64) error {
	head, err := x.head(status, length)
	if err != nil {
		return err
	}
	if x.hollow {
		length = 0
	}
	x.missing = 0
	if length == 0 {
		return x.sent(x.over.send(head, nil, true))
	}
	return x.sent(x.over.sendFile(head, f, offset, length))
}

// Begin starts an answer whose body follows by Write: length bytes, or -1 if unknown. It sends
// the head at once.
func (x *Exchange) Begin(status int, length int64) error {
	head, err := x.head(status, length)
	if err != nil {
		return err
	}
	x.missing = length
	if x.hollow {
		x.missing = 0
	}
	return x.sent(x.over.send(head, nil, x.missing == 0))
}

// ErrBodyTooLong means that an answer's body is longer than Begin announced.
var ErrBodyTooLong = errors.New("the answer is longer than announced")

// Write sends the next part of an answer's body. The kernel has copied p when Write returns.
func (x *Exchange) Write(p []byte) (int, error) {
	switch {
	case x.err != nil:
		return 0, x.err
	case !x.begun:
		return 0, errors.New("httpserver: Write before Begin")
	case x.hollow || len(p) == 0:
		return len(p), nil
	case x.missing >= 0 && int64(len(p)) > x.missing:
		return 0, x.sent(ErrBodyTooLong)
	}
	if x.missing > 0 {
		x.missing -= int64(len(p))
	}
	var err error
	if x.chunked {
		err = x.over.chunk(p)
	} else {
		err = x.over.send(nil, p, x.missing == 0)
	}
	if x.sent(err) != nil {
		return 0, err
	}
	return len(p), nil
}

// CanLend reports whether [Exchange.Lend] can send the rest of an answer of unknown length: over
// HTTP/1.1 without TLS, unless the method is HEAD.
func (x *Exchange) CanLend() bool {
	return x.Minor == 1 && x.over.canLend() && string(x.Method) != http.MethodHead
}

// Lend lets another process send the rest of an answer begun without a length. to passes the
// connection's socket to the process, waits until the process has written everything in chunks
// (RFC 9112 section 7.1) without the last, empty chunk, and returns the count of body bytes. The
// process must write nothing after. If the client reads nothing for [Config.StallTimeout], the
// connection ends, for the process too.
func (x *Exchange) Lend(to func(socket syscall.RawConn) (int64, error)) (n int64, err error) {
	switch {
	case x.err != nil:
		return 0, x.err
	case !x.begun || !x.chunked || x.hollow || !x.over.canLend():
		return 0, errors.New("httpserver: Lend without a lendable connection")
	}
	n, err = x.over.lend(to)
	return n, x.sent(err)
}

// Buffer acquires a buffer of at least size bytes from [Config.Memory]. The handler must release
// it. The error is [ErrNoMemory].
func (x *Exchange) Buffer(size int) (Buffer, error) { return x.over.memory().acquire(size) }

// Abort breaks the answer off.
func (x *Exchange) Abort() {
	if x.err == nil {
		x.err = errAborted
	}
}

var errAborted = errors.New("the answer was broken off")

// sent records the first error of the answer.
func (x *Exchange) sent(err error) error {
	if err != nil && x.err == nil {
		x.err = err
	}
	return err
}

// head begins the answer and returns its head from the transport.
func (x *Exchange) head(status int, length int64) ([]byte, error) {
	switch {
	case x.err != nil:
		return nil, x.err
	case x.begun:
		return nil, errors.New("httpserver: a second answer")
	case status < 200 || status > 999:
		return nil, fmt.Errorf("httpserver: status %d", status)
	}
	x.begun = true
	bodyless := status == http.StatusNoContent || status == http.StatusNotModified
	x.hollow = bodyless || string(x.Method) == http.MethodHead
	return x.over.head(x, status, length, bodyless), nil
}

// finish ends the answer. If the answer is incomplete, x.err says why.
func (x *Exchange) finish() {
	if !x.begun && x.err == nil {
		x.fields = x.fields[:0]
		_ = x.Send(http.StatusInternalServerError, nil) // x.err keeps the error
	}
	if x.err == nil && x.missing > 0 {
		x.err = errAborted
	}
	if x.err == nil && x.chunked && !x.hollow {
		_ = x.sent(x.over.chunk(nil))
	}
	x.end()
}

// now is a value of the Date field, with its second.
type now struct {
	second int64
	text   string
}

var today atomic.Pointer[now]

// date returns the value of the Date field, computed once per second.
func date() string {
	t := time.Now()
	d := today.Load()
	if d == nil || d.second != t.Unix() {
		d = &now{t.Unix(), t.UTC().Format(http.TimeFormat)}
		today.Store(d)
	}
	return d.text
}
