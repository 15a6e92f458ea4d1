package gateway

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/fre-engine/fre/engine"
)

const (
	// lingering is how long the gateway reads unwanted input, so that the client reads the answer
	// before it notices the closed connection.
	lingering = 500 * time.Millisecond
	// drained limits, in bytes, how much of an unread body is read to keep the connection usable.
	drained = 256 << 10
)

// Forward passes r to a function and the answer to w, for net/http servers. The function learns
// its mount point; all fields of r about the origin are dropped. Forward returns an error only
// before the answer has begun: those of [engine.Engine.Invoke], *[http.MaxBytesError] and
// *[BodyError]. An answer that breaks off breaks the connection.
func Forward(w http.ResponseWriter, r *http.Request, ev Event) error {
	head := r.Method == http.MethodHead
	f := &netFront{w: w, control: http.NewResponseController(w), hollow: head}
	fields := make([][2]string, 0, len(r.Header)+2)
	for name, values := range r.Header {
		if claimsOrigin(name) || mimics(name) {
			continue
		}
		for _, v := range values {
			fields = append(fields, [2]string{name, v})
		}
	}
	req := &request{Event: ev, head: head}
	req.Headers = eventHeader(r.Host, fields, [2]string{forwardedMount, mounted(ev.Function)})
	if r.ContentLength != 0 {
		req.body = &eventBody{
			from: r.Body, size: r.ContentLength, limit: ev.MaxBodyBytes,
			interrupt: func() error { return f.control.SetReadDeadline(time.Unix(1, 0)) },
		}
		req.Body, req.Length = req.body, r.ContentLength
		if err := f.control.SetReadDeadline(time.Time{}); err != nil { // the function's time limit applies instead
			return err
		}
		// The answer may begin before the body's end, and only the engine reads the body:
		// net/http would discard the rest.
		if err := f.control.EnableFullDuplex(); err != nil {
			return err
		}
		defer req.body.leave(f.control)
	}
	_, err := forward(r.Context(), f, req, nil)
	if _, ok := errors.AsType[*brokenError](err); ok {
		panic(http.ErrAbortHandler)
	}
	if failed := engine.Failed(err); failed.ID != "" {
		w.Header().Set("X-Fre-Id", failed.ID)
	}
	if err != nil && !req.body.drain(f.control) {
		f.CloseAfter()
	}
	if err == nil {
		_ = f.control.SetWriteDeadline(time.Time{}) // must not outlive the answer; fails only on a dead connection
	}
	return err
}

// leave ends the effect of Close and returns from to its server. The server reads the rest of an
// unfinished body for a moment.
func (b *eventBody) leave(control *http.ResponseController) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	if !b.eof {
		_ = control.SetReadDeadline(time.Now().Add(lingering)) // fails only on a dead connection
	}
}

// drain reads a short unread body to keep the connection usable. It returns false if the
// connection must close. It must run before the answer: net/http would take the first byte of the
// next request for the end of the body.
func (b *eventBody) drain(control *http.ResponseController) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.eof || b.torn || b.size > b.limit {
		return b.eof
	}
	if control.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, err := io.CopyN(io.Discard, b.from, drained)
		b.eof = errors.Is(err, io.EOF)
	}
	return b.eof
}
