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
