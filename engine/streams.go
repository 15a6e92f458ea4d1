package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// streams carry what a container reads and prints, in one run, to and from
// whoever is attached. They are there before the run begins, so that who attaches
// first misses nothing.
//
//	pipes or terminal ──▶ a pump each ──▶ log
//	                                 └──▶ attachment ──▶ its writers
//	attachment's reader ──▶ stdin
//
// A pump waits for the slowest attachment, and with it the program: nothing is
// lost and nothing piles up.
type streams struct {
	mu       sync.Mutex
	attached []*Attachment
	terminal *os.File        // the engine's end; nil before a run and without one
	size     terminalSize    // the last one an attachment has told
	stdin    *os.File        // where stdin is written to; nil without
	once     bool            // stdin ends with the first attachment's
	life     context.Context // once it ends, nobody is waited for
	begun    chan struct{}   // closed once stdin is what it will be
	ended    chan struct{}   // closed once there is no more output
}

// terminalSize is in characters; zero where nobody has told it.
type terminalSize struct{ rows, columns uint16 }

// streamsBehind is how many pieces of output, 16 KiB at most, an attachment may
// lag behind the program.
const streamsBehind = 16

// piece is some output of one stream.
type piece struct {
	stderr bool
	bytes  []byte
}

func newStreams(life context.Context) *streams {
	return &streams{life: life, begun: make(chan struct{}), ended: make(chan struct{})}
}

// AttachOptions say what an attachment carries; nil is nothing.
type AttachOptions struct {
	Stdin          io.Reader // read once the container runs
	Stdout, Stderr io.Writer // with a terminal all goes to Stdout
}

// Attachment is a client of a container's streams.
type Attachment struct {
	c      *container
	s      *streams
	o      AttachOptions
	tty    bool
	pieces chan piece
	gone   chan struct{} // closed when it takes no more
	leave  func()        // closes gone, once
}

// Attach joins the streams of a container that runs, or of its next run: from the
// return on no output is missed. The caller calls Serve, or Close. Errors as of
// [Engine.Container].
func (e *Engine) Attach(ref string, o AttachOptions) (*Attachment, error) {
	c, err := e.containers.find(ref)
	if err != nil {
		return nil, err
	}
	a := &Attachment{c: c, o: o, pieces: make(chan piece, streamsBehind), gone: make(chan struct{})}
	a.leave = sync.OnceFunc(func() { close(a.gone) })
	c.mu.Lock()
	a.s, a.tty = c.streams, c.c.Config.TTY
	a.s.mu.Lock()
	a.s.attached = append(a.s.attached, a)
	a.s.mu.Unlock()
	c.mu.Unlock()
	e.Changes().Add(c.change(store.ActionAttach))
	return a, nil
}

// Detached notes that the client has typed the keys that leave a container.
func (a *Attachment) Detached() { a.c.e.Changes().Add(a.c.change(store.ActionDetach)) }

// Resize says how large the client's terminal is, in characters: so large the
// container's becomes, from its beginning where the run is still to come. ENOTTY
// where the container has none.
func (a *Attachment) Resize(rows, columns uint16) error {
	if !a.tty {
		return fmt.Errorf("container has no terminal: %w", unix.ENOTTY)
	}
	a.s.mu.Lock()
	a.s.size = terminalSize{rows, columns}
	err, runs := a.s.resizeLocked(), a.s.terminal != nil
	a.s.mu.Unlock()
	if err == nil && runs {
		a.c.resized(rows, columns)
	}
	return err
}

// Close leaves without having served.
func (a *Attachment) Close() {
	a.leave()
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.attached = slices.DeleteFunc(a.s.attached, func(other *Attachment) bool { return other == a })
}

// Serve copies until the run has ended and all its output is written, ctx ends, or
// a writer fails, whose error it returns. Stdin is copied by a goroutine that ends
// once its Read returns: the caller sees to that.
func (a *Attachment) Serve(ctx context.Context) error {
	defer a.Close()
	if a.o.Stdin != nil {
		go a.copyStdin()
	}
	for {
		select {
		case p := <-a.pieces:
			if err := a.write(p); err != nil {
				return err
			}
		case <-a.s.ended: // after the last piece was sent
			for {
				select {
				case p := <-a.pieces:
					if err := a.write(p); err != nil {
						return err
					}
				default:
					return nil
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (a *Attachment) write(p piece) error {
	w := a.o.Stdout
	if p.stderr {
		w = a.o.Stderr
	}
	if w == nil {
		return nil
	}
	if _, err := w.Write(p.bytes); err != nil {
		return fmt.Errorf("write to attached client: %w", err)
	}
	return nil
}

// copyStdin feeds the program. A program that reads no more, or has ended, ends it
// at its next piece.
func (a *Attachment) copyStdin() {
	select {
	case <-a.s.begun:
	case <-a.s.ended:
		return
	case <-a.gone:
		return
	}
	a.s.mu.Lock()
	stdin, once := a.s.stdin, a.s.once
	a.s.mu.Unlock()
	if stdin == nil {
		return
	}
	_, _ = io.Copy(stdin, struct{ io.Reader }{a.o.Stdin})
	if once {
		a.s.closeStdin()
	}
}

// open gives the streams the terminal of the run that is about to start, or nil. It
// stays its owner's, and has that size unless an attachment has told another.
func (s *streams) open(terminal *os.File, size terminalSize) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terminal = terminal
	if s.size == (terminalSize{}) {
		s.size = size
	}
	return s.resizeLocked()
}

func (s *streams) resizeLocked() error {
	if s.terminal == nil || s.size == (terminalSize{}) {
		return nil
	}
	return sandbox.ResizeTerminal(s.terminal, s.size.rows, s.size.columns)
}

// begin gives the streams of a run their stdin, nil without one, which they own.
func (s *streams) begin(stdin *os.File, once bool) {
	s.mu.Lock()
	s.stdin, s.once = stdin, once
	s.mu.Unlock()
	close(s.begun)
}

func (s *streams) closeStdin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stdin != nil {
		_ = s.stdin.Close() // also when it was closed already
	}
}

// end says that there is no more output, once.
func (s *streams) end() {
	s.closeStdin()
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
}

// send hands a copy of some output to all who are attached.
func (s *streams) send(b []byte, stderr bool) {
	s.mu.Lock()
	attached := slices.Clone(s.attached)
	s.mu.Unlock()
	if len(attached) == 0 {
		return
	}
	p := piece{stderr, slices.Clone(b)}
	for _, a := range attached {
		select {
		case a.pieces <- p:
		case <-a.gone:
		case <-s.life.Done():
		}
	}
}

// pump is a stream of a run on its way to the log, which reads it.
type pump struct {
	s      *streams
	from   *os.File
	stderr bool
}

// Read is that of the stream, once those who are attached have what it returns.
func (p *pump) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	if n > 0 {
		p.s.send(b[:n], p.stderr)
	}
	if err != nil && !errors.Is(err, io.EOF) { // EIO is the end of a terminal
		err = io.EOF
	}
	return n, err
}
