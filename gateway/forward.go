package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// Invoker is the part of *engine.Engine that forwarding uses.
type Invoker interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
}

// Event describes the event that Forward makes of an HTTP request. Every field is required. Of
// Request the caller sets Method, Path and Query.
type Event struct {
	Engine       Invoker
	Log          *slog.Logger
	Function     string
	MaxBodyBytes int64
	engine.Request
}

// BodyError means that the request's body could not be read: the client broke it off, or it is
// malformed.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "read request body: " + e.Err.Error() }
func (e *BodyError) Unwrap() error { return e.Err }

// Code returns [failure.BodyTooLarge] or [failure.BadBody].
func (e *BodyError) Code() failure.Code {
	if large := (*http.MaxBytesError)(nil); errors.As(e.Err, &large) {
		return failure.BodyTooLarge
	}
	return failure.BadBody
}

// front receives an answer: a *httpserver.Exchange, whose documentation applies, or [Forward]'s
// adapter for net/http.ResponseWriter.
type front interface {
	Set(name, value string)
	CloseAfter()
	Send(status int, body []byte) error
	SendFile(status int, f *os.File, offset, length int64) error
	Begin(status int, length int64) error
	Write(p []byte) (int, error)
	Buffer(size int) (httpserver.Buffer, error)
}

// lender lets another process send the rest of an answer: *httpserver.Exchange.
type lender interface {
	Lend(to func(socket syscall.RawConn) (int64, error)) (int64, error)
}

// request is the input of forward.
type request struct {
	Event
	head bool       // HEAD: the answer's body is dropped
	body *eventBody // Request.Body; nil: none

	tunnel   *tunnel // set if the function may change the protocol
	lends    lender  // set if a trusted function may use the client's connection
	selects  bool    // apply conditions and ranges of the header
	compress bool    // apply Accept-Encoding
	cors     bool    // drop the function's Access-Control-* fields
}

// Field returns the value of the field with the canonical name; several values as one list; "" if
// absent.
func (r *request) Field(name string) (value string) {
	for _, f := range r.Headers {
		switch {
		case f[0] != name:
		case value == "":
			value = f[1]
		default:
			value += ", " + f[1]
		}
	}
	return value
}

// brokenError means that an answer broke off after its status was sent. Only a broken connection
// can tell the client.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// forward invokes the function and sends its answer to f. It returns the engine's response, nil
// if the function gave none. Before the answer has begun, errors are those of
// [engine.Engine.Invoke], *[http.MaxBytesError] and *[BodyError]; after, *brokenError.
func forward(ctx context.Context, f front, r *request) (*engine.Response, error) {
	r.Socket = r.lends != nil
	if t := r.tunnel; t != nil {
		r.Upgrade, r.Body, r.Length = t.protocol, t, -1
	}
	if r.Length > r.MaxBodyBytes {
		f.CloseAfter()
		return nil, &http.MaxBytesError{Limit: r.MaxBodyBytes}
	}
	resp, err := r.Engine.Invoke(ctx, r.Function, &r.Request)
	if err != nil {
		if r.body.begun() {
			f.CloseAfter()
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.Status == http.StatusSwitchingProtocols && r.tunnel != nil {
		return resp, r.tunnel.carry(newReply(resp), r, resp)
	}
	if begun, err := newReply(resp).send(f, r, resp); err != nil {
		r.Log.DebugContext(ctx, "answer broken off", "function", r.Function, "invocation", resp.ID, "error", err)
		if !begun {
			return resp, err
		}
		return resp, &brokenError{err}
	}
	return resp, nil
}

// hopByHop lists the fields that belong to one connection (RFC 9110 section 7.6.1), not to the
// message.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// ours lists the fields of answers that the engine sets itself.
var ours = map[string]bool{"Content-Length": true, "Date": true, "X-Request-Id": true}

// eventHeader returns the header of an event: Host, then the end-to-end fields and own, sorted by
// name. No client can drop a field of own. Names are canonical. eventHeader reuses the memory of
// fields.
func eventHeader(host string, fields [][2]string, own ...[2]string) [][2]string {
	var drop map[string]bool
	for _, f := range fields {
		if f[0] != "Connection" {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if drop == nil {
				drop = map[string]bool{}
			}
			drop[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	fields = slices.DeleteFunc(fields, func(f [2]string) bool {
		return f[0] == "Host" || hopByHop[f[0]] || drop[f[0]] || f[0] == engine.QualifierField || f[0] == engine.VersionField
	})
	fields = append(fields, own...)
	slices.SortStableFunc(fields, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return slices.Insert(fields, 0, [2]string{"Host", host})
}

// reply is an answer on its way from the function to the client. The gateway may change it.
type reply struct {
	status int
	header [][2]string // canonical names; without the engine's own fields
	size   int64       // bytes of the body, -1 if unknown
	body   io.Reader
	bytes  []byte   // whole body, unless nil
	file   *os.File // unless nil, holds the body from offset on
	offset int64

	// If lend is not nil, the function may ask for the client's connection. body then refuses.
	// asking instead returns [engine.ErrSocketWanted] until lend is called.
	lend   func(socket syscall.RawConn) (int64, error)
	asking io.Reader
}

func newReply(resp *engine.Response) *reply {
	a := &reply{status: resp.Status, size: resp.Size, body: resp.Body, bytes: resp.Bytes, file: resp.File, offset: resp.Offset}
	if resp.Lend != nil {
		a.lend, a.asking, a.body = resp.Lend, resp.Body, declining{resp.Body, resp.Lend}
	}
	a.header = make([][2]string, 0, len(resp.Header)+4)
	for _, h := range resp.Header {
		k := textproto.CanonicalMIMEHeaderKey(h[0])
		if !hopByHop[k] && !ours[k] && !strings.HasPrefix(k, "X-Fre-") && httpserver.ValidField(k, h[1]) {
			a.header = append(a.header, [2]string{k, h[1]})
		}
	}
	return a
}

// declining is a body that refuses the function's request for the client's connection.
type declining struct {
	body io.Reader
	lend func(socket syscall.RawConn) (int64, error)
}

func (d declining) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if errors.Is(err, engine.ErrSocketWanted) {
		_, err = d.lend(nil)
	}
	return n, err
}

// get returns the first field with the canonical name, "" if absent.
func (a *reply) get(name string) string {
	for _, h := range a.header {
		if h[0] == name {
			return h[1]
		}
	}
	return ""
}

// set replaces all fields with the name.
func (a *reply) set(name, value string) {
	a.remove(func(n string) bool { return n == name })
	a.header = append(a.header, [2]string{name, value})
}

func (a *reply) remove(which func(name string) bool) {
	a.header = slices.DeleteFunc(a.header, func(h [2]string) bool { return which(h[0]) })
}

// setFields sets the function's fields and the engine's own.
func (a *reply) setFields(f front, r *request, resp *engine.Response) {
	if !r.body.ended() { // the rest may arrive after the answer, or never
		f.CloseAfter()
	}
	for _, h := range a.header {
		if !r.cors || !strings.HasPrefix(h[0], "Access-Control-") {
			f.Set(h[0], h[1])
		}
	}
	f.Set("X-Fre-Id", resp.ID)
	f.Set("X-Fre-Instance", resp.Instance)
	if resp.Revision != "" {
		f.Set("X-Fre-Revision", resp.Revision)
	}
	if resp.Node != "" {
		f.Set("X-Fre-Node", resp.Node)
	}
	cold := "0"
	if resp.Cold {
		cold = "1"
	}
	f.Set("X-Fre-Cold", cold)
	f.Set("X-Fre-Start", string(resp.StartKind))
	f.Set("X-Fre-Start-Us", strconv.FormatInt(resp.Start.Microseconds(), 10))
}

// copySize is the buffer for copying bodies, in bytes. A body that fits is sent together with its
// head.
const copySize = 64 << 10

// streamSize is the buffer for tunnels and compressed streams, in bytes: small, since they may
// last long.
const streamSize = 16 << 10

// send sends the answer. begun reports whether the status was sent.
func (a *reply) send(f front, r *request, resp *engine.Response) (begun bool, err error) {
	var parts []httpserver.Range
	coding, status := -1, a.status
	if r.compress {
		coding = a.coding(r)
	}
	if r.selects {
		parts = a.choose(r)
	}
	if coding >= 0 && a.status == status && len(parts) == 0 {
		return a.sendCompressed(f, r, resp, coding)
	}
	bodyless := r.head || a.status == http.StatusNoContent || a.status == http.StatusNotModified
	if bodyless && a.size == 0 {
		a.size = -1 // the length of the body that HEAD omits is unknown (RFC 9110 section 8.6)
	}
	switch {
	case len(parts) > 0:
		b, err := f.Buffer(copySize)
		if err != nil {
			return false, err
		}
		defer b.Release()
		heads, length := a.multipart(parts)
		a.setFields(f, r, resp)
		return true, a.sendParts(f, parts, heads, length, b.Bytes())
	case a.file != nil && a.size >= 0:
		a.setFields(f, r, resp)
		return true, f.SendFile(a.status, a.file, a.offset, a.size)
	case len(a.bytes) > 0:
		a.setFields(f, r, resp)
		return true, f.Send(a.status, a.bytes)
	}
	whole := 0 <= a.size && a.size <= copySize && !bodyless
	size := copySize
	if a.size >= 0 {
		size = int(min(a.size, copySize))
	}
	b, err := f.Buffer(size)
	if err != nil {
		return false, err
	}
	defer func() {
		if b != nil {
			b.Release()
		}
	}()
	buf := b.Bytes()
	if whole {
		n, err := io.ReadFull(a.body, buf[:a.size])
		if err == nil {
			err = atEnd(a.body)
		}
		if err != nil {
			return false, err
		}
		a.setFields(f, r, resp)
		return true, f.Send(a.status, buf[:n])
	}
	a.setFields(f, r, resp)
	// The client may wait for the status before it sends more.
	if err := f.Begin(a.status, a.size); err != nil {
		return true, err
	}
	body := a.body
	if a.lend != nil && !bodyless {
		body = a.asking
	}
	for {
		n, rerr := body.Read(buf)
		if n > 0 && !bodyless {
			if _, err := f.Write(buf[:n]); err != nil {
				return true, err
			}
		}
		switch {
		case errors.Is(rerr, engine.ErrSocketWanted):
			b.Release()
			b, buf = nil, make([]byte, 4<<10) // for the body's end, or its rest if refused
			if _, err := r.lends.Lend(a.lend); err != nil {
				return true, err
			}
		case errors.Is(rerr, io.EOF):
			return true, nil
		case rerr != nil:
			return true, rerr
		}
	}
}

// atEnd returns nil if body has no more bytes.
func atEnd(body io.Reader) error {
	var one [1]byte
	switch n, err := body.Read(one[:]); {
	case n > 0:
		return httpserver.ErrBodyTooLong
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		return io.ErrNoProgress
	default:
		return err
	}
}
