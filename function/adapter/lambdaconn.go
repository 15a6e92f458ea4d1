package adapter

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// accept serves the connections of a client until the process ends.
func (api *runtimeAPI) accept(l net.Listener, unusual *handedOver) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			r := bufio.NewReaderSize(c, headBytes)
			if api.serveConn(c.(*net.TCPConn), r) {
				_ = c.Close()
				return
			}
			unusual.conns <- &readAhead{c, r}
		}()
	}
}

// serveConn answers usual requests. It returns true after the connection has ended, and false
// before an unusual request, which it has not consumed.
func (api *runtimeAPI) serveConn(c *net.TCPConn, r *bufio.Reader) (done bool) {
	var out []byte
	for {
		head, err := peekHead(r)
		if err != nil {
			return r.Buffered() == 0 // at the end, or at a head that is too long
		}
		q, ok := usual(head)
		if !ok {
			return false
		}
		if q.length > smallAnswer {
			return false
		}
		_, _ = r.Discard(len(head)) // the bytes are buffered
		if q.next {
			if out, ok = api.sendNext(c, r, out[:0]); !ok {
				return true
			}
			continue
		}
		body := make([]byte, q.length)
		if _, err := io.ReadFull(r, body); err != nil {
			return true // without an answer, the process's end decides the event's fate
		}
		if inv := api.takeID(q.id); inv != nil {
			inv.answer <- q.answer(body, api.whole)
			runtime.Gosched() // let the engine take the answer before the client asks for more
		}
		if _, err := c.Write(acceptedAnswer); err != nil {
			return true
		}
	}
}

// sendNext waits for the next event and sends it to the client. It returns buf, grown, and false if
// the client has gone.
func (api *runtimeAPI) sendNext(c *net.TCPConn, r *bufio.Reader, buf []byte) ([]byte, bool) {
	inv := api.waitNext(nil)
	if r.Buffered() == 0 && hungUp(c) {
		go api.giveBack(inv)
		return buf, false
	}
	api.deliver(inv)
	buf, err := inv.send(c, buf)
	if err != nil {
		inv.answer <- answered{err: fmt.Errorf("the client did not take the event: %w", err)}
	}
	return buf, err == nil
}

var acceptedAnswer = []byte("HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n" + `{"status":"OK"}`)

// hungUp reports whether the client closed the connection while it waited for an event.
func hungUp(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != unix.EAGAIN
	})
	return gone || err != nil
}

// giveBack waits until the client asks for an event on another connection.
func (api *runtimeAPI) giveBack(inv *invocation) {
	select {
	case api.next <- inv:
	case <-inv.gone:
	case <-api.server.exited:
	}
}

// handedOver is the listener of net/http's server.
type handedOver struct {
	net.Listener
	conns chan net.Conn
}

// Accept waits for a connection with an unusual request.
func (l *handedOver) Accept() (net.Conn, error) { return <-l.conns, nil }

// readAhead is a connection with buffered bytes.
type readAhead struct {
	net.Conn
	r *bufio.Reader
}

// Read returns the buffered bytes first.
func (c *readAhead) Read(p []byte) (int, error) { return c.r.Read(p) }
