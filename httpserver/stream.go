package httpserver

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"
)

// serve has the handler answer the request, and ends the stream.
func (st *stream) serve() {
	c, x := st.c, &st.x
	if st.body == nil {
		x.begin(nil)
	} else {
		x.begin(&st.body.Body)
	}
	st.answer()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case x.err != nil:
		_ = c.resetLocked(st, codeInternal, x.err) // the reader checks the credit
	case !st.gotEnd: // the rest of the request is unwanted (section 8.1)
		_ = c.resetLocked(st, codeNone, errAborted)
	}
	c.doneLocked(st)
	st.release()
	if c.running--; c.running == 0 {
		c.slot.vacate(time.Now())
	}
	c.quiet.Broadcast()
	c.flushControlLocked()
	if c.leaving && c.running == 0 {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // wakes the reader to end the connection
	}
}

func (st *stream) answer() {
	x := &st.x
	defer func() {
		if v := recover(); v != nil {
			x.Abort()
			st.c.s.cfg.Log.Error("a handler panicked: stream reset", "panic", v, "stack", string(debug.Stack()))
		}
		x.end()
	}()
	if st.refused == nil {
		st.c.s.cfg.Handler.Serve(x)
	} else {
		kind, body := st.c.s.cfg.Refuse(x, st.refused)
		x.Set("Content-Type", kind)
		_ = x.Send(st.refused.Status, body) // x.err keeps the error
	}
	x.finish()
}

func (st *stream) memory() *pool      { return st.c.pool }
func (st *stream) protocol() string   { return "HTTP/2" }
func (st *stream) remoteAddr() string { return st.c.nc.RemoteAddr().String() }
func (st *stream) secure() bool       { return isTLS(st.c.nc) }

func (st *stream) context() context.Context {
	ctx, gone := context.WithCancelCause(st.c.s.ctx)
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.gone = gone
	if st.err != nil {
		gone(st.err)
	}
	return ctx
}

func (st *stream) unwatch() {
	st.c.mu.Lock()
	gone := st.gone
	st.gone = nil
	st.c.mu.Unlock()
	if gone != nil {
		gone(nil)
	}
}

func (st *stream) head(x *Exchange, status int, length int64, bodyless bool) []byte {
	if bodyless {
		length = -1
	} else if length < 0 {
		x.chunked = true
	}
	st.packed = appendHead(st.packed[:0], status, x.fields, length)
	return st.packed
}

func (st *stream) send(head, body []byte, last bool) error { return st.write(head, body, last) }
func (st *stream) chunk(p []byte) error                    { return st.write(nil, p, len(p) == 0) }
func (st *stream) canLend() bool                           { return false }

func (st *stream) lend(func(socket syscall.RawConn) (int64, error)) (int64, error) {
	return 0, errors.New("httpserver: a stream cannot be lent")
}

func (st *stream) sendFile(head []byte, f *os.File, offset, length int64) error {
	b, err := st.c.pool.acquire(copySize)
	if err != nil {
		return err
	}
	defer b.Release()
	buf := b.Bytes()[:copySize]
	for length > 0 {
		n, err := f.ReadAt(buf[:min(length, int64(len(buf)))], offset)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the file has become shorter
			}
			return err
		}
		offset += int64(n)
		length -= int64(n)
		if err := st.write(head, buf[:n], length == 0); err != nil {
			return err
		}
		head = nil
	}
	return nil
}
