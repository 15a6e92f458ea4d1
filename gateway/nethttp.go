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
	// lingering is how long a client may go on to send what nobody wants, so
	// that it reads the answer before it learns that the connection is closed.
	lingering = 500 * time.Millisecond
	// drained is how much of a body is read for the connection's sake.
	drained = 256 << 10
	// stalled is how long a client may take no byte of its answer.
	stalled = time.Minute
)

// Forward hands r's headers and body to a function and its answer to w, for servers of
// net/http, as the gateway does for its own. The function is told where it is mounted, and
// nothing of what r says of where it comes from. It returns an error, those of
// [engine.Engine.Invoke], *[http.MaxBytesError] and *[BodyError], only while nothing is
// sent. An answer that breaks off breaks the connection.
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
	req := &request{Event: &ev, header: eventHeader(r.Host, fields, [2]string{forwardedMount, mounted(ev.Function)}), head: head}
	if r.ContentLength != 0 {
		req.body = &eventBody{
			from: r.Body, size: r.ContentLength, limit: ev.MaxBodyBytes,
			interrupt: func() error { return f.control.SetReadDeadline(time.Unix(1, 0)) },
		}
		if err := f.control.SetReadDeadline(time.Time{}); err != nil { // of the server's: the function's time is the body's
			return err
		}
		// The answer may begin before the body's end, and the engine alone reads
		// the body: net/http would discard what is left of it.
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
		_ = f.control.SetWriteDeadline(time.Time{}) // it would outlive the answer; fails on a dead connection alone
	}
	return err
}

// leave ends the effect of Close: the next request is waited for with the same
// deadline. What is left of a torn body is read for a moment.
func (b *eventBody) leave(control *http.ResponseController) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	if !b.eof {
		_ = control.SetReadDeadline(time.Now().Add(lingering)) // fails on a dead connection alone
	}
}

// drain reads a small body that nobody has begun to read, so that the connection
// can be used again; false says that it cannot. Afterwards would be too late:
// net/http then takes the next request's first byte for the end of this one.
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

// netFront is an answer through net/http.
type netFront struct {
	w       http.ResponseWriter
	control *http.ResponseController
	hollow  bool // the answer has no body: HEAD, or its status
	flush   bool // each piece goes out as it comes
}

// Set adds a field.
func (f *netFront) Set(name, value string) { f.w.Header().Add(name, value) }

// CloseAfter has the answer say that the connection ends.
func (f *netFront) CloseAfter() { f.w.Header().Set("Connection", "close") }

// Send answers with a body that is in memory.
func (f *netFront) Send(status int, body []byte) error {
	if err := f.Begin(status, int64(len(body))); err != nil || f.hollow {
		return err
	}
	_, err := f.Write(body)
	return err
}

// SendFile answers with a part of a file, by copying it.
func (f *netFront) SendFile(status int, file *os.File, offset, length int64) error {
	if err := f.Begin(status, length); err != nil || f.hollow {
		return err
	}
	n, err := io.Copy(writerOnly{f}, io.NewSectionReader(file, offset, length))
	if err == nil && n < length {
		err = io.ErrUnexpectedEOF // it has become shorter
	}
	return err
}

// writerOnly hides what io.Copy would use instead of Write.
type writerOnly struct{ io.Writer }

// Begin answers with a body that Write brings.
func (f *netFront) Begin(status int, length int64) error {
	h := f.w.Header()
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // the function's silence is not a reason to guess
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

// Buffer lends memory of Go's heap.
func (f *netFront) Buffer(size int) (httpserver.Buffer, error) {
	return heapBuffer(make([]byte, size)), nil
}

type heapBuffer []byte

// Bytes is the buffer.
func (b heapBuffer) Bytes() []byte { return b }

// Release leaves it to the collector.
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
