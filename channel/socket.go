package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// lent is what SOCKET brings a function.
type lent struct {
	socket *os.File // nil: there is none
	lost   bool     // there was one, and this process could not take it: it has too many files
}

func (l lent) close() {
	if l.socket != nil {
		_ = l.socket.Close()
	}
}

// lent takes what came along with the frame that next has returned.
func (f *frameReader) lent() (lent, error) {
	if f.rights == nil {
		return lent{}, fmt.Errorf("%w: a file where none is expected", ErrProtocol)
	}
	fd, ok := f.rights.take()
	if !ok {
		return lent{lost: true}, nil
	}
	return lent{socket: os.NewFile(uintptr(fd), "client")}, nil
}

var errLostSocket = errors.New("take the client's socket: too many open files")

// answerSocket writes the rest of the answer to the client's socket, each piece as a
// chunk (RFC 9112 section 7.1). sent is false where it does not get that, and nothing was
// read of body then.
func (f *function) answerSocket(s *served, body io.Reader, buf []byte) (sent bool, err error) {
	if err := f.w.send(s.ctx, kindSocket, 0, s.id, nil, nil); err != nil {
		return false, err
	}
	var got lent
	select {
	case got = <-s.lent:
	case <-s.ctx.Done():
		return false, context.Cause(s.ctx)
	}
	switch {
	case got.lost:
		return false, errLostSocket
	case got.socket == nil:
		return false, nil
	}
	conn, err := net.FileConn(got.socket) // another descriptor of it
	got.close()
	if err != nil {
		return false, err
	}
	total, err := writeChunks(s.ctx, conn, body, buf)
	if err = cmp.Or(err, conn.Close()); err != nil {
		return true, err
	}
	return true, f.w.send(s.ctx, kindSocket, 0, s.id, nil, binary.LittleEndian.AppendUint64(nil, total))
}

// writeChunks copies body to conn by way of buf until ctx ends. It leaves the last chunk,
// which has nothing in it, to the engine.
func writeChunks(ctx context.Context, conn net.Conn, body io.Reader, buf []byte) (total uint64, err error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })()
	var head [20]byte
	var parts [3][]byte
	for {
		n, rerr := body.Read(buf)
		if n > 0 {
			parts = [...][]byte{append(strconv.AppendInt(head[:0], int64(n), 16), "\r\n"...), buf[:n], {'\r', '\n'}}
			chunk := net.Buffers(parts[:])
			if _, err := chunk.WriteTo(conn); err != nil {
				return total, cmp.Or(context.Cause(ctx), err)
			}
			total += uint64(n)
		}
		switch {
		case rerr == io.EOF:
			return total, nil
		case rerr != nil:
			return total, rerr
		}
	}
}
