package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/failure"
)

// runRoutes are the routes with a command's input and output in frames.
type runRoutes struct {
	engine Engine
}

func (s *runRoutes) routes() []route {
	return []route{
		{"POST", "/v1/run", s.run},
		{"POST", "/v1/containers/{ref}/attach", s.attach},
	}
}

// run answers POST /v1/run. After the upgrade, frames carry the command's input and output (see
// api.UpgradeProtocol).
func (s *runRoutes) run(w http.ResponseWriter, r *http.Request) error {
	if err := wantUpgrade(w, r); err != nil {
		return err
	}
	var req api.RunRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if req.Image == "" || len(req.Args) == 0 {
		return badRequest("image and args are needed")
	}
	if _, err := s.engine.Image(req.Image); err != nil { // check early, before the upgrade rules out a status
		return err
	}
	p, err := openPipes()
	if err != nil {
		return err
	}
	defer p.closeChild()
	defer p.closeOurs()
	conn, buffered, err := upgrade(w)
	if err != nil {
		return err
	}
	defer conn.Close()

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	run := &session{conn: conn, pipes: p, cancel: cancel, stdin: make(chan []byte, api.StdinWindow)}
	var input, output sync.WaitGroup
	input.Go(func() { run.read(buffered.Reader) })
	input.Go(run.feed)
	output.Go(func() { run.copy(api.FrameStdout, p.stdout.ours) })
	output.Go(func() { run.copy(api.FrameStderr, p.stderr.ours) })

	result, err := s.engine.Run(ctx, container.RunRequest{
		Image: req.Image, Args: req.Args, Env: req.Env, Tenant: req.Tenant, Trace: req.Trace,
		Stdin: p.stdin.child, Stdout: p.stdout.child, Stderr: p.stderr.child,
	})
	p.closeChild() // the sandbox is gone: our ends read end of file and write EPIPE
	output.Wait()
	run.finish(result, err)
	_ = conn.Close()
	input.Wait()
	return nil
}

// attach answers POST /v1/containers/{ref}/attach?stdin=&rows=&columns= with the frames of run.
// Unlike in run, a Kill or a disconnect only detaches from the container.
func (s *runRoutes) attach(w http.ResponseWriter, r *http.Request) error {
	if err := wantUpgrade(w, r); err != nil {
		return err
	}
	q := queryOf(r)
	stdin, size := q.flag("stdin"), sizeOf(q)
	if q.err != nil {
		return q.err
	}
	ref := r.PathValue("ref")
	ended, err := s.engine.AwaitContainer(ref, container.WaitNextExit)
	if err != nil {
		return err
	}
	p := new(pipes)
	if p.stdin.child, p.stdin.ours, err = os.Pipe(); err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer p.closeChild() // ends the attachment's Read
	defer p.closeOurs()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // read notices a disconnect
	defer cancel()
	run := &session{pipes: p, cancel: cancel, stdin: make(chan []byte, api.StdinWindow)}
	o := container.AttachOptions{Stdout: frameWriter{run, api.FrameStdout}, Stderr: frameWriter{run, api.FrameStderr}}
	if stdin {
		o.Stdin = p.stdin.child
	}
	a, err := s.engine.Attach(ref, o)
	if err != nil {
		return err
	}
	defer a.Close()
	run.resize = a.Resize
	if size != (api.TerminalSize{}) {
		err := a.Resize(size.Rows, size.Columns)
		if errors.Is(err, unix.ENOTTY) {
			err = badRequest("rows, columns: the container has no terminal: leave rows and columns out")
		}
		if err != nil {
			return err
		}
	}
	conn, buffered, err := upgrade(w)
	if err != nil {
		return err
	}
	run.conn = conn
	var input sync.WaitGroup
	input.Go(func() { run.read(buffered.Reader) })
	input.Go(run.feed)

	var result container.RunResult
	if err = a.Serve(ctx); err == nil {
		result, err = exitAfter(ctx, ref, ended)
	}
	if ctx.Err() == nil {
		run.finish(result, err)
	}
	_ = conn.Close()
	p.closeOurs() // makes a blocked Write fail
	input.Wait()
	return nil
}

// exitAfter waits until the container has ended, and returns the exit status of its program.
func exitAfter(ctx context.Context, ref string, ended func(context.Context) (*container.Container, error)) (container.RunResult, error) {
	c, err := ended(ctx)
	if err != nil {
		return container.RunResult{}, err
	}
	if c.Exit == nil {
		return container.RunResult{}, fmt.Errorf("container %q was removed before the start: %w", ref, fs.ErrNotExist)
	}
	return container.RunResult{ExitStatus: *c.Exit}, nil
}

// sizeOf parses rows= and columns=. The result is zero if both are absent.
func sizeOf(q *query) api.TerminalSize {
	if !q.Has("rows") && !q.Has("columns") {
		return api.TerminalSize{}
	}
	side := func(key string) uint16 {
		return uint16(q.number(key, -1, 0, math.MaxUint16, "is not a size of a terminal"))
	}
	return api.TerminalSize{Rows: side("rows"), Columns: side("columns")}
}

// frameWriter sends each write as one frame, of at most api.MaxFrame bytes.
type frameWriter struct {
	to   *session
	kind api.FrameKind
}

func (f frameWriter) Write(p []byte) (int, error) {
	if err := f.to.send(f.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func wantUpgrade(w http.ResponseWriter, r *http.Request) error {
	if strings.EqualFold(r.Header.Get("Upgrade"), api.UpgradeProtocol) {
		return nil
	}
	w.Header().Set("Upgrade", api.UpgradeProtocol)
	return &api.Error{Code: failure.UpgradeRequired, Message: "the route needs the header Upgrade: " + api.UpgradeProtocol}
}

// upgrade takes over the connection for frames. The caller closes the connection. If the 101
// cannot be sent, the reader of the connection notices.
func upgrade(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("upgrade: %w", err)
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+api.UpgradeProtocol+"\r\n\r\n")
	if err != nil {
		_ = conn.Close() // the client has disconnected
	}
	return conn, buffered, nil
}

// session is one run or attachment after the upgrade.
type session struct {
	conn   net.Conn
	pipes  *pipes
	cancel context.CancelFunc               // kills the run's sandbox, or detaches
	stdin  chan []byte                      // from read to feed; an empty slice means end of input
	resize func(rows, columns uint16) error // nil: no terminal

	mu  sync.Mutex // guards writes to conn
	out []byte     // buffer for the current frame
}

func (s *session) send(kind api.FrameKind, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = api.AppendFrame(s.out[:0], kind, payload)
	_, err := s.conn.Write(s.out)
	return err
}

// read reads the client's frames until the connection ends. run and attach always close the
// connection.
func (s *session) read(r io.Reader) {
	defer close(s.stdin)
	defer s.cancel()
	buf := make([]byte, api.MaxFrame)
	for {
		kind, payload, err := api.ReadFrame(r, buf)
		if err != nil {
			return
		}
		switch kind {
		case api.FrameStdin:
			select {
			case s.stdin <- append([]byte(nil), payload...):
			default:
				return // exceeds the window: not our client
			}
		case api.FrameKill:
			s.cancel()
		case api.FrameResize:
			size, err := api.ParseTerminalSize(payload)
			if err != nil || s.resize == nil {
				return
			}
			_ = s.resize(size.Rows, size.Columns) // the attachment may have closed
		case api.FrameStdout, api.FrameStderr, api.FrameExit, api.FrameError, api.FrameMore:
			return
		}
	}
}

// feed writes input to the command. If the command closes its stdin, feed drops further input.
func (s *session) feed() {
	w := s.pipes.stdin.ours
	open := true
	for chunk := range s.stdin {
		if open && len(chunk) > 0 {
			_, err := w.Write(chunk)
			open = err == nil
		}
		if open && len(chunk) == 0 {
			_ = w.Close()
			open = false
		}
		if err := s.send(api.FrameMore, nil); err != nil {
			s.cancel()
		}
	}
}

func (s *session) copy(kind api.FrameKind, r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := s.send(kind, buf[:n]); err != nil {
				s.cancel()
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// finish sends the final frame. A cancelled run reports SIGKILL.
func (s *session) finish(result container.RunResult, err error) {
	exit := exitOf(result.ExitStatus)
	exit.Start = string(result.Start)
	for _, step := range result.Trace {
		exit.Trace = append(exit.Trace, api.TraceStep{Name: step.Name, DoneNanos: int64(step.Done)})
	}
	kind, v := api.FrameExit, any(exit)
	switch {
	case errors.Is(err, context.Canceled):
		v = api.Exit{Code: -1, Signal: int(unix.SIGKILL)}
	case err != nil:
		kind, v = api.FrameError, errorOf(err)
	}
	payload, err := json.Marshal(v)
	if err != nil || len(payload) > api.MaxFrame {
		kind, payload = api.FrameError, []byte(`{"code":"internal","message":"the command's end cannot be told"}`)
	}
	_ = s.send(kind, payload) // the client may have disconnected
}

// pipe is a pipe with one end for the command and one for the server.
type pipe struct{ child, ours *os.File }

type pipes struct{ stdin, stdout, stderr pipe }

func openPipes() (*pipes, error) {
	p := new(pipes)
	var err error
	for _, open := range []func() error{
		func() error { p.stdin.child, p.stdin.ours, err = os.Pipe(); return err },
		func() error { p.stdout.ours, p.stdout.child, err = os.Pipe(); return err },
		func() error { p.stderr.ours, p.stderr.child, err = os.Pipe(); return err },
	} {
		if err := open(); err != nil {
			p.closeChild()
			p.closeOurs()
			return nil, fmt.Errorf("make pipe: %w", err)
		}
	}
	for _, f := range []*os.File{p.stdin.child, p.stdout.child, p.stderr.child} {
		// Programs expect blocking descriptors.
		if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
			p.closeChild()
			p.closeOurs()
			return nil, fmt.Errorf("make pipe: %w", err)
		}
	}
	return p, nil
}

// closeChild and closeOurs may be called twice, because closing a closed file is harmless.
func (p *pipes) closeChild() {
	_ = p.stdin.child.Close()
	_ = p.stdout.child.Close()
	_ = p.stderr.child.Close()
}

func (p *pipes) closeOurs() {
	_ = p.stdin.ours.Close()
	_ = p.stdout.ours.Close()
	_ = p.stderr.ours.Close()
}
