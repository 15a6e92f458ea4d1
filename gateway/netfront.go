package gateway

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/fre-engine/fre/httpserver"
)

// stalled is how long a client may read no byte of its answer.
const stalled = time.Minute

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
