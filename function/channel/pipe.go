package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// answerPipe sends the rest of the answer through a pipe. sent is false if no pipe is available;
// then body is unread.
func (f *function) answerPipe(s *served, body io.Reader, buf []byte) (sent bool, err error) {
	r, w, err := newPipe()
	if err != nil { // too many files
		return false, nil
	}
	defer func() { _ = w.Close() }()
	err = f.w.SendFile(&s.ctx, wire.KindPipe, s.id, nil, nil, r)
	_ = r.Close() // a write must fail once the engine closes its end
	if errors.Is(err, unix.ETOOMANYREFS) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(&s.ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) })()
	var total [8]byte
	for n := uint64(0); ; {
		m, rerr := body.Read(buf)
		if m > 0 {
			if _, err := w.Write(buf[:m]); err != nil {
				return true, cmp.Or(context.Cause(&s.ctx), err)
			}
			n += uint64(m)
		}
		switch {
		case rerr == io.EOF:
			_ = w.Close()
			binary.LittleEndian.PutUint64(total[:], n)
			return true, f.w.Send(&s.ctx, wire.KindPipe, 0, s.id, nil, total[:])
		case rerr != nil:
			return true, rerr
		}
	}
}

// newPipe makes a large pipe. It fails if the user has many pipes: a small pipe is slower than DATA.
func newPipe() (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	raw, err := w.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { _, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wire.PipeSize) })
		err = cmp.Or(cerr, err)
	}
	if err != nil {
		_, _ = r.Close(), w.Close()
		return nil, nil, err
	}
	return r, w, nil
}
