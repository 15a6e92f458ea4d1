package wire

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Inbox holds the unread part of one body while the body arrives: at most one first frame, Window
// bytes of DATA, and the bytes in a pipe.
type Inbox struct {
	from Sender

	mu      sync.Mutex
	changed sync.Cond // L is &mu

	// Unread bytes, in order: buf[off:], then blocks, then the pipe.
	buf    []byte
	off    int
	blocks []block
	memory func(size int) (Buffer, error) // allocates blocks; nil: the whole body is in buf

	carrier carrier
	pipe    *os.File // rest of the body; nil before PIPE and after abort
	raw     syscall.RawConn
	watch   *os.File // duplicate of pipe for long waits; nil until the first of them
	poll    pollState
	count   uint64 // bytes read from the pipe, or written to the socket
	most    uint64 // upper bound of count; the exact total once ended
	vain    bool   // the last read found the pipe empty

	first    int   // unread bytes of the first frame, never granted again
	window   int   // bytes of DATA that the sender may still send
	consumed int   // bytes read since the last grant
	ended    bool  // the whole body has arrived
	aborted  bool  // the reader has given the body up
	err      error // why the rest never arrives
}

// carrier is the way that the rest of a body takes; become changes it.
//
//	frames ──▶ pipe ──▶ pipeTaken
//	   ⇅
//	socketWanted ──▶ socket ──▶ frames, if the socket could not be sent
type carrier uint8

const (
	frames       carrier = iota // DATA frames
	pipe                        // the pipe that came with PIPE
	pipeTaken                   // the same, and the sender knows that no more bytes of the pipe are wanted
	socketWanted                // DATA frames; the function waits for the client's socket, or for a refusal
	socket                      // the client's socket: the bytes that the function writes there do not pass the Inbox
)

// become changes the carrier and reports whether the change is allowed.
func (c *carrier) become(next carrier) bool {
	allowed := false
	switch next {
	case frames:
		allowed = *c == socketWanted || *c == socket
	case socket:
		allowed = *c == socketWanted
	case pipe, socketWanted:
		allowed = *c == frames
	case pipeTaken:
		allowed = *c == pipe
	}
	if allowed {
		*c = next
	}
	return allowed
}

// pollState is the state of a Read's wait for the pipe in the poller, during which Read does not
// hold mu.
type pollState uint8

const (
	pollIdle  pollState = iota // no Read waits
	pollWaits                  // a Read waits on watch
	pollWoken                  // a deadline on watch has ended the wait; the Read clears the deadline
)

// gather is how long Read leaves an empty pipe alone before it waits in the poller. A wake-up for
// each piece costs as much as copying many pieces.
const gather = 500 * time.Microsecond

// Sender is the sender of a body.
type Sender interface {
	Grant(n int) // allows n more bytes
	Taken()      // reports, once, that no more bytes of the pipe are wanted
}

// block is allocated memory with the unread bytes data[from:to].
type block struct {
	memory   Buffer
	data     []byte
	from, to int
}

// little is the most unread bytes of a body that stay in buf instead of blocks.
const little = 4 << 10

// Init begins a body with its first frame. If memory fails, Init returns the error, and so does
// Read.
func (b *Inbox) Init(first []byte, more bool, from Sender, memory func(size int) (Buffer, error)) error {
	b.changed.L = &b.mu
	b.most = math.MaxUint64
	b.first, b.window, b.ended, b.from, b.memory = len(first), Window, !more, from, memory
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.putLocked(first)
}

// putLocked appends p to the unread bytes. If memory fails, putLocked drops the whole body.
func (b *Inbox) putLocked(p []byte) error {
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
		memory, err := b.memory(Chunk) // always the same size: any released block fits any later need
		if err != nil {
			b.err, b.aborted = cmp.Or(b.err, err), true
			b.dropLocked()
			b.changed.Broadcast()
			return b.err
		}
		data := memory.Bytes()
		n := copy(data, p)
		b.blocks = append(b.blocks, block{memory: memory, data: data, to: n})
		p = p[n:]
	}
	return nil
}

// Short returns the unread bytes, or nil if they are in blocks. The bytes do not change.
func (b *Inbox) Short() []byte {
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

// dropLocked releases the memory of the unread bytes.
func (b *Inbox) dropLocked() {
	b.buf, b.off = nil, 0
	for _, p := range b.blocks {
		p.memory.Release()
	}
	b.blocks = nil
}

// takeLocked moves unread bytes from memory to p.
func (b *Inbox) takeLocked(p []byte) (n int) {
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
			first.memory.Release()
			b.blocks[0] = block{}
			b.blocks = b.blocks[1:]
		}
	}
	return n
}

// Expect returns ErrProtocol if a DATA frame of n bytes is not allowed now. Otherwise the caller
// must call Data next.
func (b *Inbox) Expect(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
		return fmt.Errorf("%w: data after the end of a body", ErrProtocol)
	case b.carrier != frames && b.carrier != socketWanted:
		return fmt.Errorf("%w: data beside a pipe or a socket", ErrProtocol)
	}
	if b.window -= n; b.window < 0 {
		return fmt.Errorf("%w: data beyond the window", ErrProtocol)
	}
	return nil
}

// Data takes one DATA frame. It returns an error if memory for the frame fails.
func (b *Inbox) Data(p []byte, more bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = !more
	if b.err != nil { // Read does not return later bytes
		return nil
	}
	if err := b.putLocked(p); err != nil {
		return err
	}
	b.changed.Broadcast()
	return nil
}

// OpenPipe takes ownership of the pipe with the rest of the body. A nil file counts as opened but is
// never read.
func (b *Inbox) OpenPipe(file *os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	if b.ended || !b.carrier.become(pipe) {
		err = fmt.Errorf("%w: a pipe after the end of a body, beside a socket, or a second one", ErrProtocol)
	}
	if file == nil {
		return err
	}
	if err != nil || b.err != nil {
		_ = file.Close()
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	b.pipe, b.raw = file, raw
	b.changed.Broadcast()
	return nil
}

// Piped reports whether the rest of the body comes through a pipe.
func (b *Inbox) Piped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.carrier == pipe || b.carrier == pipeTaken
}

// ClosePipe ends a body after the sender has written total bytes to the pipe.
func (b *Inbox) ClosePipe(total uint64) error {
	b.mu.Lock()
	if b.carrier != pipe || b.ended || b.count > total {
		b.mu.Unlock()
		return fmt.Errorf("%w: the end of a pipe that was none, or had %d bytes", ErrProtocol, b.count)
	}
	b.ended, b.most = true, total
	b.wakeLocked()
	taken := b.takenLocked()
	b.mu.Unlock()
	if taken {
		b.from.Taken()
	}
	return nil
}

// wakeLocked ends every wait, in the poller too.
func (b *Inbox) wakeLocked() {
	b.changed.Broadcast()
	if b.poll != pollIdle {
		_ = b.watch.SetReadDeadline(time.Unix(1, 0))
		b.poll = pollWoken
	}
}

// takenLocked reports, at most once, whether from has to hear that no more bytes of the pipe are
// wanted.
func (b *Inbox) takenLocked() (now bool) {
	if !b.ended || !b.aborted && b.count < b.most {
		return false
	}
	return b.carrier.become(pipeTaken)
}

// Abort drops the unread bytes and makes Read return err.
func (b *Inbox) Abort(err error) {
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
		b.from.Taken()
	}
}

// Fail makes Read return err after the bytes that have arrived. From a pipe Read still takes at
// most as many bytes as the pipe can hold.
func (b *Inbox) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && !b.ended {
		b.err = err
		b.most = b.count + PipeSize + Chunk // plus Chunk: a read under way is not counted yet
		b.wakeLocked()
	}
}

func (b *Inbox) Read(p []byte) (int, error) {
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
				b.from.Grant(grant)
			}
			return n, nil
		case b.pipe != nil:
			if n, err := b.readPipeLocked(p); n > 0 || err != nil {
				taken := b.takenLocked()
				b.mu.Unlock()
				if taken {
					b.from.Taken()
				}
				return n, err
			}
		case b.err != nil:
			err := b.err
			b.mu.Unlock()
			return 0, err
		case b.carrier == socketWanted:
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

// readPipeLocked reads from the pipe. If the pipe is empty, it waits and returns 0, nil.
func (b *Inbox) readPipeLocked(p []byte) (n int, err error) {
	if b.count == b.most {
		return 0, cmp.Or(b.err, io.EOF)
	}
	p = p[:min(uint64(len(p)), b.most-b.count)]
	raw, over := b.raw, b.ended || b.err != nil
	b.mu.Unlock()
	n, err = readNow(raw, p)
	b.mu.Lock()
	switch empty := errors.Is(err, unix.EAGAIN) && !over; {
	case !empty:
		b.vain = false
	case b.ended || b.err != nil: // ended meanwhile: read again, the pipe may hold earlier bytes
		err = nil
	default:
		err = b.awaitLocked()
		b.vain = true
	}
	b.count += uint64(max(n, 0))
	switch {
	case b.aborted:
		return 0, b.err
	case n > 0 && b.count > b.most: // more than the sender declared
		return 0, fmt.Errorf("%w: a pipe had more than %d bytes", ErrProtocol, b.most)
	case n > 0:
		return n, nil
	case !over && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)):
		return 0, nil
	case errors.Is(err, io.EOF) && !over: // the total is still to come
		for !b.ended && b.err == nil {
			b.changed.Wait()
		}
		return 0, nil
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.EAGAIN):
		return 0, err
	case b.err != nil:
		return 0, b.err
	}
	return 0, fmt.Errorf("%w: %d bytes came through a pipe, not %d", ErrProtocol, b.count, b.most)
}

// awaitLocked sleeps for gather or, if the last sleep was in vain, waits until the pipe is
// readable. It releases mu meanwhile.
func (b *Inbox) awaitLocked() error {
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
	b.poll = pollWaits
	b.mu.Unlock()
	err := waitReadable(watch)
	b.mu.Lock()
	if b.poll == pollWoken {
		_ = watch.SetReadDeadline(time.Time{})
	}
	b.poll = pollIdle
	return err
}

// readNow reads without waiting. It returns EAGAIN if the pipe is empty and io.EOF if no writer
// is left.
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

// tookLocked counts n read bytes and returns how many bytes to grant for them.
func (b *Inbox) tookLocked(n int) (grant int) {
	free := min(n, b.first)
	b.first -= free
	b.consumed += n - free
	if b.consumed >= Chunk && !b.ended {
		grant, b.consumed = b.consumed, 0
		b.window += grant
	}
	return grant
}

// Want makes Read return ErrSocketWanted until Lend is called.
func (b *Inbox) Want() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || !b.carrier.become(socketWanted) {
		return fmt.Errorf("%w: a socket wanted after the end of a body, beside a pipe, or twice", ErrProtocol)
	}
	b.changed.Broadcast()
	return nil
}

// Lend records whether the function gets the socket. It returns the reason if the body has been
// given up.
func (b *Inbox) Lend(lent bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := frames
	if lent {
		next = socket
	}
	if !b.carrier.become(next) && b.err == nil {
		return fmt.Errorf("%w: no socket was wanted for the body", ErrProtocol)
	}
	return b.err
}

// AwaitReturn waits until the function has given the socket back, which ends the body. n is how
// many bytes of the body the function wrote to the socket.
func (b *Inbox) AwaitReturn() (n int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.ended && b.err == nil {
		b.changed.Wait()
	}
	return int64(min(b.count, math.MaxInt64)), b.err
}

// IsLent reports whether GiveBack may follow.
func (b *Inbox) IsLent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.carrier == socket && !b.ended
}

// GiveBack ends a body of which total bytes, or ClientGone, were written to the socket.
func (b *Inbox) GiveBack(total uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.count = true, total
	if total == ClientGone && b.err == nil {
		b.count, b.err = 0, ErrClientGone
	}
	b.changed.Broadcast()
}

// Buffer is memory that the caller may use until Release, which must be called once.
type Buffer = interface {
	Bytes() []byte
	Release()
}

// ClientGone replaces the count of written bytes in SOCKET if the client accepts no more.
const ClientGone = math.MaxUint64

// Ends of bodies.
var (
	ErrOver       = errors.New("invocation over")
	ErrClosedBody = errors.New("read of a closed body")
)

// LenOf returns the length of a body of a known type, else -1. A Len method of another type may
// count only the bytes so far.
func LenOf(body io.Reader) int {
	switch b := body.(type) {
	case *bytes.Reader:
		return b.Len()
	case *bytes.Buffer:
		return b.Len()
	case *strings.Reader:
		return b.Len()
	}
	return -1
}

// ReadFirst reads the start of a body: all of a short body of known length, else the result of
// the first Read, so that a stream's answer begins with its first piece. At the body's end err is
// io.EOF.
func ReadFirst(r io.Reader, buf []byte) (n int, err error) {
	if l := LenOf(r); 0 <= l && l <= len(buf) {
		n, err = io.ReadFull(r, buf[:l])
		return n, cmp.Or(err, io.EOF)
	}
	for n == 0 && err == nil {
		n, err = r.Read(buf)
	}
	return n, err
}
