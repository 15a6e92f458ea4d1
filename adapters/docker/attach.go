package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
)

// peer is the client's end of a container's streams. conn is set after the attachment is made
// and before the client gets the answer.
type peer struct {
	conn   net.Conn
	in     io.Reader
	detach func() // called once the detach keys end in
}

func (p *peer) Write(b []byte) (int, error) { return p.conn.Write(b) }

// Read reads input for the program.
func (p *peer) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	if errors.Is(err, api.ErrDetached) {
		p.detach()
	}
	return n, err
}

// options returns the streams that the client asks for.
func (p *peer) options(r *http.Request, cfg container.Config) (o container.AttachOptions) {
	mu := &sync.Mutex{}
	if boolOf(r, "stdin") && cfg.OpenStdin {
		o.Stdin = p
	}
	if boolOf(r, "stdout") {
		o.Stdout = frames{mu, p, stdout}
		if cfg.TTY {
			o.Stdout = p
		}
	}
	if boolOf(r, "stderr") {
		o.Stderr = frames{mu, p, stderr}
	}
	return o
}

// begin sends the head of the answer, and reports false if the client has disconnected.
func (p *peer) begin(r *http.Request, tty bool) bool {
	if p.conn.SetDeadline(time.Time{}) != nil {
		return false
	}
	if _, err := io.WriteString(p.conn, upgraded(r, tty)); err != nil {
		return false
	}
	headTaken(p.conn)
	return true
}

// containerAttach answers POST /containers/ID/attach?stdin=&stdout=&stderr=&stream=
// &logs=&detachKeys=. The connection becomes the container's streams: frames, or raw bytes with
// a terminal.
//
//	client → POST … Upgrade: tcp     server → 101 UPGRADED, from here on nothing is missed
//	client → stdin, end of file      server → frames, end of file with the container
func (s *server) containerAttach(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "attach")
	if err != nil {
		return err
	}
	keys, err := api.ParseKeys(r.URL.Query().Get("detachKeys"))
	if err != nil {
		return badRequest("detachKeys: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // the context of a hijacked request ends with the handler
	defer cancel()
	var a *container.Attachment
	p := &peer{detach: func() {
		if a != nil {
			a.Detached()
		}
		cancel()
	}}
	o := p.options(r, c.record.Config)
	if boolOf(r, "stream") {
		if a, err = s.engine.Attach(c.ID, o); err != nil {
			return err
		}
		defer a.Close()
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer conn.Close()
	p.conn, p.in = conn, rw.Reader
	if c.record.Config.TTY {
		p.in = &api.EscapeReader{From: rw, Keys: keys}
	}
	if !p.begin(r, c.record.Config.TTY) {
		return nil
	}
	if boolOf(r, "logs") {
		s.replay(ctx, c, o)
	}
	if a != nil {
		_ = a.Serve(ctx) // an error has no receiver: the client has disconnected
	}
	hangUp(conn)
	return nil
}

// headTaken waits until the client has read the head of the answer, at most a second. A client
// that reads the head by lines may read ahead into the stream, and lose this part when the
// client switches to the raw connection (Python's http.client, and thus docker-py).
func headTaken(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for range 1000 {
		unread := 0
		err := raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || unread == 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
}

// upgraded returns the head of the answer to a request whose connection becomes a stream.
func upgraded(r *http.Request, tty bool) string {
	media := streamType(r, tty)
	if r.Header.Get("Upgrade") == "" {
		return "HTTP/1.1 200 OK\r\nContent-Type: " + media + "\r\n\r\n"
	}
	return "HTTP/1.1 101 UPGRADED\r\nContent-Type: " + media + "\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
}

// replay writes the container's output so far.
func (s *server) replay(ctx context.Context, c shownContainer, o container.AttachOptions) {
	_ = s.engine.ContainerLogs(ctx, c.ID, live.LogOptions{Tail: -1}, func(l live.LogLine) error {
		w := o.Stdout
		if l.Stream == "stderr" {
			w = o.Stderr
		}
		if w == nil {
			return nil
		}
		_, err := io.WriteString(w, printed(l))
		return err
	}) // an error has no receiver: the client has disconnected
}

// hangUpWithin limits the wait for the client to close the connection.
const hangUpWithin = 5 * time.Second

// hangUp closes the write side and waits for the client to close. Closing a Unix socket with
// unread bytes resets the connection, and the client would lose output.
func hangUp(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	if conn.SetReadDeadline(time.Now().Add(hangUpWithin)) == nil {
		_, _ = io.Copy(io.Discard, conn) // until the client closes or the deadline passes
	}
}
