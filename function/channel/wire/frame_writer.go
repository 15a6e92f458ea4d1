package wire

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
)

// Writer sends frames whole and in order. Each frame is one sendmsg; small frames sent at
// the same time share one, since a message costs as much as all other work for a small event. A
// Send never waits for the socket's reader: a goroutine sends the bytes that do not fit into the
// socket's buffer, and only the next frame waits for the goroutine.
type Writer struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	turn chan struct{}   // holds one value while a frame is being sent
	done <-chan struct{} // closed when the channel is over
	fail func(error)     // ends the channel
	wg   *sync.WaitGroup // waits for the goroutines

	// Guarded by turn: the current frame, and the result of its last attempt.
	head    []byte    // header and metadata, small frames whole
	iov     [2][]byte // head, body
	rights  []byte
	sent    int
	err     error
	attempt func(fd uintptr) bool // attemptOn, allocated once
	skips   int                   // next frames to send without coalescing
	skipped int                   // value of skips after the last failure

	mu         sync.Mutex
	coalescing bool // the holder of turn collects frames of other goroutines behind head
	coalesced  int
}

// NewWriter returns a Writer for conn. done is closed when the channel is over, fail ends the channel,
// and wg waits for the Writer's goroutines.
func NewWriter(conn *net.UnixConn, done <-chan struct{}, wg *sync.WaitGroup, fail func(error)) (*Writer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &Writer{conn: conn, raw: raw, turn: make(chan struct{}, 1), done: done, wg: wg, fail: fail, skips: mostSkips, skipped: mostSkips}
	w.attempt = w.attemptOn
	return w, nil
}

// Send sends one frame. A meta that is not nil is preceded by its length. Send waits only for
// earlier frames, at most until ctx ends. meta and body stay the caller's.
func (w *Writer) Send(ctx context.Context, k Kind, flags uint8, id uint64, meta, body []byte) error {
	return w.sendWith(ctx, k, flags, id, meta, body, nil)
}

// SendFile is Send with a file, which stays the caller's. SendFile waits until the socket accepts
// the first byte of the frame. It returns ETOOMANYREFS if too many files of this user are in
// flight already (unix(7)).
func (w *Writer) SendFile(ctx context.Context, k Kind, id uint64, meta, body []byte, file *os.File) error {
	raw, err := file.SyscallConn() // File.Fd would make the shared file description blocking
	if err != nil {
		return err
	}
	return w.SendRaw(ctx, k, id, meta, body, raw)
}

// SendRaw is SendFile for any open descriptor.
func (w *Writer) SendRaw(ctx context.Context, k Kind, id uint64, meta, body []byte, raw syscall.RawConn) error {
	var sent error
	err := raw.Control(func(fd uintptr) {
		sent = w.sendWith(ctx, k, 0, id, meta, body, unix.UnixRights(int(fd)))
	})
	return cmp.Or(err, sent)
}

// sendWith is Send. rights, if not nil, holds one file descriptor.
func (w *Writer) sendWith(ctx context.Context, k Kind, flags uint8, id uint64, meta, body, rights []byte) error {
	n := len(body)
	if meta != nil {
		n += 4 + len(meta)
	}
	h := Header{Len: n, Kind: k, Flags: flags, ID: id}
	if rights != nil {
		h.FDs = 1
	}
	coalesces := h.coalesces()
	if coalesces && w.join(h, meta, body) {
		return nil
	}
	if err := w.takeTurn(ctx); err != nil {
		return err
	}
	if cap(w.head) > 2*mostCoalesced {
		w.head = nil
	}
	w.head = w.head[:0]
	w.put(h, meta)
	if len(body) <= smallFrame { // a copy costs less than a second iovec
		w.head = append(w.head, body...)
		body = nil
	}
	if coalesces {
		w.coalesce()
	}
	sent, err := w.try(body, rights)
	if err == nil && sent < len(w.head)+len(body) {
		w.sendRest(body, sent)
		return nil
	}
	<-w.turn
	if err == nil || rights != nil && errors.Is(err, unix.ETOOMANYREFS) { // no byte went out
		return err
	}
	return w.failed(err)
}

// takeTurn waits for earlier frames.
func (w *Writer) takeTurn(ctx context.Context) error {
	select {
	case w.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case w.turn <- struct{}{}:
		return nil
	case <-w.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sendRest starts a goroutine that sends all but the first sent bytes of head and body, and passes
// the turn on.
func (w *Writer) sendRest(body []byte, sent int) {
	inHead := min(sent, len(w.head))
	rest := append(append([]byte(nil), w.head[inHead:]...), body[sent-inHead:]...)
	w.wg.Go(func() {
		_, err := w.conn.Write(rest)
		<-w.turn
		if err != nil {
			_ = w.failed(err)
		}
	})
}

// coalesces reports whether the frame may share a message with frames of other goroutines.
func (h Header) coalesces() bool {
	return (h.Kind == KindInvoke || h.Kind == KindResponse || h.Kind == KindFD && h.FDs == 0) && h.Len <= smallFrame
}

// put appends the header and metadata of a frame to head.
func (w *Writer) put(h Header, meta []byte) {
	w.head = h.Append(w.head)
	if meta != nil {
		w.head = binary.LittleEndian.AppendUint32(w.head, uint32(len(meta)))
		w.head = append(w.head, meta...)
	}
}

const (
	smallFrame    = 4 << 10  // bytes: a frame that may be coalesced, a body that is copied
	mostCoalesced = 48 << 10 // bytes of coalesced frames; the last frame may exceed it by 4 KiB
	mostSkips     = 1023

	// eachTakes is how long a yield may take per frame collected. A goroutine that computes for
	// longer is not worth the wait: a system call costs a tenth of eachTakes.
	eachTakes = 100 * time.Microsecond
)

// coalesce yields to the other runnable goroutines and collects the frames that they send. If no
// frame comes, or the yield takes long, the next frames are sent without a yield: one frame at
// first, more after each further failure. A new writer begins with mostSkips such frames.
func (w *Writer) coalesce() {
	if w.skips > 0 {
		w.skips--
		return
	}
	w.mu.Lock()
	w.coalescing, w.coalesced = true, 0
	w.mu.Unlock()
	began := time.Now()
	runtime.Gosched()
	took := time.Since(began)
	w.mu.Lock()
	w.coalescing = false
	w.mu.Unlock()
	if w.coalesced > 0 && took <= time.Duration(w.coalesced+1)*eachTakes {
		w.skipped = 0
	} else {
		w.skipped = min(2*w.skipped+1, mostSkips)
	}
	w.skips = w.skipped
}

// join leaves a frame to the goroutine in coalesce. It returns false if no goroutine coalesces.
// If the frame cannot be sent, the channel is over or the peer has hung up, and the reader learns
// Of either.
func (w *Writer) join(h Header, meta, body []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.coalescing || len(w.head) > mostCoalesced {
		return false
	}
	w.put(h, meta)
	w.head = append(w.head, body...)
	w.coalesced++
	return true
}

// failed ends the channel, unless the peer has hung up: the reader can still read earlier frames
// Of the peer, and then sees the end.
func (w *Writer) failed(err error) error {
	hungUp := errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	err = fmt.Errorf("%w: send: %w", ErrClosed, err)
	if !hungUp {
		w.fail(err)
	}
	return err
}

// try sends the part of head and body that fits into the socket's buffer. With rights, try waits
// until at least one byte fits.
func (w *Writer) try(body, rights []byte) (n int, err error) {
	w.iov, w.rights = [2][]byte{w.head, body}, rights
	err = w.raw.Write(w.attempt)
	n, w.iov, w.rights = w.sent, [2][]byte{}, nil
	if err == nil && !errors.Is(w.err, unix.EAGAIN) {
		err = w.err
	}
	return n, err
}

// attemptOn is called by the poller. It returns false to wait until the socket is writable.
func (w *Writer) attemptOn(fd uintptr) (done bool) {
	w.sent, w.err = rawio.Send(int(fd), w.iov[:], w.rights, 0)
	return w.rights == nil || !errors.Is(w.err, unix.EAGAIN)
}

// Grant allows the peer n more bytes. It fails only if the reader of the channel, or of the body,
// sees the end anyway.
func (w *Writer) Grant(ctx context.Context, id uint64, n int) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	_ = w.Send(ctx, KindWindow, 0, id, nil, b[:])
}
