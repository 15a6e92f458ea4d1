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
	"sync"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

// Invoker is what forwarding needs of *engine.Engine.
type Invoker interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
}

// Event says what Forward makes of an HTTP request. All fields are required
// but Query.
type Event struct {
	Engine              Invoker
	Log                 *slog.Logger
	Function            string
	Method, Path, Query string
	MaxBodyBytes        int64
}

// BodyError says that the request's body could not be read: the client broke
// it off, or it is malformed.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "read request body: " + e.Err.Error() }
func (e *BodyError) Unwrap() error { return e.Err }

// front is where an answer goes: *httpserver.Exchange, whose documentation holds for
// others too, or what [Forward] makes of a net/http.ResponseWriter.
type front interface {
	Set(name, value string)
	CloseAfter()
	Send(status int, body []byte) error
	SendFile(status int, f *os.File, offset, length int64) error
	Begin(status int, length int64) error
	Write(p []byte) (int, error)
}

// request is what forward makes an event of.
type request struct {
	*Event
	header [][2]string // of eventHeader
	head   bool        // HEAD: the answer's body stays here
	body   *eventBody  // nil: none
}

// brokenError is an answer that broke off: its status is out, and breaking the
// connection the only way left to say that it is not whole.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// forward hands an event to its function and the answer to f, and says what the
// function's part in it was, nil where it has answered nothing. Errors are those of
// [engine.Engine.Invoke], *[http.MaxBytesError] and *[BodyError] as long as nothing is
// sent, else *brokenError.
func forward(ctx context.Context, f front, r *request) (*engine.Response, error) {
	req := &engine.Request{Method: r.Method, Path: r.Path, Query: r.Query, Header: r.header}
	if b := r.body; b != nil {
		if b.size > r.MaxBodyBytes {
			f.CloseAfter()
			return nil, &http.MaxBytesError{Limit: r.MaxBodyBytes}
		}
		req.Body, req.Size = b, b.size
	}
	resp, err := r.Engine.Invoke(ctx, r.Function, req)
	if err != nil {
		if r.body.begun() {
			f.CloseAfter()
		}
		return nil, err
	}
	defer resp.Body.Close()
	if begun, err := sendBody(f, r, resp); err != nil {
		r.Log.DebugContext(ctx, "answer broken off", "function", r.Function, "invocation", resp.ID, "error", err)
		if !begun {
			return resp, err
		}
		return resp, &brokenError{err}
	}
	return resp, nil
}

// hopByHop fields belong to one connection (RFC 9110 section 7.6.1), not to the
// message that travels over it.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// ours are fields of answers that the engine says itself.
var ours = map[string]bool{"Content-Length": true, "Date": true, "X-Request-Id": true}

// eventHeader makes of a request's fields, with canonical names, those that are end to
// end, sorted by name, behind Host. It uses the list's memory.
func eventHeader(host string, fields [][2]string) [][2]string {
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
	fields = slices.DeleteFunc(fields, func(f [2]string) bool { return f[0] == "Host" || hopByHop[f[0]] || drop[f[0]] })
	slices.SortStableFunc(fields, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return slices.Insert(fields, 0, [2]string{"Host", host})
}

// setFields says what a function may say, and what the engine says itself.
func setFields(f front, r *request, resp *engine.Response) {
	if !r.body.ended() { // its rest may come after the answer, or never
		f.CloseAfter()
	}
	for _, h := range resp.Header {
		k := textproto.CanonicalMIMEHeaderKey(h[0])
		if !hopByHop[k] && !ours[k] && !strings.HasPrefix(k, "X-Fre-") && httpserver.ValidField(k, h[1]) {
			f.Set(k, h[1])
		}
	}
	f.Set("X-Fre-Id", resp.ID)
	f.Set("X-Fre-Instance", resp.Instance)
	cold := "0"
	if resp.Cold {
		cold = "1"
	}
	f.Set("X-Fre-Cold", cold)
	f.Set("X-Fre-Start", string(resp.StartKind))
	f.Set("X-Fre-Start-Us", strconv.FormatInt(resp.Start.Microseconds(), 10))
}

// copySize is what a body is copied by, where it is copied, in bytes. A body that is
// no larger goes out with its head.
const copySize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// sendBody answers with resp's status and body; begun says that the status is out.
func sendBody(f front, r *request, resp *engine.Response) (begun bool, err error) {
	size := resp.Size
	bodyless := r.head || resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified
	if bodyless && size == 0 {
		size = -1 // the length of what HEAD leaves out is not known (RFC 9110 section 8.6)
	}
	if resp.File != nil && size >= 0 {
		setFields(f, r, resp)
		return true, f.SendFile(resp.Status, resp.File, resp.Offset, size)
	}
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
	if 0 <= size && size <= copySize && !bodyless {
		n, err := io.ReadFull(resp.Body, buf[:size])
		if err == nil {
			err = atEnd(resp.Body)
		}
		if err != nil {
			return false, err
		}
		setFields(f, r, resp)
		return true, f.Send(resp.Status, buf[:n])
	}
	setFields(f, r, resp)
	// A client may wait for the status before it sends on.
	if err := f.Begin(resp.Status, size); err != nil {
		return true, err
	}
	for {
		n, rerr := resp.Body.Read(buf[:])
		if n > 0 && !bodyless {
			if _, err := f.Write(buf[:n]); err != nil {
				return true, err
			}
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return true, nil
		case rerr != nil:
			return true, rerr
		}
	}
}

// atEnd reads the end of a body, of which nothing else may be left.
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
