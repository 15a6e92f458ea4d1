package gateway

import (
	"errors"
	"io"
	"net/http"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

// send sends the answer. begun reports whether the status was sent.
func (a *reply) send(f front, r *request, resp *engine.Response) (begun bool, err error) {
	coding, parts := a.adapt(r)
	bodyless := a.bodyless(r)
	switch {
	case coding >= 0:
		return a.sendCompressed(f, r, resp, coding)
	case len(parts) > 0:
		return a.sendParts(f, r, resp, parts)
	case a.file != nil && a.size >= 0:
		a.setFields(f, r, resp)
		return true, f.SendFile(a.status, a.file, a.offset, a.size)
	case len(a.bytes) > 0:
		a.setFields(f, r, resp)
		return true, f.Send(a.status, a.bytes)
	case 0 <= a.size && a.size <= copySize && !bodyless:
		return a.sendWhole(f, r, resp)
	}
	return a.sendStream(f, r, resp, bodyless)
}

// bodyless reports whether the answer has no body.
func (a *reply) bodyless(r *request) bool {
	if !r.head && a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		return false
	}
	if a.size == 0 {
		a.size = -1 // the length of the body that HEAD omits is unknown (RFC 9110 section 8.6)
	}
	return true
}

// adapt applies what the request asks for: conditions, ranges, and a coding. It returns the index
// of the coding, -1 for none, and the ranges if there are several.
func (a *reply) adapt(r *request) (coding int, parts []httpserver.Range) {
	coding, status := -1, a.status
	if r.compress {
		coding = a.coding(r)
	}
	if r.selects {
		parts = a.choose(r)
	}
	if a.status != status || len(parts) > 0 {
		coding = -1
	}
	return coding, parts
}

// sendWhole reads a short body to its end, and sends it together with the head.
func (a *reply) sendWhole(f front, r *request, resp *engine.Response) (begun bool, err error) {
	b, err := f.Buffer(int(a.size))
	if err != nil {
		return false, err
	}
	defer b.Release()
	buf := b.Bytes()
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

// sendStream sends the head, and then the body as it comes.
func (a *reply) sendStream(f front, r *request, resp *engine.Response, bodyless bool) (begun bool, err error) {
	size := copySize
	if a.size >= 0 {
		size = int(min(a.size, copySize))
	}
	b, err := f.Buffer(size)
	if err != nil {
		return false, err
	}
	a.setFields(f, r, resp)
	// The client may wait for the status before it sends more.
	if err := f.Begin(a.status, a.size); err != nil {
		b.Release()
		return true, err
	}
	body := a.body
	if a.lend != nil && !bodyless {
		body = a.asking
	}
	return true, a.copyBody(f, r, body, b, bodyless)
}

// copyBody copies body to f through b, and releases b. If drop is set, copyBody only reads.
func (a *reply) copyBody(f front, r *request, body io.Reader, b httpserver.Buffer, drop bool) error {
	defer func() {
		if b != nil {
			b.Release()
		}
	}()
	buf := b.Bytes()
	for {
		n, rerr := body.Read(buf)
		if n > 0 && !drop {
			if _, err := f.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(rerr, engine.ErrSocketWanted):
			b.Release()
			b, buf = nil, make([]byte, 4<<10) // for the body's end, or its rest if refused
			if _, err := r.lends.Lend(a.lend); err != nil {
				return err
			}
		case errors.Is(rerr, io.EOF):
			return nil
		case rerr != nil:
			return rerr
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
