package channel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"

	"github.com/fre-engine/fre/internal/fretest"
)

// clients returns the two ends of a TCP connection: the engine's end and the client's end.
func clients(t *testing.T) (engine, client *net.TCPConn) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	engine, client = e.(*net.TCPConn), c.(*net.TCPConn)
	t.Cleanup(func() { _, _ = engine.Close(), client.Close() })
	return engine, client
}

func rawOf(t *testing.T, c syscall.Conn) syscall.RawConn {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// breaking gives a long body, then an error.
type breaking struct {
	r   io.Reader
	err error
}

func (b breaking) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = b.err
	}
	return n, err
}

// TestNoSocketForWholeBodies: a function is not asked to send a complete body to the socket.
func TestNoSocketForWholeBodies(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Setenv("FRE_FILES", "/tmp")
	for _, size := range []int{100, wire.Chunk, mostWhole, mostWhole + 1} {
		c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) {
			return &fn.Answer{Body: bytes.NewReader(pattern(size))}, nil
		})
		r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Socket: true}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Lend != nil {
			t.Errorf("%d bytes: the function may ask for the socket", size)
		}
		if got := readReply(t, r); !bytes.Equal(got, pattern(size)) {
			t.Errorf("%d other bytes", len(got))
		}
	}
}

// TestSocket: with permission, a function writes the rest of a long answer to the client's socket.
// Without a socket the rest goes through the engine.
func TestSocket(t *testing.T) {
	const size = 3<<20 + 1
	for _, test := range []struct {
		name  string
		piece int
		offer bool // the event offers a socket
		lend  bool
		asked bool
	}{
		{"lent", wire.Chunk, true, true, true},
		{"declined", wire.Chunk, true, false, true},
		{"not offered", wire.Chunk, false, false, false},
		{"slow", 1000, true, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			t.Setenv("FRE_FILES", "/tmp")
			c := serve(t, Config{}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
				if e.Socket != test.offer {
					t.Errorf("the event says %t", e.Socket)
				}
				return &fn.Answer{Body: pieces{io.MultiReader(bytes.NewReader(pattern(size))), test.piece}}, nil
			})
			var finished atomic.Bool
			r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Socket: test.offer}, Finished: func() { finished.Store(true) }})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			engine, client := clients(t)
			var first bytes.Buffer
			_, err = io.Copy(&first, r.Body)
			if errors.Is(err, ErrSocketWanted) != test.asked || !test.asked && err != nil {
				t.Fatalf("after %d bytes: %v", first.Len(), err)
			}
			if test.asked {
				var socket syscall.RawConn
				rest := make(chan []byte, 1)
				if test.lend {
					socket = rawOf(t, engine)
					go func() {
						got, err := io.ReadAll(httputil.NewChunkedReader(bufio.NewReader(client)))
						if err != nil {
							t.Error(err)
						}
						rest <- got
					}()
				}
				n, err := r.Lend(socket)
				if err != nil {
					t.Fatal(err)
				}
				if test.lend {
					if !finished.Load() {
						t.Error("the function's slot is not free")
					}
					if _, err := io.WriteString(engine, "0\r\n\r\n"); err != nil { // the engine has the socket again
						t.Fatal(err)
					}
					first.Write(<-rest)
					if n != size {
						t.Errorf("%d bytes were written, it says; want %d", n, size)
					}
				}
				if _, err := io.Copy(&first, r.Body); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(first.Bytes(), pattern(size)) {
				t.Errorf("%d bytes: not the %d sent", first.Len(), size)
			}
		})
	}
}

// TestSocketEnds: after any end of an answer in a socket, both sides know the reason.
func TestSocketEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		body    io.Reader
		happens func(cancel context.CancelCauseFunc, c *Conn, client *net.TCPConn)
		want    error
		told    string // by the function
	}{
		"fails":      {body: breaking{bytes.NewReader(pattern(2 * wire.Chunk)), broken}, told: "broken"},
		"cancelled":  {body: always{}, happens: func(cancel context.CancelCauseFunc, _ *Conn, _ *net.TCPConn) { cancel(broken) }, want: broken},
		"client":     {body: always{}, happens: func(_ context.CancelCauseFunc, _ *Conn, client *net.TCPConn) { _ = client.Close() }, want: ErrClientGone},
		"no channel": {body: always{}, happens: func(_ context.CancelCauseFunc, c *Conn, _ *net.TCPConn) { c.fail(ErrClosed) }, want: ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) { return &fn.Answer{Body: test.body}, nil })
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			finished := make(chan struct{})
			r, err := c.Invoke(ctx, &Invocation{Request: Request{Socket: true}, Finished: func() { close(finished) }})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); !errors.Is(err, ErrSocketWanted) {
				t.Fatal(err)
			}
			engine, client := clients(t)
			if test.happens != nil {
				time.AfterFunc(50*time.Millisecond, func() { test.happens(cancel, c, client) })
			}
			_, err = r.Lend(rawOf(t, engine))
			var failure *Failure
			if errors.As(err, &failure) != (test.told != "") || failure != nil && !strings.Contains(failure.Message, test.told) || !errors.Is(err, test.want) && test.want != nil {
				t.Errorf("it ended by %v", err)
			}
			<-finished
		})
	}
}

// always is an endless body.
type always struct{}

func (always) Read(p []byte) (int, error) { return len(p), nil }

// TestSocketLate: a function that is cancelled while it waits for a socket gets none.
func TestSocketLate(t *testing.T) {
	fretest.CheckLeaks(t)
	c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) { return &fn.Answer{Body: always{}}, nil })
	finished := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := c.Invoke(ctx, &Invocation{Request: Request{Socket: true}, Finished: func() { close(finished) }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); !errors.Is(err, ErrSocketWanted) {
		t.Fatal(err)
	}
	cancel()
	<-finished
	engine, _ := clients(t)
	if _, err := r.Lend(rawOf(t, engine)); !errors.Is(err, context.Canceled) {
		t.Errorf("lent to nobody: %v", err)
	}
}

// TestSocketHostile: a wrong frame about sockets ends the function's channel.
func TestSocketHostile(t *testing.T) {
	want := frame(0x23, 0, 1, "")
	back := frame(0x23, 0, 1, string(binary.LittleEndian.AppendUint64(nil, 1)))
	for name, test := range map[string]struct {
		offer bool
		text  string // after the answer's beginning
	}{
		"not offered":       {false, want},
		"twice":             {true, want + want},
		"returned, unasked": {true, back},
		"returned, unlent":  {true, want + back},
		"a text":            {true, frame(0x23, 0, 1, "text")},
		"with a file":       {true, frameWithFDs(0x23, 1, 1, "")},
		"after the end":     {true, frame(0x05, 0, 1, "x") + want},
		"no event's":        {true, frame(0x23, 0, 2, "")},
		"more":              {true, frame(0x23, 1, 1, "")},
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			c, function := raw(t)
			replies := make(chan *Reply, 1)
			go func() {
				r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Socket: test.offer}})
				if err != nil {
					t.Error(err)
				}
				replies <- r
			}()
			if h, _, err := reader(t, function).Next(); err != nil || h.Kind != wire.KindInvoke {
				t.Fatalf("%+v, %v", h, err)
			}
			write(t, function, frame(0x04, 1, 1, withMeta(`{"status":200,"headers":[]}`, "")))
			reply := <-replies
			write(t, function, test.text)
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrProtocol) {
				t.Errorf("the channel ended by %v", err)
			}
			_ = reply.Body.Close()
		})
	}
	t.Run("beside it", func(t *testing.T) { // while the socket is lent, no part of the body may arrive here
		for _, text := range []string{frame(0x05, 1, 1, "x"), want} {
			fretest.CheckLeaks(t)
			c, function := raw(t)
			reply := func() *Reply {
				replies := make(chan *Reply, 1)
				go func() {
					r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Socket: true}})
					if err != nil {
						t.Error(err)
					}
					replies <- r
				}()
				if h, _, err := reader(t, function).Next(); err != nil || h.Kind != wire.KindInvoke {
					t.Fatalf("%+v, %v", h, err)
				}
				write(t, function, frame(0x04, 1, 1, withMeta(`{"status":200,"headers":[]}`, ""))+want)
				return <-replies
			}()
			defer reply.Body.Close()
			if _, err := reply.Body.Read(make([]byte, 1)); !errors.Is(err, ErrSocketWanted) {
				t.Fatal(err)
			}
			engine, _ := clients(t)
			go func() {
				b := make([]byte, wire.HeaderSize)
				if _, err := io.ReadFull(function, b); err != nil { // the socket, which the test drops
					t.Error(err)
				}
				_, _ = io.WriteString(function, text)
			}()
			if _, err := reply.Lend(rawOf(t, engine)); !errors.Is(err, ErrProtocol) {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}
