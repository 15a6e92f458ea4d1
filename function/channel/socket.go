package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
)

// lent is the engine's reply to SOCKET.
type lent struct {
	socket *os.File // nil: refused
	lost   bool     // the engine sent a socket, but this process has too many open files to receive it
}

func (l lent) close() {
	if l.socket != nil {
		_ = l.socket.Close()
	}
}

// takeLent takes the socket that came with the last frame.
func takeLent(f *wire.Reader) lent {
	fd, ok := f.Take()
	if !ok {
		return lent{lost: true}
	}
	return lent{socket: os.NewFile(uintptr(fd), "client")}
}

var errLostSocket = errors.New("take the client's socket: too many open files")

// answerSocket sends the answer's head, asks for the client's socket and writes the body there in
// chunks (RFC 9112 section 7.1): first buf, which is full, then the rest of body. If the engine
// refuses, sent is false: buf has gone to the engine, and the rest of body is unread.
func (f *function) answerSocket(s *served, meta []byte, body io.Reader, buf []byte) (sent bool, err error) {
	got, err := f.askSocket(s, meta)
	if err != nil {
		return false, err
	}
	switch {
	case got.lost:
		return false, errLostSocket
	case got.socket == nil:
		if _, err := s.out.Take(len(buf)); err != nil { // the window is still at its initial size
			return false, err
		}
		return false, f.w.Send(&s.ctx, wire.KindData, wire.FlagMore, s.id, nil, buf)
	}
	defer got.close()
	total, err := writeChunks(&s.ctx, got.socket, body, buf)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ETIMEDOUT) {
		total, err = wire.ClientGone, nil
	}
	if err = cmp.Or(err, got.socket.Close()); err != nil {
		return true, err
	}
	return true, f.w.Send(&s.ctx, wire.KindSocket, 0, s.id, nil, binary.LittleEndian.AppendUint64(nil, total))
}

// askSocket sends the answer's head and waits for the client's socket, or the refusal.
func (f *function) askSocket(s *served, meta []byte) (got lent, err error) {
	if err := f.w.Send(&s.ctx, wire.KindResponse, wire.FlagMore, s.id, meta, nil); err != nil {
		return got, err
	}
	if err := f.w.Send(&s.ctx, wire.KindSocket, 0, s.id, nil, nil); err != nil {
		return got, err
	}
	select {
	case got = <-s.lent:
		return got, nil
	case <-s.ctx.Done():
		return got, context.Cause(&s.ctx)
	}
}

// writeChunks writes buf and the rest of body to socket, through buf, until ctx ends. The engine
// writes the empty last chunk.
func writeChunks(ctx context.Context, socket *os.File, body io.Reader, buf []byte) (total uint64, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })()
	c := newChunks(raw)
	for n, rerr := len(buf), error(nil); ; n, rerr = body.Read(buf) {
		if n > 0 {
			if err := c.write(buf[:n]); err != nil {
				return total, cmp.Or(context.Cause(ctx), err)
			}
			total += uint64(n)
		}
		switch {
		case rerr == io.EOF: //nolint:errorlint // a Reader's end is io.EOF itself
			return total, nil
		case rerr != nil:
			return total, rerr
		}
	}
}

// chunks writes chunks to a socket by system calls that Go's scheduler does not see (see
// rawio.Recv).
type chunks struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // tryOn, allocated once

	head [20]byte
	all  [3][]byte
	left [][]byte // unsent part of all
	err  error
}

func newChunks(raw syscall.RawConn) *chunks {
	c := &chunks{raw: raw}
	c.try = c.tryOn
	return c
}

// write writes p as a chunk.
func (c *chunks) write(p []byte) error {
	c.all = [...][]byte{append(strconv.AppendInt(c.head[:0], int64(len(p)), 16), "\r\n"...), p, []byte("\r\n")}
	c.left = c.all[:]
	for len(c.left) > 0 {
		if err := cmp.Or(c.raw.Write(c.try), c.err); err != nil {
			return err
		}
	}
	return nil
}

// tryOn is called by the poller. It returns false to wait until the socket is writable.
func (c *chunks) tryOn(fd uintptr) (done bool) {
	n, err := rawio.Send(int(fd), c.left, nil, 0)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if c.err = err; err != nil {
		c.err = os.NewSyscallError("sendmsg", err)
	}
	for len(c.left) > 0 {
		if n < len(c.left[0]) {
			c.left[0] = c.left[0][n:]
			break
		}
		n -= len(c.left[0])
		c.left = c.left[1:]
	}
	return true
}
