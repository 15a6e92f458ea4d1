package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

const (
	// lingering is how long the gateway reads unwanted input, so that the client reads the answer
	// before it notices the closed connection.
	lingering = 500 * time.Millisecond
	// drained limits, in bytes, how much of an unread body is read to keep the connection usable.
	drained = 256 << 10
	// stalled is how long a client may read no byte of its answer.
	stalled = time.Minute
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
	_, err := forward(r.Context(), f, req)
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

// netFront sends an answer through net/http.
type netFront struct {
	w       http.ResponseWriter
	control *http.ResponseController
	hollow  bool // the answer has no body: HEAD, or its status
	flush   bool // send each piece at once
}

// Set adds a field.
func (f *netFront) Set(name, value string) { f.w.Header().Add(name, value) }

// CloseAfter sets Connection: close.
func (f *netFront) CloseAfter() { f.w.Header().Set("Connection", "close") }

// Send answers with a body in memory.
func (f *netFront) Send(status int, body []byte) error {
	if err := f.Begin(status, int64(len(body))); err != nil || f.hollow {
		return err
	}
	_, err := f.Write(body)
	return err
}

// SendFile answers with a part of a file, by copying.
func (f *netFront) SendFile(status int, file *os.File, offset, length int64) error {
	if err := f.Begin(status, length); err != nil || f.hollow {
		return err
	}
	n, err := io.Copy(writerOnly{f}, io.NewSectionReader(file, offset, length))
	if err == nil && n < length {
		err = io.ErrUnexpectedEOF // the file has become shorter
	}
	return err
}

// writerOnly hides ReadFrom from io.Copy.
type writerOnly struct{ io.Writer }

// Begin starts an answer whose body follows by Write.
func (f *netFront) Begin(status int, length int64) error {
	h := f.w.Header()
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // keep net/http from guessing the type
	}
	bodyless := status == http.StatusNoContent || status == http.StatusNotModified
	f.hollow = f.hollow || bodyless
	if length >= 0 && !bodyless {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	f.w.WriteHeader(status)
	if f.flush = length < 0; !f.flush {
		return nil
	}
	if err := f.control.SetWriteDeadline(time.Now().Add(stalled)); err != nil {
		return err
	}
	return f.control.Flush()
}

// Buffer allocates on Go's heap.
func (f *netFront) Buffer(size int) (httpserver.Buffer, error) {
	return heapBuffer(make([]byte, size)), nil
}

type heapBuffer []byte

// Bytes returns the buffer.
func (b heapBuffer) Bytes() []byte { return b }

// Release leaves the buffer to the garbage collector.
func (heapBuffer) Release() {}

func (f *netFront) Write(p []byte) (int, error) {
	if err := f.control.SetWriteDeadline(time.Now().Add(stalled)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(p)
	if err == nil && f.flush {
		err = f.control.Flush()
	}
	return n, err
}
