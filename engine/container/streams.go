package container

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

// streams connect the standard streams of one run of a container with the attached clients. They
// exist before the run begins: a client attached early misses nothing.
//
//	pipes or terminal ──▶ a pump each ──▶ log
//	                                 └──▶ attachment ──▶ its writers
//	attachment's reader ──▶ stdin
//
// A pump waits for the slowest attachment, and the program waits for the pump: no output is lost
// and none piles up.
type streams struct {
	mu       sync.Mutex
	attached []*Attachment
	terminal *os.File        // the engine's end; nil before a run and without a terminal
	size     terminalSize    // the last size from an attachment
	stdin    *os.File        // the write end; nil without stdin
	once     bool            // stdin ends with the first attachment's stdin
	life     context.Context // once life ends, no attachment is waited for
	begun    chan struct{}   // closed once stdin is set
	ended    chan struct{}   // closed once all output has come
}

// terminalSize is in characters; zero until a client has set the size.
type terminalSize struct{ rows, columns uint16 }

// streamsBehind is how many pieces of output, of at most 16 KiB, an attachment may lag behind the
// program.
const streamsBehind = 16

// piece is some output of one stream.
type piece struct {
	stderr bool
	bytes  []byte
}

func newStreams(life context.Context) *streams {
	return &streams{life: life, begun: make(chan struct{}), ended: make(chan struct{})}
}

// AttachOptions are a client's streams; a nil stream is not connected.
type AttachOptions struct {
	Stdin          io.Reader // read once the container runs
	Stdout, Stderr io.Writer // with a terminal all output goes to Stdout
}

// Attachment is a client of a container's streams.
type Attachment struct {
	c      *container
	s      *streams
	o      AttachOptions
	tty    bool
	pieces chan piece
	gone   chan struct{} // closed when the client takes no more output
	leave  func()        // closes gone, once
}

// Attach joins the streams of a running container, or of the next run. No output after Attach is
// missed. The caller calls Serve or Close. Errors as of [Manager.Container].
func (m *Manager) Attach(ref string, o AttachOptions) (*Attachment, error) {
	c, err := m.containers.find(ref)
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
	m.store.Changes().Add(c.change(store.ActionAttach))
	return a, nil
}

// Detached notes that the client has typed the detach keys.
func (a *Attachment) Detached() { a.c.m.store.Changes().Add(a.c.change(store.ActionDetach)) }

// Resize sets the size of the container's terminal, in characters; before a run, the size of the
// terminal from its start. It returns ENOTTY if the container has no terminal.
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

// Close detaches a client without Serve.
func (a *Attachment) Close() {
	a.leave()
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.attached = slices.DeleteFunc(a.s.attached, func(other *Attachment) bool { return other == a })
}

// Serve copies until the run has ended and all output is written, ctx ends, or a writer fails.
// Errors: the writer's error or the cause of ctx. A goroutine copies stdin and ends once Read
// returns: the caller must end Read.
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

// copyStdin copies to the program's stdin. If the program has ended or closed its stdin, the copy
// ends with the next piece.
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

// open sets the terminal of the run that is about to start, or nil. The caller keeps the
// terminal. size is its size unless an attachment has set another.
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

// begin sets the stdin of the run, or nil. The streams own stdin.
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
		_ = s.stdin.Close() // may be closed already
	}
}

// end says that all output has come. Further calls do nothing.
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

// send gives a copy of some output to every attachment.
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

// pump passes the output of a run to the attachments, and then to the log as its reader.
type pump struct {
	s      *streams
	from   *os.File
	stderr bool
}

// Read reads from the stream and returns once every attachment has the bytes.
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
