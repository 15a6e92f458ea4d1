package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"

	"github.com/fre-engine/fre/api"
)

// RunIO holds the input and output of a command. Closing Kill ends the command's sandbox, and
// Run returns the exit. A nil Stdin is empty.
type RunIO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Kill           <-chan struct{}
}

// Run starts a command in a new sandbox and returns the exit. The end of ctx ends the sandbox
// too, and Run returns without waiting for the sandbox. A Read of Stdin that is blocked when the
// command ends continues in the background, because a Read cannot be interrupted.
func (g Sandboxes) Run(ctx context.Context, r api.RunRequest, s RunIO) (api.Exit, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return api.Exit{}, err
	}
	return g.c.stream(ctx, "/v1/run", body, s, AttachOptions{})
}

// AttachOptions adjust Attach.
type AttachOptions struct {
	Joined  func() error            // called once the attachment receives all output; an error ends the attachment
	Size    func() api.TerminalSize // size of the client's terminal; nil: no terminal
	Resized <-chan os.Signal        // receives a value when Size may have changed
}

// Attach attaches to a running container, or to the container's next run, and returns the exit.
// A nil Stdin leaves the container's input to other attachments. If Stdin ends with
// api.ErrDetached, or ctx ends, Attach returns that error and the container continues. Attach
// does not support Kill.
func (g Containers) Attach(ctx context.Context, ref string, s RunIO, o AttachOptions) (api.Exit, error) {
	q := url.Values{"stdin": {strconv.FormatBool(s.Stdin != nil)}}
	if o.Size != nil {
		size := o.Size()
		q.Set("rows", strconv.Itoa(int(size.Rows)))
		q.Set("columns", strconv.Itoa(int(size.Columns)))
	}
	return g.c.stream(ctx, "/v1/containers/"+url.PathEscape(ref)+"/attach?"+q.Encode(), nil, s, o)
}

// stream upgrades a request and exchanges frames on the connection.
func (c *Client) stream(ctx context.Context, path string, body []byte, s RunIO, o AttachOptions) (api.Exit, error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	conn, err := c.dial(ctx)
	if err != nil {
		return api.Exit{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	in, err := c.upgrade(ctx, conn, path, body)
	if err != nil {
		return api.Exit{}, orCause(ctx, err)
	}

	if o.Joined != nil {
		if err := o.Joined(); err != nil {
			return api.Exit{}, err
		}
	}
	run := &runner{conn: conn, leave: leave, window: make(chan struct{}, api.StdinWindow), done: make(chan struct{})}
	for range api.StdinWindow {
		run.window <- struct{}{}
	}
	defer close(run.done)
	go run.input(s.Stdin)
	go func() {
		for kill := s.Kill; ; {
			select { // run.output notices a broken connection
			case <-kill:
				_ = run.send(api.FrameKill, nil)
				kill = nil
			case <-o.Resized:
				_ = run.send(api.FrameResize, o.Size().Payload())
			case <-run.done:
				return
			}
		}
	}()
	exit, err := run.output(in, s)
	if err != nil {
		return api.Exit{}, orCause(ctx, err)
	}
	return exit, nil
}

// upgrade sends an upgrade request and returns the reader of the frames.
func (c *Client) upgrade(ctx context.Context, conn net.Conn, path string, body []byte) (*bufio.Reader, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", api.UpgradeProtocol)
	c.authorize(req)
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("ask for a stream: %w", err)
	}
	in := bufio.NewReaderSize(conn, api.MaxFrame)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, fmt.Errorf("ask for a stream: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return in, nil
}

type runner struct {
	conn   net.Conn
	leave  context.CancelCauseFunc
	window chan struct{} // one token per Stdin frame that the client may send
	done   chan struct{}

	mu  sync.Mutex // guards writes to conn
	out []byte
}

func (r *runner) send(kind api.FrameKind, payload []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out = api.AppendFrame(r.out[:0], kind, payload)
	_, err := r.conn.Write(r.out)
	return err
}

// input sends stdin, and an empty frame at the end.
func (r *runner) input(stdin io.Reader) {
	if stdin == nil {
		stdin = bytes.NewReader(nil)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := stdin.Read(buf)
		detached := errors.Is(err, api.ErrDetached)
		for _, chunk := range [][]byte{buf[:n], nil} {
			if chunk != nil && n == 0 || chunk == nil && (err == nil || detached) {
				continue
			}
			select {
			case <-r.window:
			case <-r.done:
				return
			}
			if r.send(api.FrameStdin, chunk) != nil {
				return // output sees the error too
			}
		}
		if detached {
			r.leave(err)
		}
		if err != nil {
			return
		}
	}
}

// output writes the command's output to s until the command ends.
func (r *runner) output(in io.Reader, s RunIO) (api.Exit, error) {
	buf := make([]byte, api.MaxFrame)
	for {
		kind, payload, err := api.ReadFrame(in, buf)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return api.Exit{}, fmt.Errorf("engine broke off the run: %w", err)
		}
		switch kind {
		case api.FrameStdout:
			_, err = s.Stdout.Write(payload)
		case api.FrameStderr:
			_, err = s.Stderr.Write(payload)
		case api.FrameMore:
			select {
			case r.window <- struct{}{}:
			default:
				err = errors.New("engine sent a malformed stream")
			}
		case api.FrameExit:
			var exit api.Exit
			err = json.Unmarshal(payload, &exit)
			return exit, err
		case api.FrameError:
			failure := new(api.Error)
			if err := json.Unmarshal(payload, failure); err != nil {
				return api.Exit{}, fmt.Errorf("read error of the run: %w", err)
			}
			return api.Exit{}, failure
		case api.FrameStdin, api.FrameKill, api.FrameResize:
			err = errors.New("engine sent a malformed stream")
		}
		if err != nil {
			return api.Exit{}, err
		}
	}
}
