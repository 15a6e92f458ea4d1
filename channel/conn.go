package channel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/function/channel/wire"
)

// Config configures a [Conn]. Every field is optional.
type Config struct {
	// Log gets each log line of the function's handler with the public ID of the invocation, ""
	// for none or for a finished invocation. The reader goroutine calls Log, so that Log
	// must not block.
	Log func(invocation, level, message string)

	// LogPace, if set, gets the payload size of each LOG frame before it is decoded. LogPace
	// decides whether to drop the frame and, if so, how long the Conn then stops reading from the
	// function. It must not block.
	LogPace func(bytes int) (drop bool, wait time.Duration)

	// Parked means that the bootstrap was started without a handler: it sends PARKED and waits
	// for [Conn.Load].
	Parked bool

	// Files, if set, opens the directory in which the function leaves files for its answers
	// (FILE). The Conn calls it once, for the first such answer, and closes the directory at its
	// own end.
	Files func() (*os.File, error)

	// Memory, if set, allocates the memory for the unread part of an answer's body, except the
	// first 4 KiB. It must not block. If it fails, Invoke or a Read of the body returns its
	// error. Without Memory the Conn uses Go's heap.
	Memory func(size int) (Buffer, error)

	// Hold, if set, decides whether an answer's file may keep memory from being freed until the
	// answer's body is closed; the Conn calls release then. If Hold fails, Invoke returns its
	// error. If full is true, the event keeps its slot in the function until the body is closed
	// or Invoke's context ends. Hold must not block.
	Hold func(Held) (release func(), full bool, err error)
}

// Conn is the engine's end of an instance's channel. The methods are safe for concurrent use.
type Conn struct {
	conn *net.UnixConn
	cfg  Config
	log  func(invocation, level, message string)
	pace func(bytes int) (drop bool, wait time.Duration)
	dir  *os.File // from Config.Files; for the reader goroutine only
	w    *wire.Writer
	done chan struct{}  // closed when the channel is over
	wg   sync.WaitGroup // the reader, senders of bodies, cancellations

	// For the reader goroutine only: the last answer's metadata, mostly the same as the next
	// answer's.
	usual     []byte
	usualMeta wire.ResponseMeta
	kept      keptFiles

	mu       sync.Mutex
	calls    map[uint64]*call
	lastID   uint64
	onwards  map[uint64]*onward // calls that the function makes
	lastCall uint64
	err      error // why the channel is over

	isReady chan struct{} // closed by READY
	ready   Ready         // valid after isReady

	ending chan struct{} // closed by STOP

	isParked chan struct{} // closed by PARKED; nil unless Config.Parked
	loaded   atomic.Bool   // LOAD was sent
}

// NewConn takes ownership of conn and reads from it until the channel ends or Close is called.
func NewConn(conn *net.UnixConn, cfg Config) *Conn {
	c := &Conn{
		conn: conn, cfg: cfg, log: cfg.Log, pace: cfg.LogPace, done: make(chan struct{}),
		calls: map[uint64]*call{}, onwards: map[uint64]*onward{}, isReady: make(chan struct{}), ending: make(chan struct{}),
	}
	if cfg.Parked {
		c.isParked = make(chan struct{})
	}
	if c.log == nil {
		c.log = func(string, string, string) {}
	}
	if c.pace == nil {
		c.pace = func(int) (bool, time.Duration) { return false, 0 }
	}
	w, err := wire.NewWriter(conn, c.done, &c.wg, c.fail)
	if c.w = w; err != nil {
		c.fail(err)
		return c
	}
	c.wg.Go(func() { c.fail(c.read()) })
	return c
}

// Done returns a channel, closed when the Conn is over. Err then returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Ending returns a channel, closed when the function takes no more events. Invoke then
// returns [ErrUnserved], and another instance has to take the event. Done follows.
func (c *Conn) Ending() <-chan struct{} { return c.ending }

// Err returns nil until the channel is over, then an [ErrClosed], an [ErrProtocol], or the
// *[Failure] to load the handler.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Ready waits until the function has loaded its handler. It returns a *[Failure] if the load
// failed, and ErrClosed if the function ended before.
func (c *Conn) Ready(ctx context.Context) (Ready, error) {
	select {
	case <-c.isReady:
		return c.ready, nil
	case <-c.done:
		return Ready{}, c.Err()
	case <-ctx.Done():
		return Ready{}, context.Cause(ctx)
	}
}

// Parked waits until a bootstrap started with Config.Parked is ready for [Conn.Load]. Its errors
// are those of [Conn.Ready].
func (c *Conn) Parked(ctx context.Context) error {
	select {
	case <-c.isParked:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Load turns a parked bootstrap into the function l; [Conn.Ready] follows. It returns
// [ErrMetaTooLarge], and sends nothing, if l exceeds MaxMeta.
func (c *Conn) Load(ctx context.Context, l *Load) error {
	p, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("load %s: %w", l.Handler, err)
	}
	if len(p) > MaxMeta {
		return fmt.Errorf("load %s: %w: %d bytes of environment, at most %d", l.Handler, ErrMetaTooLarge, len(p), MaxMeta)
	}
	c.loaded.Store(true)
	return c.w.Send(ctx, wire.KindLoad, 0, 0, nil, p)
}

// Stop asks the function to finish its events and exit. Done follows.
func (c *Conn) Stop() error {
	return c.w.Send(context.Background(), wire.KindStop, 0, 0, nil, nil)
}

// Close ends the channel and waits for its goroutines, including those that read a request body.
// The owner of the body must make its Read return.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

// fail ends the channel. The first reason stays.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls := c.calls
	c.calls = nil
	close(c.done)
	c.mu.Unlock()
	_ = c.conn.Close() // no loss: the stream has no meaning any more
	err = c.unserved(err)
	for _, k := range calls {
		k.finish(err)
	}
}

// unserved returns the error of an event that has no answer when the channel ends. A function
// that sent STOP has answered every event taken before: the remaining events are ErrUnserved.
func (c *Conn) unserved(err error) error {
	if isClosed(c.ending) && errors.Is(err, ErrClosed) {
		return ErrUnserved
	}
	return err
}

// spawn runs f in a goroutine that Close waits for, unless the channel is over.
func (c *Conn) spawn(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.wg.Go(f)
	}
}

func (c *Conn) read() error {
	r, err := wire.NewReader(c.conn)
	if err != nil {
		return err
	}
	defer func() {
		r.Close()
		if c.dir != nil {
			_ = c.dir.Close()
		}
		_ = c.kept.close()
	}()
	for {
		h, p, err := r.Next()
		if err == nil {
			var file *os.File
			if h.FDs > 0 {
				file, err = takeFile(r, h.Kind)
			}
			if err == nil {
				err = c.frame(h, p, file)
			}
		}
		var failure *Failure
		switch {
		case err == nil:
		case errors.Is(err, ErrProtocol), errors.As(err, &failure):
			return err
		case errors.Is(err, io.EOF):
			return ErrClosed
		default:
			return fmt.Errorf("%w: read: %w", ErrClosed, err)
		}
	}
}

// frame handles one frame from the function. It owns file, the file of FD, PIPE or CALLFILE.
func (c *Conn) frame(h wire.Header, p []byte, file *os.File) (err error) {
	if h.ID == 0 || h.Kind == wire.KindLog {
		return c.frameChannel(h, p) // without a file
	}
	switch {
	case h.Kind == wire.KindInvoke:
		err = fmt.Errorf("%w: frame kind 0x%02x from a function", ErrProtocol, uint8(h.Kind))
	case h.Kind != wire.KindCancel && !isClosed(c.isReady):
		err = fmt.Errorf("%w: frame kind 0x%02x before READY", ErrProtocol, uint8(h.Kind))
	case h.ID >= FirstCall:
		return c.frameOnward(h, p, file)
	case h.Kind == wire.KindCancel:
		err = fmt.Errorf("%w: CANCEL by the function", ErrProtocol)
	}
	var k *call
	if err == nil {
		k, err = c.inFlight(h)
	}
	if k == nil {
		return closing(file, err)
	}
	return k.frame(h, p, file)
}

// frameChannel handles a frame about the channel, or a log line.
func (c *Conn) frameChannel(h wire.Header, p []byte) error {
	switch h.Kind {
	case wire.KindParked:
		return c.frameParked(p)
	case wire.KindReady:
		return c.frameReady(p)
	case wire.KindFailed:
		return c.frameFailed(p)
	case wire.KindLog:
		return c.frameLog(h.ID, p)
	case wire.KindStop:
		return c.frameStop(p)
	default:
		return fmt.Errorf("%w: frame kind 0x%02x from a function", ErrProtocol, uint8(h.Kind))
	}
}

// inFlight returns the invocation of a frame; nil without an error if the frame crossed the end of
// the answer.
func (c *Conn) inFlight(h wire.Header) (*call, error) {
	c.mu.Lock()
	k, last := c.calls[h.ID], c.lastID
	c.mu.Unlock()
	if k == nil && (h.Kind != wire.KindWindow || h.ID > last) {
		return nil, fmt.Errorf("%w: frame kind 0x%02x for invocation %d, not in flight", ErrProtocol, uint8(h.Kind), h.ID)
	}
	return k, nil
}

// frameFailed handles FAILED. It returns the failure.
func (c *Conn) frameFailed(p []byte) error {
	if isClosed(c.isReady) {
		return fmt.Errorf("%w: FAILED after READY", ErrProtocol)
	}
	f := &Failure{Load: true}
	if err := wire.Unmarshal(p, f); err != nil {
		return err
	}
	return f
}

func (c *Conn) frameReady(p []byte) error {
	var r Ready
	if err := wire.Unmarshal(p, &r); err != nil {
		return err
	}
	if r.Protocol != 1 {
		return fmt.Errorf("%w: version %d, want 1", ErrProtocol, r.Protocol)
	}
	if c.isParked != nil && !c.loaded.Load() {
		return fmt.Errorf("%w: READY before LOAD", ErrProtocol)
	}
	if isClosed(c.isReady) {
		return fmt.Errorf("%w: READY twice", ErrProtocol)
	}
	c.ready = r
	close(c.isReady) // only the reader closes it
	return nil
}

// frameStop records that the function takes no more events.
func (c *Conn) frameStop(p []byte) error {
	if len(p) != 0 || !isClosed(c.isReady) {
		return fmt.Errorf("%w: STOP before READY, or with %d bytes", ErrProtocol, len(p))
	}
	if !isClosed(c.ending) {
		close(c.ending) // only the reader closes it
	}
	return nil
}

func (c *Conn) frameParked(p []byte) error {
	if len(p) != 0 {
		return fmt.Errorf("%w: PARKED with %d bytes", ErrProtocol, len(p))
	}
	if c.isParked == nil || isClosed(c.isParked) {
		return fmt.Errorf("%w: PARKED from a bootstrap that was not parked", ErrProtocol)
	}
	close(c.isParked)
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (c *Conn) frameLog(id uint64, p []byte) error {
	c.mu.Lock()
	last := c.lastID
	name := ""
	if k := c.calls[id]; k != nil {
		name = k.name
	}
	c.mu.Unlock()
	if id > last {
		return fmt.Errorf("%w: LOG for the unknown invocation %d", ErrProtocol, id)
	}
	if drop, wait := c.pace(len(p)); drop {
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-c.done:
			}
		}
		return nil
	}
	var m struct{ Level, Message string }
	if err := wire.Unmarshal(p, &m); err != nil {
		return err
	}
	c.log(name, m.Level, m.Message)
	return nil
}

// finish removes k from the invocations in flight: the function has sent its last frame for k.
func (c *Conn) finish(k *call, err error) {
	c.mu.Lock()
	delete(c.calls, k.id)
	c.mu.Unlock()
	k.finish(err)
}
