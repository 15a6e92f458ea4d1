package channel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// Reply is a function's answer. The caller must close Body. Its Read returns a *[Failure] when
// the function breaks the body off, the cause of Invoke's context when that context ends, and
// ErrClosed when the channel ends.
type Reply struct {
	Status  int           // 200 to 599, or 101: see Invocation.Upgrade
	Headers [][2]string   // valid in HTTP, in the function's order; several answers share the slice
	Length  int64         // bytes of the body, -1 while the body is still arriving
	Body    io.ReadCloser // for one goroutine

	// Bytes, if not nil, also holds the whole of a short body. It is immutable.
	Bytes []byte

	// File, if not nil, also holds the body: Length bytes from Offset on, immutable. Only
	// Body.Close closes it.
	File   *os.File
	Offset int64

	// Lend is nil if the event had no Socket or the body's length is known. After Body.Read has
	// returned ErrSocketWanted, Lend gives the function the client's socket and waits until the
	// function gives it back. The function writes each piece of the body as a chunk (RFC 9112
	// section 7.1). Lend returns the number of body bytes written; Body is over then. With a nil
	// conn Lend refuses the socket, and Body goes on.
	Lend func(conn syscall.RawConn) (n int64, err error)
}

// call is an invocation in flight.
type call struct {
	conn    *Conn
	id      uint64
	name    string // Invocation.ID
	ctx     context.Context
	stop    func() bool   // ends the watch over ctx
	replied chan struct{} // closed once reply or err is set
	once    sync.Once     // closes replied
	reply   *Reply        // nil, or &whole
	whole   Reply
	err     error
	upgrade bool // the function may answer 101
	socket  bool // the function may ask for the client's socket
	headed  bool // RESPONSE has arrived; for the reader goroutine only
	in      wire.Inbox
	out     wire.Credit
	caller  Caller
	onward  onwards

	mu       sync.Mutex
	state    callState
	finished func() // Invocation.Finished; nil if unset or moved to the body
}

// callState is the state of a call; advance changes it. The order of the states is the order in time.
type callState uint8

const (
	callRuns    callState = iota // the answer is still to come, or is arriving
	callGivenUp                  // the caller has left: CANCEL is sent
	callEnded                    // the answer has ended
)

// advance moves the call to a later state and returns the state before. A call never goes back.
func (k *call) advance(next callState) (before callState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before = k.state
	k.state = max(k.state, next)
	return before
}

// Invoke sends one event and returns the function's answer, whose body may still be arriving. ctx
// covers both. When ctx ends, the function gets CANCEL, and Invoke and reads of the body return
// the cause at once.
//
// Unless m.Flows, Invoke reads up to 32 KiB of m.Body on the caller's goroutine before it sends the
// event. A goroutine reads the rest of a longer body. The goroutine ends with the invocation,
// once its current Read returns. If a Read fails, the invocation is cancelled with the error.
//
// Invoke also returns a *[Failure] for an exception in the function, [ErrMetaTooLarge], and the
// errors of [Conn.Err].
func (c *Conn) Invoke(ctx context.Context, m *Invocation) (*Reply, error) {
	k := &call{conn: c, name: m.ID, ctx: ctx, finished: m.Finished, socket: m.Socket, caller: m.Caller, replied: make(chan struct{})}
	k.out.Init()
	m, err := c.offer(k, m)
	if err != nil {
		c.finish(k, err)
		return nil, err
	}
	rest, err := c.start(k, m)
	if err != nil {
		c.finish(k, err)
		k.settle(err)
		if k.reply != nil { // the function guessed the id and answered before INVOKE
			_ = k.reply.Body.Close()
		}
		return nil, err
	}
	if rest {
		body := m.Body
		c.spawn(func() { k.out.Send(ctx, c.w, k.id, body, k.cancel) })
	}
	select {
	case <-k.replied:
	case <-ctx.Done():
		k.cancel(context.Cause(ctx))
		<-k.replied
	}
	if k.reply != nil {
		k.watch()
	}
	return k.reply, k.err
}

// watch cancels the call when its context ends, unless the call is over.
func (k *call) watch() {
	if k.advance(callRuns) != callRuns {
		return
	}
	stop := context.AfterFunc(k.ctx, func() { k.cancel(context.Cause(k.ctx)) })
	k.mu.Lock()
	k.stop = stop
	over := k.state != callRuns
	k.mu.Unlock()
	if over {
		stop()
	}
}

// offer prepares the event for a protocol upgrade if m asks for one and the function supports
// upgrades.
func (c *Conn) offer(k *call, m *Invocation) (*Invocation, error) {
	if m.Upgrade == "" {
		return m, nil
	}
	ready, err := c.Ready(k.ctx)
	if err != nil {
		return m, err
	}
	told := *m
	if !ready.Upgrades {
		told.Upgrade, told.Body = "", nil
		return &told, nil
	}
	k.upgrade = true
	told.DeadlineMS = 0
	return &told, nil
}

// start sends INVOKE. rest reports whether more of the body may follow.
func (c *Conn) start(k *call, m *Invocation) (rest bool, err error) {
	buf := scratches.Get().(*scratch)
	defer scratches.Put(buf)
	meta := m.Append(buf.meta[:0])
	if cap(meta) <= inlineBody {
		buf.meta = meta
	}
	if len(meta) > MaxMeta {
		return false, fmt.Errorf("invoke %s: %w: %d bytes, at most %d", m.Function, ErrMetaTooLarge, len(meta), MaxMeta)
	}
	first, rest, err := buf.readFirst(k, m)
	if k.ctx.Err() != nil { // perhaps the end of ctx broke the Read off
		return false, context.Cause(k.ctx)
	}
	if err != nil {
		return false, fmt.Errorf("invoke %s: read body: %w", m.Function, err)
	}
	if err := c.register(k); err != nil {
		return false, err
	}
	flags := uint8(0)
	if rest {
		flags = wire.FlagMore
	}
	err = c.w.Send(k.ctx, wire.KindInvoke, flags, k.id, meta, first)
	if errors.Is(err, ErrClosed) {
		// The reader may not have read yet the STOP that precedes the end.
		select {
		case <-c.done:
			err = c.unserved(err)
		case <-k.ctx.Done():
			err = context.Cause(k.ctx)
		}
	}
	return rest, err
}

// inlineBody is the longest request body that travels in INVOKE, in bytes.
const inlineBody = 32 << 10

// scratch is the memory in which start assembles an INVOKE.
type scratch struct {
	meta  []byte
	first [inlineBody + 1]byte // start of the body; the extra byte shows whether the body ends
}

// readFirst reads the start of the body, up to inlineBody. rest reports whether more may follow.
func (s *scratch) readFirst(k *call, m *Invocation) (first []byte, rest bool, err error) {
	if k.upgrade || m.Body != nil && m.Flows {
		return nil, true, nil
	}
	if m.Body == nil {
		return nil, false, nil
	}
	n, err := io.ReadFull(m.Body, s.first[:])
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return s.first[:n], false, nil
	}
	return s.first[:n], true, err
}

// register gives the call its id, unless the function takes no more events.
func (c *Conn) register(k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && !errors.Is(c.err, ErrClosed) {
		return c.err
	}
	if c.err != nil || isClosed(c.ending) {
		return fmt.Errorf("%w: %w", ErrUnserved, cmp.Or(c.err, ErrClosed))
	}
	c.lastID++
	k.id = c.lastID
	c.calls[k.id] = k
	return nil
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// frame handles a frame about the invocation. It owns file.
func (k *call) frame(h wire.Header, p []byte, file *os.File) error {
	switch h.Kind { // Conn.frame handles all others
	case wire.KindFD, wire.KindFile:
		return k.frameFile(h.Kind, p, file)
	case wire.KindPipe:
		return k.framePipe(h, p, file)
	case wire.KindResponse:
		return k.frameResponse(p, h.More())
	case wire.KindSocket:
		if file != nil {
			return closing(file, fmt.Errorf("%w: SOCKET with a file", ErrProtocol))
		}
		return k.frameSocket(p)
	case wire.KindData:
		return k.frameData(p, h.More())
	case wire.KindError:
		return k.frameError(p)
	case wire.KindWindow:
		return k.out.AddWindow(p)
	}
	return nil
}

func (k *call) frameData(p []byte, more bool) error {
	if !k.headed {
		return fmt.Errorf("%w: DATA before RESPONSE", ErrProtocol)
	}
	if err := k.in.Expect(len(p)); err != nil {
		return err
	}
	if !more { // before the reader can see the end, so that the next event finds the slot free
		k.conn.finish(k, nil)
	}
	if err := k.in.Data(p, more); err != nil {
		k.cancel(err) // no effect after the last frame
	}
	return nil
}

func (k *call) frameError(p []byte) error {
	f := &Failure{}
	if err := wire.Unmarshal(p, f); err != nil {
		return err
	}
	if f.Unserved && !k.headed {
		k.conn.finish(k, ErrUnserved)
	} else {
		k.conn.finish(k, f)
	}
	return nil
}

func (k *call) frameResponse(p []byte, more bool) error {
	r, body, err := k.head(p)
	if err != nil {
		return err
	}
	if err := k.in.Init(body, more, k, k.conn.cfg.Memory); err != nil {
		if more {
			k.cancel(err)
		} else {
			k.conn.finish(k, err)
		}
		return nil
	}
	r.Body = replyBody{k}
	if more {
		if k.socket {
			r.Lend = k.lend
		}
	} else {
		r.Length = int64(len(body))
		r.Bytes = k.in.Short()
		k.conn.finish(k, nil)
	}
	if !k.answer(r) { // the call was cancelled before
		k.in.Abort(k.err)
	}
	return nil
}

// framePipe handles PIPE: the pipe for the rest of the answer's body or, without a descriptor,
// the total of bytes written to it. It owns pipe, which is nil if the engine could not open it.
func (k *call) framePipe(h wire.Header, p []byte, pipe *os.File) error {
	switch {
	case !k.headed || h.FDs > 0 && len(p) != 0 || h.FDs == 0 && len(p) != 8:
		return closing(pipe, fmt.Errorf("%w: a pipe before RESPONSE, or with %d bytes", ErrProtocol, len(p)))
	case h.FDs == 0:
		if err := k.in.ClosePipe(binary.LittleEndian.Uint64(p)); err != nil {
			return err
		}
		k.out.End(wire.ErrOver)
		return nil
	}
	err := k.in.OpenPipe(pipe)
	if err == nil && pipe == nil {
		k.cancel(errNoPipe)
	}
	return err
}

// frameSocket handles SOCKET: the function asks for the client's socket or, once it has had the
// socket, reports how many bytes of the body it wrote there.
func (k *call) frameSocket(p []byte) error {
	switch {
	case !k.headed || !k.socket:
		return fmt.Errorf("%w: a socket before RESPONSE, or without a lendable socket", ErrProtocol)
	case len(p) == 0:
		return k.in.Want()
	case len(p) != 8 || !k.in.IsLent():
		return fmt.Errorf("%w: %d bytes about a socket not lent", ErrProtocol, len(p))
	}
	k.conn.finish(k, nil) // before the reader can see the end, so that the next event finds the slot free
	k.in.GiveBack(binary.LittleEndian.Uint64(p))
	return nil
}

// lend implements Reply.Lend.
func (k *call) lend(conn syscall.RawConn) (int64, error) {
	if err := k.in.Lend(conn != nil); err != nil {
		return 0, err
	}
	if conn != nil {
		err := k.conn.w.SendRaw(k.ctx, wire.KindSocket, k.id, nil, nil, conn)
		if err == nil {
			return k.in.AwaitReturn()
		}
		if !errors.Is(err, unix.ETOOMANYREFS) {
			return 0, err
		}
		if err := k.in.Lend(false); err != nil {
			return 0, err
		}
	}
	return 0, k.conn.w.Send(k.ctx, wire.KindSocket, 0, k.id, nil, nil)
}

// errNoPipe means that the engine could not open an answer's pipe.
var errNoPipe = errors.New("open the answer's pipe: too many files, or no memory")

// head parses the metadata of RESPONSE, FD and FILE. It returns the reply and the rest of the
// payload.
func (k *call) head(p []byte) (*Reply, []byte, error) {
	if k.headed {
		return nil, nil, fmt.Errorf("%w: RESPONSE twice", ErrProtocol)
	}
	k.headed = true
	meta, body, err := wire.Split(p)
	if err != nil {
		return nil, nil, err
	}
	m, err := k.conn.responseMeta(meta, k.upgrade)
	if err != nil {
		return nil, nil, err
	}
	k.whole = Reply{Status: m.Status, Headers: m.Headers, Length: -1}
	return &k.whole, body, nil
}

// maxUsual limits, in bytes, the metadata that responseMeta remembers for the next answer.
const maxUsual = 1 << 10

// responseMeta parses and checks the metadata of an answer. Answers mostly repeat the last
// metadata, and a comparison is cheaper than a parse.
func (c *Conn) responseMeta(meta []byte, upgrade bool) (m wire.ResponseMeta, err error) {
	if len(c.usual) > 0 && bytes.Equal(meta, c.usual) {
		return c.usualMeta, nil
	}
	if err := m.Parse(meta); err != nil {
		return m, err
	}
	if err := m.Check(upgrade); err != nil {
		return m, err
	}
	if len(meta) <= maxUsual && m.Status != 101 {
		c.usual, c.usualMeta = append(c.usual[:0], meta...), m
	}
	return m, nil
}

// Grant allows the function to send n more bytes of the answer's body.
func (k *call) Grant(n int) { k.conn.w.Grant(k.ctx, k.id, n) }

// Taken frees the function's slot: no bytes in its pipe are wanted any more.
func (k *call) Taken() { k.conn.finish(k, nil) }

// answer makes Invoke return r. It returns false if the call was settled before.
func (k *call) answer(r *Reply) bool {
	k.once.Do(func() {
		k.reply = r
		close(k.replied)
	})
	return k.reply == r
}

// finish ends the call. With a nil err the answer is whole, else broken off.
func (k *call) finish(err error) {
	k.mu.Lock()
	before, stop, finished := k.state, k.stop, k.finished
	k.state = callEnded
	k.mu.Unlock()
	if before == callEnded {
		return
	}
	if stop != nil {
		stop()
	}
	k.onward.end()
	end := err
	if end == nil {
		end = wire.ErrOver
	} else {
		k.settle(err)
	}
	k.out.End(end)
	if finished != nil {
		finished()
	}
}

// settle makes Invoke return err or, after Invoke, a Read of the body.
func (k *call) settle(err error) {
	first := false
	k.once.Do(func() {
		first = true
		k.err = err
		close(k.replied)
	})
	if !first && k.reply != nil {
		k.in.Fail(err)
	}
}

// cancel gives the call up with err and sends CANCEL.
func (k *call) cancel(err error) {
	if k.advance(callGivenUp) != callRuns {
		return
	}
	k.settle(err)
	k.onward.end()
	if k.reply != nil {
		k.in.Abort(err)
	}
	k.out.End(err)
	k.conn.spawn(func() {
		_ = k.conn.w.Send(context.Background(), wire.KindCancel, 0, k.id, nil, nil) // fails only with the channel
	})
}

// replyBody is Reply.Body. A Close before the end cancels the call.
type replyBody struct{ k *call }

func (b replyBody) Read(p []byte) (int, error) { return b.k.in.Read(p) }

func (b replyBody) Close() error {
	b.k.cancel(wire.ErrClosedBody)
	b.k.mu.Lock()
	stop := b.k.stop
	b.k.mu.Unlock()
	if stop != nil {
		stop()
	}
	b.k.in.Abort(wire.ErrClosedBody)
	return nil
}
