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

	"golang.org/x/sys/unix"
)

// Reply is a function's answer. Body must be closed; its Read returns a
// *[Failure] when the function breaks the body off, the cause of Invoke's
// context when that ends, ErrClosed when the channel does.
type Reply struct {
	Status  int           // 200 to 599, or 101: see Invocation.Upgrade
	Headers [][2]string   // valid in HTTP, in the function's order; other answers have the same list
	Length  int64         // of the body, -1 while it is still coming
	Body    io.ReadCloser // for one goroutine

	// Bytes, if not nil, is all of a short body, too. Nobody changes it any more.
	Bytes []byte

	// File, if not nil, has the body too: Length bytes from Offset on, which nobody
	// changes any more. It is closed with Body, and by that alone.
	File   *os.File
	Offset int64

	// Lend is nil unless the event said Socket, and for a body of known length. Once Body's Read has returned
	// ErrSocketWanted, Lend gives the function the client's socket, waits until it is
	// given back, and returns how many bytes of the body it has written there, each piece
	// as a chunk (RFC 9112 section 7.1): Body is over then. Where conn is nil the function
	// hears that it gets none, and Body goes on.
	Lend func(conn syscall.RawConn) (n int64, err error)
}

// call is one invocation in flight.
type call struct {
	conn    *Conn
	id      uint64
	name    string // Invocation.ID
	ctx     context.Context
	stop    func() bool   // undoes the watch over ctx
	replied chan struct{} // closed once reply or err is there
	once    sync.Once     // closes replied
	reply   *Reply        // nil, or whole
	whole   Reply
	err     error
	upgrade bool // the function may answer 101
	socket  bool // it may ask for the client's socket
	headed  bool // RESPONSE has come; the reader's alone
	in      inbox
	out     credit
	caller  Caller
	onward  onwards

	mu       sync.Mutex
	over     bool   // nothing more will come, or nobody wants it: CANCEL is not sent
	ended    bool   // nothing more will come
	finished func() // Invocation.Finished, nil for none or where the body has it
}

// Invoke sends one event and returns the function's answer, whose body may
// still be coming. ctx covers both: when it ends the function is told, and
// Invoke and reads of the body return its cause at once.
//
// Up to 32 KiB of body are read before the event is sent, on the caller's
// goroutine, unless m.Flows; a longer body is read by a goroutine that ends with the
// invocation, once the Read it is in returns. A body that fails cancels the
// invocation with its error.
//
// Other errors are *[Failure] for an exception in the function,
// [ErrMetaTooLarge], and what [Conn.Err] returns.
func (c *Conn) Invoke(ctx context.Context, m *Invocation, body io.Reader) (*Reply, error) {
	k := &call{conn: c, name: m.ID, ctx: ctx, finished: m.Finished, socket: m.Socket, caller: m.Caller, replied: make(chan struct{})}
	k.out.init()
	m, body, err := c.offer(k, m, body)
	if err != nil {
		c.finish(k, err)
		return nil, err
	}
	rest, err := c.start(k, m, body)
	if err != nil {
		c.finish(k, err)
		k.settle(err)
		if k.reply != nil { // by a function that has guessed the event
			_ = k.reply.Body.Close()
		}
		return nil, err
	}
	if rest {
		c.spawn(func() { k.out.send(ctx, c.w, k.id, body, k.cancel) })
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

// watch has the call end with its context, unless it is over.
func (k *call) watch() {
	k.mu.Lock()
	over := k.over
	k.mu.Unlock()
	if over {
		return
	}
	stop := context.AfterFunc(k.ctx, func() { k.cancel(context.Cause(k.ctx)) })
	k.mu.Lock()
	k.stop = stop
	over = k.over
	k.mu.Unlock()
	if over {
		stop()
	}
}

// offer asks the function for another protocol where m does and the function knows
// such a thing.
func (c *Conn) offer(k *call, m *Invocation, body io.Reader) (*Invocation, io.Reader, error) {
	if m.Upgrade == "" {
		return m, body, nil
	}
	ready, err := c.Ready(k.ctx)
	if err != nil {
		return m, nil, err
	}
	told := *m
	if !ready.Upgrades {
		told.Upgrade = ""
		return &told, nil, nil
	}
	k.upgrade = true
	told.DeadlineMS = 0
	return &told, body, nil
}

// start sends INVOKE; rest says that more of the body may follow.
func (c *Conn) start(k *call, m *Invocation, body io.Reader) (rest bool, err error) {
	buf := scratches.Get().(*scratch)
	defer scratches.Put(buf)
	meta := m.append(buf.meta[:0])
	if cap(meta) <= inlineBody {
		buf.meta = meta
	}
	if len(meta) > MaxMeta {
		return false, fmt.Errorf("invoke %s: %w: %d bytes, at most %d", m.Function, ErrMetaTooLarge, len(meta), MaxMeta)
	}
	var first []byte
	flags := uint8(0)
	if k.upgrade || body != nil && m.Flows {
		rest, flags = true, flagMore
	} else if body != nil {
		n, err := io.ReadFull(body, buf.first[:])
		switch err {
		case nil:
			rest, flags = true, flagMore
		case io.EOF, io.ErrUnexpectedEOF:
		default:
			if k.ctx.Err() != nil { // it is why the Read was broken off
				return false, context.Cause(k.ctx)
			}
			return false, fmt.Errorf("invoke %s: read body: %w", m.Function, err)
		}
		first = buf.first[:n]
	}
	if k.ctx.Err() != nil {
		return false, context.Cause(k.ctx)
	}
	c.mu.Lock()
	if c.err != nil || isClosed(c.ending) {
		defer c.mu.Unlock()
		if c.err != nil && !errors.Is(c.err, ErrClosed) {
			return false, c.err
		}
		return false, fmt.Errorf("%w: %w", ErrUnserved, cmp.Or(c.err, ErrClosed))
	}
	c.lastID++
	k.id = c.lastID
	c.calls[k.id] = k
	c.mu.Unlock()
	err = c.w.send(k.ctx, kindInvoke, flags, k.id, meta, first)
	if errors.Is(err, ErrClosed) {
		// The reader may not have come to the STOP that precedes the end.
		select {
		case <-c.done:
			err = c.unserved(err)
		case <-k.ctx.Done():
			err = context.Cause(k.ctx)
		}
	}
	return rest, err
}

// scratch is where an INVOKE is made.
type scratch struct {
	meta  []byte
	first [inlineBody + 1]byte // of the body; one byte more than goes along, to see its end
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (k *call) frameResponse(p []byte, more bool) error {
	r, body, err := k.head(p)
	if err != nil {
		return err
	}
	if err := k.in.init(body, more, k, k.conn.cfg.Memory); err != nil {
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
		r.Bytes = k.in.short()
		k.conn.finish(k, nil)
	}
	if !k.answer(r) { // cancelled before
		k.in.abort(k.err)
	}
	return nil
}

// framePipe takes the pipe through which the rest of the answer's body comes or, without
// one, how many bytes that were: the end. It owns pipe, which is nil where it could not be
// opened.
func (k *call) framePipe(h header, p []byte, pipe *os.File) error {
	switch {
	case !k.headed || h.fds > 0 && len(p) != 0 || h.fds == 0 && len(p) != 8:
		err := fmt.Errorf("%w: a pipe before RESPONSE, or with %d bytes", ErrProtocol, len(p))
		if pipe != nil {
			err = errors.Join(err, pipe.Close())
		}
		return err
	case h.fds == 0:
		if err := k.in.close(binary.LittleEndian.Uint64(p)); err != nil {
			return err
		}
		k.out.end(errOver)
		return nil
	}
	err := k.in.open(pipe)
	if err == nil && pipe == nil {
		k.cancel(errNoPipe)
	}
	return err
}

// frameSocket takes the function's wish for the client's socket or, once it has had that,
// how many bytes of the body it has written there: the end.
func (k *call) frameSocket(p []byte) error {
	switch {
	case !k.headed || !k.socket:
		return fmt.Errorf("%w: a socket before RESPONSE, or where there is none to be had", ErrProtocol)
	case len(p) == 0:
		return k.in.want()
	case len(p) != 8 || !k.in.isLent():
		return fmt.Errorf("%w: %d bytes about a socket, which is not lent", ErrProtocol, len(p))
	}
	k.conn.finish(k, nil) // before anybody can see the end: the next event finds the place free
	k.in.giveBack(binary.LittleEndian.Uint64(p))
	return nil
}

// lend is Reply.Lend.
func (k *call) lend(conn syscall.RawConn) (int64, error) {
	if err := k.in.lend(conn != nil); err != nil {
		return 0, err
	}
	if conn != nil {
		err := k.conn.w.sendRaw(k.ctx, kindSocket, k.id, nil, nil, conn)
		if err == nil {
			return k.in.awaitReturn()
		}
		if !errors.Is(err, unix.ETOOMANYREFS) {
			return 0, err
		}
		if err := k.in.lend(false); err != nil {
			return 0, err
		}
	}
	return 0, k.conn.w.send(k.ctx, kindSocket, 0, k.id, nil, nil)
}

// errNoPipe says that the engine could not open an answer's pipe: it has too many files.
var errNoPipe = errors.New("open the answer's pipe: too many files, or no memory")

// head is the answer that RESPONSE, FD and FILE begin with, and what follows it.
func (k *call) head(p []byte) (*Reply, []byte, error) {
	if k.headed {
		return nil, nil, fmt.Errorf("%w: RESPONSE twice", ErrProtocol)
	}
	k.headed = true
	meta, body, err := split(p)
	if err != nil {
		return nil, nil, err
	}
	m, err := k.conn.responseMeta(meta, k.upgrade)
	if err != nil {
		return nil, nil, err
	}
	k.whole = Reply{Status: m.status, Headers: m.headers, Length: -1}
	return &k.whole, body, nil
}

// maxUsual is the longest metadata, in bytes, that the next answer's is compared with.
const maxUsual = 1 << 10

// responseMeta reads the metadata of an answer.
func (c *Conn) responseMeta(meta []byte, upgrade bool) (m responseMeta, err error) {
	if len(c.usual) > 0 && bytes.Equal(meta, c.usual) {
		return c.usualMeta, nil
	}
	if err := m.parse(meta); err != nil {
		return m, err
	}
	if err := m.check(upgrade); err != nil {
		return m, err
	}
	if len(meta) <= maxUsual && m.status != 101 {
		c.usual, c.usualMeta = append(c.usual[:0], meta...), m
	}
	return m, nil
}

// grant lets the function send more of the answer's body.
func (k *call) grant(n int) { k.conn.w.grant(k.ctx, k.id, n) }

// taken frees the function's place: nobody wants anything more that it has in its pipe.
func (k *call) taken() { k.conn.finish(k, nil) }

// answer makes Invoke return r; false if it has returned before.
func (k *call) answer(r *Reply) bool {
	k.once.Do(func() {
		k.reply = r
		close(k.replied)
	})
	return k.reply == r
}

// frameFile takes an answer whose body is in a file: the one given, one that the function
// left in its directory, or one that is kept. It owns file.
func (k *call) frameFile(kind kind, p []byte, file *os.File) error {
	r, body, err := k.head(p)
	var m fileMeta
	if err == nil {
		if err = m.parse(body); err == nil {
			err = m.check(kind)
		}
	}
	if err != nil {
		return closing(file, err)
	}
	if kind == kindFile {
		if file, err = k.conn.open(m.Name); err != nil {
			if errors.Is(err, ErrProtocol) {
				return err
			}
			k.conn.finish(k, err)
			return nil
		}
	}
	f, err := k.conn.answerFile(file, &m, kind == kindFile)
	if err != nil {
		return err
	}
	b := &fileBody{k: k, file: f, off: m.Offset, left: m.Length}
	if k.conn.cfg.Hold != nil {
		var full bool
		if b.release, full, err = k.conn.cfg.Hold(f.held); err != nil {
			k.conn.finish(k, err)
			return f.close()
		}
		if full {
			k.keepPlace(b)
		}
	}
	r.Body, r.Length = b, m.Length
	if f.immutable {
		r.File, r.Offset = f.File, m.Offset
	}
	k.conn.finish(k, nil)
	if !k.answer(r) { // cancelled before
		return b.Close()
	}
	return nil
}

// keepPlace has the function's place taken until b is closed, or the event over, unless it
// is free already.
func (k *call) keepPlace(b *fileBody) {
	k.mu.Lock()
	finished := k.finished
	if k.ended { // who ended it has called that, or is about to
		finished = nil
	}
	if finished != nil {
		k.finished = nil
	}
	k.mu.Unlock()
	if finished != nil {
		b.finished = sync.OnceFunc(finished)
		b.stop = context.AfterFunc(k.ctx, b.finished)
	}
}

// closing closes a file, if it is not nil, that err makes useless.
func closing(file *os.File, err error) error {
	if file == nil {
		return err
	}
	return errors.Join(err, file.Close())
}

// answerFile is the file of an answer, which is one more user of it. It owns file, which is
// nil for one that is kept. given is what inspect wants to know.
func (c *Conn) answerFile(file *os.File, m *fileMeta, given bool) (*answerFile, error) {
	if file == nil {
		f, err := c.kept.find(m)
		if err == nil {
			f.users.Add(1)
		}
		return f, err
	}
	in, err := inspect(file, m, given)
	if err != nil {
		return nil, closing(file, err)
	}
	f := &answerFile{File: file, inspected: in}
	f.users.Store(1)
	if m.Kept != 0 {
		if err := c.kept.put(m.Kept, f); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

// open opens a file that the function left for its answer.
func (c *Conn) open(name string) (*os.File, error) {
	if c.cfg.Files == nil {
		return nil, fmt.Errorf("%w: FILE where there is no directory for files", ErrProtocol)
	}
	if c.dir == nil {
		dir, err := c.cfg.Files()
		if err != nil {
			return nil, err
		}
		c.dir = dir
	}
	return openFile(c.dir, name)
}

// finish ends the call: with err nil its answer is whole, else broken off.
func (k *call) finish(err error) {
	k.mu.Lock()
	ended, stop, finished := k.ended, k.stop, k.finished
	k.over, k.ended = true, true
	k.mu.Unlock()
	if ended {
		return
	}
	if stop != nil {
		stop()
	}
	k.onward.end()
	end := err
	if end == nil {
		end = errOver
	} else {
		k.settle(err)
	}
	k.out.end(end)
	if finished != nil {
		finished()
	}
}

var errOver = errors.New("invocation over")

// settle makes Invoke, or a Read of the body, return err.
func (k *call) settle(err error) {
	first := false
	k.once.Do(func() {
		first = true
		k.err = err
		close(k.replied)
	})
	if !first && k.reply != nil {
		k.in.fail(err)
	}
}

// cancel gives the call up with err and tells the function.
func (k *call) cancel(err error) {
	k.mu.Lock()
	over := k.over
	k.over = true
	k.mu.Unlock()
	if over {
		return
	}
	k.settle(err)
	k.onward.end()
	if k.reply != nil {
		k.in.abort(err)
	}
	k.out.end(err)
	k.conn.spawn(func() {
		_ = k.conn.w.send(context.Background(), kindCancel, 0, k.id, nil, nil) // fails with the channel alone
	})
}

var errClosedBody = errors.New("read of a closed body")

// replyBody is what Reply.Body is: Close before the end cancels.
type replyBody struct{ k *call }

func (b replyBody) Read(p []byte) (int, error) { return b.k.in.Read(p) }

func (b replyBody) Close() error {
	b.k.cancel(errClosedBody)
	b.k.mu.Lock()
	stop := b.k.stop
	b.k.mu.Unlock()
	if stop != nil {
		stop()
	}
	b.k.in.abort(errClosedBody)
	return nil
}
