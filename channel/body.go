package channel

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// inbox holds the body being received for one invocation: what has arrived
// and was not read yet, at most one first frame and Window, and what is in a pipe.
type inbox struct {
	from sender

	mu      sync.Mutex
	changed sync.Cond // L is &mu

	buf   []byte // buf[off:] is unread, and comes before what is in the pipe
	off   int
	spare []byte // for buf

	pipe   *os.File // the rest of the body; nil: none has come, or nobody wants it
	raw    syscall.RawConn
	opened bool   // it has come
	piped  uint64 // bytes taken from it
	total  uint64 // that went into it, once ended
	told   bool   // from knows that they were taken
	waits  bool   // somebody does, for the pipe, without the lock

	gathers bool // somebody has waited until there is more of it

	first    int   // unread bytes of the first frame, which are not granted again
	window   int   // bytes of DATA that may still come
	consumed int   // bytes read since the last grant
	ended    bool  // all of the body is here
	aborted  bool  // nobody wants it
	err      error // the rest will never come
}

// Of a body of which that much has come through a pipe, in bytes, the next so much is
// waited for for a moment: each piece that goes on costs as much as a copy of many.
const (
	gathered = 256 << 10
	gather   = 200 * time.Microsecond
)

// sender is who sends a body.
type sender interface {
	grant(n int) // lets it send n bytes more
	taken()      // tells it that what it had sent through a pipe is wanted no more
}

func (b *inbox) init(first []byte, more bool, from sender) {
	b.changed.L = &b.mu
	b.buf, b.first, b.window, b.ended, b.from = append([]byte(nil), first...), len(first), Window, !more, from
}

// expect says whether a DATA frame of n bytes may come; data has to follow.
func (b *inbox) expect(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
		return fmt.Errorf("%w: data after the end of a body", ErrProtocol)
	case b.opened:
		return fmt.Errorf("%w: data beside a pipe", ErrProtocol)
	}
	if b.window -= n; b.window < 0 {
		return fmt.Errorf("%w: data beyond the window", ErrProtocol)
	}
	return nil
}

// data takes one DATA frame.
func (b *inbox) data(p []byte, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = !more
	if b.err != nil { // nobody reads it
		return
	}
	if b.off > 0 && len(b.buf)+len(p) > cap(b.buf) {
		b.buf = b.buf[:copy(b.buf, b.buf[b.off:])]
		b.off = 0
	}
	b.buf = append(b.buf, p...)
	b.changed.Broadcast()
}

// open takes the pipe that the rest of the body comes through, and owns it.
func (b *inbox) open(pipe *os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.opened {
		return errors.Join(fmt.Errorf("%w: a pipe after the end of a body, or a second one", ErrProtocol), pipe.Close())
	}
	b.opened = true
	if b.err != nil {
		return pipe.Close()
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return errors.Join(err, pipe.Close())
	}
	b.pipe, b.raw = pipe, raw
	b.changed.Broadcast()
	return nil
}

// close ends a body of which total bytes have gone into the pipe.
func (b *inbox) close(total uint64) error {
	b.mu.Lock()
	if !b.opened || b.ended || b.piped > total {
		b.mu.Unlock()
		return fmt.Errorf("%w: the end of a pipe that was none, or had %d bytes", ErrProtocol, b.piped)
	}
	b.ended, b.total = true, total
	b.wakeLocked()
	taken := b.takenLocked()
	b.mu.Unlock()
	if taken {
		b.from.taken()
	}
	return nil
}

// wakeLocked ends waiting, on the pipe too.
func (b *inbox) wakeLocked() {
	b.changed.Broadcast()
	if b.waits {
		_ = b.pipe.SetReadDeadline(time.Unix(1, 0))
	}
}

// takenLocked says whether from is to be told, once, that nothing more is wanted of the
// pipe.
func (b *inbox) takenLocked() (now bool) {
	if b.told || !b.opened || !b.ended || !b.aborted && b.piped < b.total {
		return false
	}
	b.told = true
	return true
}

// abort makes Read return err; what has arrived is dropped.
func (b *inbox) abort(err error) {
	b.mu.Lock()
	if b.err == nil {
		b.err = err
	}
	b.aborted = true
	b.buf, b.off, b.spare = nil, 0, nil
	b.changed.Broadcast()
	if b.pipe != nil {
		_ = b.pipe.Close()
		b.pipe = nil
	}
	taken := b.takenLocked()
	b.mu.Unlock()
	if taken {
		b.from.taken()
	}
}

// fail makes Read return err after what has arrived.
func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && !b.ended {
		b.err = err
		b.wakeLocked()
	}
}

// waitLocked waits until something is unread: in buf, or inPipe bytes of the pipe. Else it
// returns why nothing will be.
func (b *inbox) waitLocked() (inPipe int, err error) {
	for {
		switch {
		case b.aborted:
			return 0, b.err
		case b.off < len(b.buf):
			return 0, nil
		case b.pipe != nil:
			if inPipe, err = b.waitPipeLocked(); inPipe > 0 || err != nil {
				return inPipe, err
			}
			continue
		case b.err != nil:
			return 0, b.err
		case b.ended:
			return 0, io.EOF
		}
		b.changed.Wait()
	}
}

// waitPipeLocked returns how much of the body is in the pipe; 0 if it is to be asked again.
func (b *inbox) waitPipeLocked() (n int, err error) {
	if b.ended && b.piped == b.total {
		return 0, io.EOF
	}
	var ierr error
	err = b.raw.Control(func(fd uintptr) { n, ierr = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	switch {
	case err != nil || ierr != nil:
		return 0, cmp.Or(err, ierr)
	case n > 0 && b.ended:
		return int(min(uint64(n), b.total-b.piped)), nil
	case n > 0 && (n >= gathered || b.piped < chunk || b.gathers):
		b.gathers = false
		return n, nil
	case n > 0 && b.err == nil:
		b.gathers = true
		b.mu.Unlock()
		time.Sleep(gather) //nolint:forbidigo // no event tells that there is more than there was
		b.mu.Lock()
		return 0, nil
	case n > 0:
		return n, nil
	case b.err != nil:
		return 0, b.err
	case b.ended:
		return 0, fmt.Errorf("%w: %d bytes came through a pipe, not %d", ErrProtocol, b.piped, b.total)
	}
	pipe := b.pipe
	b.waits = true
	b.mu.Unlock()
	_, err = Readable(b.raw)
	b.mu.Lock()
	b.waits = false
	_ = pipe.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, io.EOF): // how many it were is still to come
		for !b.ended && b.err == nil {
			b.changed.Wait()
		}
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrClosed):
		return 0, err
	}
	return 0, nil
}

func (b *inbox) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	for {
		inPipe, err := b.waitLocked()
		if err != nil {
			b.mu.Unlock()
			return 0, err
		}
		if inPipe == 0 {
			n := copy(p, b.buf[b.off:])
			if b.off += n; b.off == len(b.buf) {
				b.buf, b.off = b.buf[:0], 0
			}
			grant := b.tookLocked(n)
			b.mu.Unlock()
			if grant > 0 {
				b.from.grant(grant)
			}
			return n, nil
		}
		n, err := b.readPipeLocked(p[:min(len(p), inPipe)])
		if n > 0 || err != nil { // else somebody else has read them
			taken := b.takenLocked()
			b.mu.Unlock()
			if taken {
				b.from.taken()
			}
			return n, err
		}
	}
}

// readPipeLocked reads what is in the pipe.
func (b *inbox) readPipeLocked(p []byte) (n int, err error) {
	var rerr error
	err = b.raw.Control(func(fd uintptr) { n, rerr = unix.Read(int(fd), p) })
	n = max(n, 0)
	b.piped += uint64(n)
	if errors.Is(rerr, unix.EAGAIN) || errors.Is(rerr, unix.EINTR) {
		rerr = nil
	}
	return n, cmp.Or(err, rerr)
}

// tookLocked notes that n bytes were read, and says how much is to be granted for it.
func (b *inbox) tookLocked(n int) (grant int) {
	free := min(n, b.first)
	b.first -= free
	b.consumed += n - free
	if b.consumed >= chunk && !b.ended {
		grant, b.consumed = b.consumed, 0
		b.window += grant
	}
	return grant
}

// writeTo writes the body to w as it comes.
func (b *inbox) writeTo(w io.Writer) (written int64, err error) {
	for err == nil {
		var n int
		n, err = b.writeNext(w)
		written += int64(n)
	}
	if err == io.EOF { //nolint:errorlint // waitLocked's own
		err = nil
	}
	return written, err
}

// writeNext writes what is there, all that is in memory or all that is in the pipe.
func (b *inbox) writeNext(w io.Writer) (n int, err error) {
	b.mu.Lock()
	inPipe, err := b.waitLocked()
	if err != nil {
		b.mu.Unlock()
		return 0, err
	}
	if inPipe > 0 {
		pipe := b.pipe
		b.mu.Unlock()
		n, err = WritePipe(w, pipe, inPipe)
		b.mu.Lock()
		b.piped += uint64(n)
		taken := b.takenLocked()
		b.mu.Unlock()
		if taken {
			b.from.taken()
		}
		return n, err
	}
	p := b.buf
	from := b.off
	b.buf, b.off, b.spare = b.spare[:0], 0, nil
	b.mu.Unlock()
	n, err = w.Write(p[from:])
	b.mu.Lock()
	b.spare = p[:0]
	grant := b.tookLocked(n)
	b.mu.Unlock()
	if grant > 0 {
		b.from.grant(grant)
	}
	return n, err
}

// credit is what the other side's window lets this side send.
type credit struct {
	mu      sync.Mutex
	changed sync.Cond // L is &mu
	n       int
	err     error
}

func (c *credit) init() {
	c.changed.L = &c.mu
	c.n = Window
}

// take waits until something may be sent and returns at most max of it.
func (c *credit) take(most int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n == 0 && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	n := min(c.n, most)
	c.n -= n
	return n, nil
}

func (c *credit) add(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n > 1<<31 {
		return fmt.Errorf("%w: window of %d bytes", ErrProtocol, c.n)
	}
	c.changed.Broadcast()
	return nil
}

func (c *credit) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.changed.Broadcast()
	}
}
