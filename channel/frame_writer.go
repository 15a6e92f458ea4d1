package channel

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

	"github.com/fre-engine/fre/internal/linux"
)

// frameWriter sends frames whole and in turn, by one sendmsg each or, small ones that come
// together, for several: a message costs as much as all else that is done for a small
// event. A send never waits for the reader of the socket: what the socket's buffer does
// not take is left to a goroutine, and only the next frame waits for that.
type frameWriter struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	turn chan struct{}   // holds one value while a frame is being sent
	done <-chan struct{} // the channel is over
	fail func(error)     // ends the channel
	wg   *sync.WaitGroup // waits for the goroutines

	// Guarded by turn. The frame in hand, and what became of the attempt to send it.
	head    []byte    // header and metadata, and small frames whole
	iov     [2][]byte // head, body
	rights  []byte
	sent    int
	err     error
	attempt func(fd uintptr) bool // attemptOn, made once
	skips   int                   // frames that go out as they come
	skipped int                   // how many were not after the last failure

	mu         sync.Mutex
	coalescing bool // who has the turn waits for frames, which go behind head
	coalesced  int
}

func newFrameWriter(conn *net.UnixConn, done <-chan struct{}, wg *sync.WaitGroup, fail func(error)) (*frameWriter, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &frameWriter{conn: conn, raw: raw, turn: make(chan struct{}, 1), done: done, wg: wg, fail: fail, skips: mostSkips, skipped: mostSkips}
	w.attempt = w.attemptOn
	return w, nil
}

// send sends one frame. meta, if not nil, is preceded by its length. It waits
// for the frames before it only, until ctx ends. meta and body are the
// caller's again on return.
func (w *frameWriter) send(ctx context.Context, k kind, flags uint8, id uint64, meta, body []byte) error {
	return w.sendWith(ctx, k, flags, id, meta, body, nil)
}

// sendFile is send with a file that goes along, which is the caller's again on
// return: it waits until the socket takes the frame's first byte. ETOOMANYREFS if
// the kernel carries too many of this user's files already (unix(7)).
func (w *frameWriter) sendFile(ctx context.Context, k kind, id uint64, meta, body []byte, file *os.File) error {
	raw, err := file.SyscallConn() // Fd would make it blocking, for all who share it
	if err != nil {
		return err
	}
	return w.sendRaw(ctx, k, id, meta, body, raw)
}

// sendRaw is sendFile of any open file.
func (w *frameWriter) sendRaw(ctx context.Context, k kind, id uint64, meta, body []byte, raw syscall.RawConn) error {
	var sent error
	err := raw.Control(func(fd uintptr) {
		sent = w.sendWith(ctx, k, 0, id, meta, body, unix.UnixRights(int(fd)))
	})
	return cmp.Or(err, sent)
}

// sendWith is send; rights, if not nil, are those of one file descriptor.
func (w *frameWriter) sendWith(ctx context.Context, k kind, flags uint8, id uint64, meta, body, rights []byte) error {
	n := len(body)
	if meta != nil {
		n += 4 + len(meta)
	}
	h := header{len: n, kind: k, flags: flags, id: id}
	if rights != nil {
		h.fds = 1
	}
	coalesces := (k == kindInvoke || k == kindResponse || k == kindFD && rights == nil) && n <= smallFrame
	if coalesces && w.join(h, meta, body) {
		return nil
	}
	select {
	case w.turn <- struct{}{}:
	default:
		select {
		case w.turn <- struct{}{}:
		case <-w.done:
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if cap(w.head) > 2*mostCoalesced {
		w.head = nil
	}
	w.head = w.head[:0]
	w.put(h, meta)
	if len(body) <= smallFrame { // cheaper to copy than to point at
		w.head = append(w.head, body...)
		body = nil
	}
	if coalesces {
		w.coalesce()
	}
	sent, err := w.try(body, rights)
	if err != nil {
		<-w.turn
		if rights != nil && errors.Is(err, unix.ETOOMANYREFS) { // nothing went out
			return err
		}
		return w.failed(err)
	}
	if sent == len(w.head)+len(body) {
		<-w.turn
		return nil
	}
	inHead := min(sent, len(w.head))
	rest := append(append([]byte(nil), w.head[inHead:]...), body[sent-inHead:]...)
	w.wg.Go(func() {
		_, err := w.conn.Write(rest)
		<-w.turn
		if err != nil {
			_ = w.failed(err)
		}
	})
	return nil
}

// put puts the begin of a frame behind head.
func (w *frameWriter) put(h header, meta []byte) {
	w.head = h.append(w.head)
	if meta != nil {
		w.head = binary.LittleEndian.AppendUint32(w.head, uint32(len(meta)))
		w.head = append(w.head, meta...)
	}
}

const (
	smallFrame    = 4 << 10  // bytes: of a frame that is sent with others, and of a body that is copied
	mostCoalesced = 48 << 10 // bytes of frames that go out together, some 4 KiB more at most
	mostSkips     = 1023

	// eachTakes is how long others may take over each frame that they send meanwhile. Those who
	// compute for longer are not waited for: the system call costs a tenth of that.
	eachTakes = 100 * time.Microsecond
)

// coalesce lets the other goroutines that can run do so, and takes along what they send
// meanwhile. Where nobody does, or it takes long, the next frames are sent as they come:
// one, and more the more often that happens. So are the first.
func (w *frameWriter) coalesce() {
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

// join leaves a frame to whoever coalesces; false if nobody does. Where sending it fails, the
// channel is over, or its other end has hung up: its reader learns of that.
func (w *frameWriter) join(h header, meta, body []byte) bool {
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

// failed ends the channel, unless the other side has hung up: what it sent
// before may still be read, and after that the reader sees the end.
func (w *frameWriter) failed(err error) error {
	hungUp := errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	err = fmt.Errorf("%w: send: %w", ErrClosed, err)
	if !hungUp {
		w.fail(err)
	}
	return err
}

// try sends what the socket takes now of head and body; with rights, at least one
// byte.
func (w *frameWriter) try(body, rights []byte) (n int, err error) {
	w.iov, w.rights = [2][]byte{w.head, body}, rights
	err = w.raw.Write(w.attempt)
	n, w.iov, w.rights = w.sent, [2][]byte{}, nil
	if err == nil && !errors.Is(w.err, unix.EAGAIN) {
		err = w.err
	}
	return n, err
}

// attemptOn is called by the poller; false waits until the socket takes something.
func (w *frameWriter) attemptOn(fd uintptr) (done bool) {
	w.sent, w.err = linux.Send(int(fd), w.iov[:], w.rights, 0)
	return w.rights == nil || !errors.Is(w.err, unix.EAGAIN)
}

// grant lets the other side send n bytes more. It fails only where the reader
// of the channel, or of the body, learns of the end anyway.
func (w *frameWriter) grant(ctx context.Context, id uint64, n int) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	_ = w.send(ctx, kindWindow, 0, id, nil, b[:])
}
