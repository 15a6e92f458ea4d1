package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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

	// What is unread: buf[off:], then blocks, then what is in the pipe.
	buf    []byte
	off    int
	blocks []block
	memory func(size int) (Lent, error) // for blocks; nil: all is in buf

	pipe    *os.File // the rest of the body; nil: none has come, or nobody wants it
	raw     syscall.RawConn
	watch   *os.File // the same pipe, for those who wait long; nil while nobody did
	opened  bool     // it has come
	piped   uint64   // bytes taken from it, or written to the socket
	most    uint64   // that may be; once ended, it had so many
	told    bool     // from knows that they were taken
	vain    bool     // nothing was there, the last time
	waiting bool     // somebody does, with watch, without the lock
	woken   bool     // by a deadline, which is to be taken back

	wanted bool // from waits for the client's socket, or to hear that it gets none
	lent   bool // it has it: what it writes there passes nobody here

	first    int   // unread bytes of the first frame, which are not granted again
	window   int   // bytes of DATA that may still come
	consumed int   // bytes read since the last grant
	ended    bool  // all of the body is here
	aborted  bool  // nobody wants it
	err      error // the rest will never come
}

// gather is how long a pipe is left alone that was found empty, before anybody waits for
// it: to be woken up for each piece costs as much as to copy many.
const gather = 500 * time.Microsecond

// sender is who sends a body.
type sender interface {
	grant(n int) // lets it send n bytes more
	taken()      // tells it that what it had sent through a pipe is wanted no more
}

// block is lent memory, of which data[from:to] is unread.
type block struct {
	lent     Lent
	data     []byte
	from, to int
}

// little is how many bytes of a body wait in no lent memory.
const little = 4 << 10

// init begins a body; an error is why there is no memory for it, and what Read returns.
func (b *inbox) init(first []byte, more bool, from sender, memory func(size int) (Lent, error)) error {
	b.changed.L = &b.mu
	b.most = math.MaxUint64
	b.first, b.window, b.ended, b.from, b.memory = len(first), Window, !more, from, memory
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.putLocked(first)
}

// putLocked puts p behind what is unread. Where there is no memory for it, all of the body
// is dropped.
func (b *inbox) putLocked(p []byte) error {
	if b.memory == nil || len(b.blocks) == 0 && len(b.buf)-b.off+len(p) <= little {
		if b.off > 0 && len(b.buf)+len(p) > cap(b.buf) {
			b.buf = b.buf[:copy(b.buf, b.buf[b.off:])]
			b.off = 0
		}
		b.buf = append(b.buf, p...)
		return nil
	}
	if n := len(b.blocks); n > 0 {
		last := &b.blocks[n-1]
		m := copy(last.data[last.to:], p)
		last.to += m
		p = p[m:]
	}
	for len(p) > 0 {
		lent, err := b.memory(chunk) // of one size, so that what is free is of use to all
		if err != nil {
			b.err, b.aborted = cmp.Or(b.err, err), true
			b.dropLocked()
			b.changed.Broadcast()
			return b.err
		}
		data := lent.Bytes()
		n := copy(data, p)
		b.blocks = append(b.blocks, block{lent: lent, data: data, to: n})
		p = p[n:]
	}
	return nil
}

// short is what is unread, where that is in no lent memory, else nil: it stays as it is.
func (b *inbox) short() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.blocks) > 0:
		return nil
	case b.buf == nil:
		return []byte{}
	}
	return b.buf[b.off:]
}

// dropLocked gives back what unread bytes are in.
func (b *inbox) dropLocked() {
	b.buf, b.off = nil, 0
	for _, p := range b.blocks {
		p.lent.Release()
	}
	b.blocks = nil
}

// takeLocked reads what is in memory.
func (b *inbox) takeLocked(p []byte) (n int) {
	if b.off < len(b.buf) {
		n = copy(p, b.buf[b.off:])
		if b.off += n; b.off == len(b.buf) {
			b.buf, b.off = b.buf[:0], 0
		}
	}
	for n < len(p) && len(b.blocks) > 0 {
		first := &b.blocks[0]
		m := copy(p[n:], first.data[first.from:first.to])
		n += m
		if first.from += m; first.from == first.to {
			first.lent.Release()
			b.blocks[0] = block{}
			b.blocks = b.blocks[1:]
		}
	}
	return n
}

// expect says whether a DATA frame of n bytes may come; data has to follow.
func (b *inbox) expect(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
		return fmt.Errorf("%w: data after the end of a body", ErrProtocol)
	case b.opened, b.lent:
		return fmt.Errorf("%w: data beside a pipe or a socket", ErrProtocol)
	}
	if b.window -= n; b.window < 0 {
		return fmt.Errorf("%w: data beyond the window", ErrProtocol)
	}
	return nil
}

// data takes one DATA frame; an error is why there is no memory for it.
func (b *inbox) data(p []byte, more bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = !more
	if b.err != nil { // nobody reads it
		return nil
	}
	if err := b.putLocked(p); err != nil {
		return err
	}
	b.changed.Broadcast()
	return nil
}

// open takes the pipe that the rest of the body comes through, and owns it; nil is one
// that nobody will read.
func (b *inbox) open(pipe *os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	bad := b.ended || b.opened || b.lent
	b.opened = true
	if pipe != nil && !bad && b.err == nil {
		raw, err := pipe.SyscallConn()
		if err == nil {
			b.pipe, b.raw = pipe, raw
			b.changed.Broadcast()
			return nil
		}
		return errors.Join(err, pipe.Close())
	}
	var err error
	if bad {
		err = fmt.Errorf("%w: a pipe after the end of a body, beside a socket, or a second one", ErrProtocol)
	}
	if pipe != nil {
		_ = pipe.Close()
	}
	return err
}

// close ends a body of which total bytes have gone into the pipe.
func (b *inbox) close(total uint64) error {
	b.mu.Lock()
	if !b.opened || b.ended || b.piped > total {
		b.mu.Unlock()
		return fmt.Errorf("%w: the end of a pipe that was none, or had %d bytes", ErrProtocol, b.piped)
	}
	b.ended, b.most = true, total
	b.wakeLocked()
	taken := b.takenLocked()
	b.mu.Unlock()
	if taken {
		b.from.taken()
	}
	return nil
}

// wakeLocked ends waiting, for the pipe too.
func (b *inbox) wakeLocked() {
	b.changed.Broadcast()
	if b.waiting {
		_ = b.watch.SetReadDeadline(time.Unix(1, 0))
		b.woken = true
	}
}

// takenLocked says whether from is to be told, once, that nothing more is wanted of the
// pipe.
func (b *inbox) takenLocked() (now bool) {
	if b.told || !b.opened || !b.ended || !b.aborted && b.piped < b.most {
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
	b.dropLocked()
	b.changed.Broadcast()
	if b.pipe != nil {
		_ = b.pipe.Close()
		b.pipe = nil
		if b.watch != nil {
			_ = b.watch.Close()
		}
	}
	taken := b.takenLocked()
	b.mu.Unlock()
	if taken {
		b.from.taken()
	}
}

// fail makes Read return err after what has arrived: of a pipe no more than it can have
// held.
func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && !b.ended {
		b.err = err
		b.most = b.piped + pipeSize + chunk // what is being read is not counted yet
		b.wakeLocked()
	}
}

func (b *inbox) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	for {
		switch {
		case b.aborted:
			err := b.err
			b.mu.Unlock()
			return 0, err
		case b.off < len(b.buf), len(b.blocks) > 0:
			n := b.takeLocked(p)
			grant := b.tookLocked(n)
			b.mu.Unlock()
			if grant > 0 {
				b.from.grant(grant)
			}
			return n, nil
		case b.pipe != nil:
			if n, err := b.readPipeLocked(p); n > 0 || err != nil {
				taken := b.takenLocked()
				b.mu.Unlock()
				if taken {
					b.from.taken()
				}
				return n, err
			}
		case b.err != nil:
			err := b.err
			b.mu.Unlock()
			return 0, err
		case b.wanted:
			b.mu.Unlock()
			return 0, ErrSocketWanted
		case b.ended:
			b.mu.Unlock()
			return 0, io.EOF
		default:
			b.changed.Wait()
		}
	}
}

// readPipeLocked reads what is in the pipe, or waits and returns without either.
func (b *inbox) readPipeLocked(p []byte) (n int, err error) {
	if b.piped == b.most {
		return 0, cmp.Or(b.err, io.EOF)
	}
	p = p[:min(uint64(len(p)), b.most-b.piped)]
	raw, over := b.raw, b.ended || b.err != nil
	b.mu.Unlock()
	n, err = readNow(raw, p)
	b.mu.Lock()
	switch empty := errors.Is(err, unix.EAGAIN) && !over; {
	case !empty:
		b.vain = false
	case b.ended || b.err != nil: // by now: what came before that may be there
		err = nil
	default:
		err = b.awaitLocked()
		b.vain = true
	}
	b.piped += uint64(max(n, 0))
	switch {
	case b.aborted:
		return 0, b.err
	case n > 0 && b.piped > b.most: // more than its sender says
		return 0, fmt.Errorf("%w: a pipe had more than %d bytes", ErrProtocol, b.most)
	case n > 0:
		return n, nil
	case !over && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)):
		return 0, nil
	case errors.Is(err, io.EOF) && !over: // how many it were is still to come
		for !b.ended && b.err == nil {
			b.changed.Wait()
		}
		return 0, nil
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.EAGAIN):
		return 0, err
	case b.err != nil:
		return 0, b.err
	}
	return 0, fmt.Errorf("%w: %d bytes came through a pipe, not %d", ErrProtocol, b.piped, b.most)
}

// awaitLocked waits for a moment, or where that was in vain, until something is in the
// pipe. It gives the lock away meanwhile.
func (b *inbox) awaitLocked() error {
	if b.vain && b.watch == nil {
		b.watch = watchPipe(b.pipe)
	}
	if !b.vain || b.watch == nil {
		b.mu.Unlock()
		time.Sleep(gather) //nolint:forbidigo // no event tells that there is more than there was
		b.mu.Lock()
		return nil
	}
	watch := b.watch
	b.waiting = true
	b.mu.Unlock()
	err := waitReadable(watch)
	b.mu.Lock()
	b.waiting = false
	if b.woken {
		_ = watch.SetReadDeadline(time.Time{})
		b.woken = false
	}
	return err
}

// readNow reads without waiting. EAGAIN where nothing is there, io.EOF where nothing will
// be.
func readNow(pipe syscall.RawConn, p []byte) (n int, err error) {
	cerr := pipe.Control(func(fd uintptr) {
		for {
			if n, err = unix.Read(int(fd), p); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err == nil && n == 0:
		return 0, io.EOF
	}
	return n, err
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

// want has Read return ErrSocketWanted until it is decided who gets the socket.
func (b *inbox) want() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.opened || b.lent || b.wanted {
		return fmt.Errorf("%w: a socket wanted after the end of a body, beside a pipe, or twice", ErrProtocol)
	}
	b.wanted = true
	b.changed.Broadcast()
	return nil
}

// lend notes that the socket is lent, or not; the error says why nobody wants it any more.
func (b *inbox) lend(lent bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted, b.lent = false, lent
	return b.err
}

// awaitReturn waits until the socket has been given back, and the body is over: n bytes
// of it were written there.
func (b *inbox) awaitReturn() (n int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.ended && b.err == nil {
		b.changed.Wait()
	}
	return int64(min(b.piped, math.MaxInt64)), b.err
}

// isLent says whether giveBack may follow.
func (b *inbox) isLent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent && !b.ended
}

// giveBack ends a body of which total bytes were written to the socket, or clientGone.
func (b *inbox) giveBack(total uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.piped = true, total
	if total == clientGone && b.err == nil {
		b.piped, b.err = 0, ErrClientGone
	}
	b.changed.Broadcast()
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

// send sends what follows the first part of a request's body, until nobody wants more; broken
// is told why the body has no end.
func (c *credit) send(ctx context.Context, w *frameWriter, id uint64, body io.Reader, broken func(error)) {
	buf := make([]byte, chunk)
	for {
		n, err := c.take(chunk)
		if err != nil {
			return // the invocation is over
		}
		got, rerr := body.Read(buf[:n])
		_ = c.add(n - got) // what was taken before fits
		more := uint8(flagMore)
		switch {
		case rerr == io.EOF:
			more = 0
		case rerr != nil:
			if !c.over() {
				broken(fmt.Errorf("read body: %w", rerr))
			}
			return
		case got == 0:
			continue
		}
		if w.send(ctx, kindData, more, id, nil, buf[:got]) != nil || more == 0 {
			return
		}
	}
}

// over tells whether nothing may be sent any more.
func (c *credit) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

func (c *credit) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.changed.Broadcast()
	}
}
