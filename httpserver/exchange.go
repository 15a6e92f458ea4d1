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

// Exchange is a request and its answer. It is for one goroutine, until the handler
// returns.
//
// An answer is one of [Exchange.Send], [Exchange.SendFile], [Exchange.Switch], or
// [Exchange.Begin] followed by any number of [Exchange.Write], and [Exchange.Lend]; the
// fields of its head are set before.
// A handler that returns without one answers 500. An answer that is not whole when
// the handler returns, or after [Exchange.Abort], breaks the connection: there is no
// other way to say so.
type Exchange struct {
	Head       // of the request
	Body *Body // of the request

	over   transport
	ctx    context.Context
	tunnel *Tunnel // nil but after Switch

	fields  []byte // of the answer's head
	begun   bool
	closes  bool  // the connection ends with the answer
	chunked bool  // the end of the answer's body is told by itself
	hollow  bool  // the answer has no body, whatever the handler writes
	missing int64 // bytes of the answer's body to come; -1 where nobody knows
	err     error // the answer broke off
}

// transport is what an exchange happens over: an HTTP/1.1 connection or a stream of an
// HTTP/2 one. What it is given to send it has sent when it returns.
type transport interface {
	server() *Server
	protocol() string // as in HTTP/1.1
	remoteAddr() string
	secure() bool // TLS

	// context ends when the server is closed or, until unwatch, the client has gone.
	context() context.Context
	unwatch()

	// head makes the head of an answer with length bytes to come, -1 where nobody knows;
	// bodyless says that there are none and nothing is said of them. It is good until
	// the next call of the transport.
	head(x *Exchange, status int, length int64, bodyless bool) []byte
	// send sends a head, a part of a body or both; last says that nothing follows.
	send(head, body []byte, last bool) error
	// sendFile sends a head and length bytes of f from offset on, which end the answer.
	sendFile(head []byte, f *os.File, offset, length int64) error
	// chunk sends a part of a body whose length was not said; none is its end.
	chunk(p []byte) error
	// canLend says whether another process can send chunks; lend has it do so.
	canLend() bool
	lend(to func(socket syscall.RawConn) (int64, error)) (int64, error)
}

// keptHead is the most that is kept of an answer's head's memory for the next, in bytes.
const keptHead = 16 << 10

// begin makes an exchange of x with that body.
func (x *Exchange) begin(body *Body) {
	x.Body = body
	x.ctx, x.tunnel = nil, nil
	if cap(x.fields) > keptHead {
		x.fields = nil
	}
	x.fields, x.begun, x.closes, x.chunked, x.hollow, x.missing, x.err = x.fields[:0], false, x.Close, false, false, 0, nil
}

// end ends what depends on the exchange, and waits for it.
func (x *Exchange) end() {
	x.over.unwatch()
	x.Body.end()
	x.tunnel.end()
}

// Context ends when the server is closed or the client has gone, which shows once its
// body has been read: then its cause is [ErrClientGone]. Over HTTP/1.1 it does not end
// with the exchange, since the connection's next one has the same: what a handler leaves
// hanging on it stays there.
func (x *Exchange) Context() context.Context {
	if x.ctx == nil {
		x.ctx = x.over.context()
	}
	return x.ctx
}

// RemoteAddr is the client's address.
func (x *Exchange) RemoteAddr() string { return x.over.remoteAddr() }

// Protocol is "HTTP/1.0", "HTTP/1.1" or "HTTP/2".
func (x *Exchange) Protocol() string {
	if x.Minor == 0 {
		return "HTTP/1.0"
	}
	return x.over.protocol()
}

// Secure says whether the client speaks TLS.
func (x *Exchange) Secure() bool { return x.over.secure() }

// Set adds a field to the answer's head. It panics where the name is no token or the
// value could end the field: whoever passes on what others say checks it. The server
// itself says Date, Content-Length, Transfer-Encoding and Connection.
func (x *Exchange) Set(name, value string) {
	if !ValidField(name, value) {
		panic(fmt.Sprintf("httpserver: header field %q: %q", name, value))
	}
	x.fields = append(x.fields, name...)
	x.fields = append(x.fields, ": "...)
	x.fields = append(x.fields, value...)
	x.fields = append(x.fields, "\r\n"...)
}

// CloseAfter has the connection end with the answer, which says so where it has not
// begun yet: what is left of the request's body is not waited for. Streams of HTTP/2
// end by themselves.
func (x *Exchange) CloseAfter() { x.closes = true }

// ValidField says whether an answer's head can have the field.
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

// Send answers with a body that is in memory.
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

// SendFile answers with length bytes of f from offset on, which the kernel sends: f
// must not change until the client has them, however long that takes after SendFile
// has returned. It stays the caller's, and its own offset where it is.
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

// Begin answers with a body that Write brings: length bytes, or -1 where that is not
// known. The head goes out at once.
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

// ErrBodyTooLong says that an answer's body is longer than Begin said.
var ErrBodyTooLong = errors.New("the answer is longer than it said")

// Write sends the next part of an answer's body. What it is given is copied by the
// kernel before it returns.
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

// CanLend says whether the rest of an answer whose length is not said can be sent by
// [Exchange.Lend]: over HTTP/1.1 in the clear, unless it was asked for by HEAD.
func (x *Exchange) CanLend() bool {
	return x.Minor == 1 && x.over.canLend() && string(x.Method) != http.MethodHead
}

// Lend has another process send the rest of an answer that has begun without a length: to
// gives it the connection's socket, waits until it has written all there, in chunks (RFC
// 9112 section 7.1) without the last, empty one, and returns how many bytes of body they
// had. It must write nothing after that. A client that takes nothing for
// [Config.StallTimeout] has gone, and the connection's end is that process's, too.
func (x *Exchange) Lend(to func(socket syscall.RawConn) (int64, error)) (n int64, err error) {
	switch {
	case x.err != nil:
		return 0, x.err
	case !x.begun || !x.chunked || x.hollow || !x.over.canLend():
		return 0, errors.New("httpserver: Lend where it cannot")
	}
	n, err = x.over.lend(to)
	return n, x.sent(err)
}

// Buffer lends memory of [Config.Memory] to a handler that copies, of at least size
// bytes; the handler releases it. The error is [ErrNoMemory].
func (x *Exchange) Buffer(size int) (Buffer, error) { return x.over.server().acquire(size) }

// Abort breaks the answer off.
func (x *Exchange) Abort() {
	if x.err == nil {
		x.err = errAborted
	}
}

var errAborted = errors.New("the answer was broken off")

// sent notes why an answer broke off.
func (x *Exchange) sent(err error) error {
	if err != nil && x.err == nil {
		x.err = err
	}
	return err
}

// head begins the answer, and returns its head for the transport.
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

// finish ends the answer; where it is not whole, or broke off, x.err says why.
func (x *Exchange) finish() {
	if !x.begun && x.err == nil {
		x.fields = x.fields[:0]
		_ = x.Send(http.StatusInternalServerError, nil) // x.err has it
	}
	if x.err == nil && x.missing > 0 {
		x.err = errAborted
	}
	if x.err == nil && x.chunked && !x.hollow {
		_ = x.sent(x.over.chunk(nil))
	}
	x.end()
}

// now is the Date field's value and its second.
type now struct {
	second int64
	text   string
}

var today atomic.Pointer[now]

// date is the time for the Date field, made once in a second.
func date() string {
	t := time.Now()
	d := today.Load()
	if d == nil || d.second != t.Unix() {
		d = &now{t.Unix(), t.UTC().Format(http.TimeFormat)}
		today.Store(d)
	}
	return d.text
}
