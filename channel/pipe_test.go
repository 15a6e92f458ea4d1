package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// pipeSink takes a body, and counts what came in a pipe.
type pipeSink struct {
	bytes.Buffer
	inPipe int
	before func() // unless nil, called before each write
}

func (s *pipeSink) Write(p []byte) (int, error) {
	if s.before != nil {
		s.before()
	}
	return s.Buffer.Write(p)
}

func (s *pipeSink) WritePipe(pipe *os.File, n int) (int, error) {
	if s.before != nil {
		s.before()
	}
	m, err := io.CopyN(&s.Buffer, pipe, int64(n))
	s.inPipe += int(m)
	return int(m), err
}

// pieces gives a body as Reads of so many bytes.
type pieces struct {
	r io.Reader
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(p.n, len(b))]) }

// TestPipedAnswers: a stream's bytes arrive in order, by way of the pipe where they come
// in long pieces, whoever takes them.
func TestPipedAnswers(t *testing.T) {
	fretest.CheckLeaks(t)
	c := serve(t, Config{}, func(_ context.Context, e *Event) (*Answer, error) {
		var size, piece int
		if _, err := fmt.Sscanf(e.Path, "/%d/%d", &size, &piece); err != nil {
			return nil, err
		}
		return &Answer{Body: pieces{io.MultiReader(bytes.NewReader(pattern(size))), piece}}, nil
	})
	for _, test := range []struct {
		size, piece int
		piped       bool
	}{
		{0, 1, false},
		{1, 1, false},
		{20_000, 100, false},
		{chunk, chunk, false},
		{chunk + 1, chunk, false},
		{2 * chunk, chunk, true},
		{1 << 20, chunk, true},
		{1<<20 + 1, 40_000, true},
		{8 << 20, chunk, true},
		{1 << 20, 10_000, false},
	} {
		for _, by := range []string{"WritePipe", "Write", "Read"} {
			t.Run(fmt.Sprintf("%d by %d, %s", test.size, test.piece, by), func(t *testing.T) {
				r, err := c.Invoke(t.Context(), &Invocation{Path: fmt.Sprintf("/%d/%d", test.size, test.piece), Pipes: true}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Body.Close()
				var s pipeSink
				n := int64(test.size)
				switch by {
				case "WritePipe":
					n, err = r.Body.(io.WriterTo).WriteTo(&s)
				case "Write":
					n, err = r.Body.(io.WriterTo).WriteTo(&s.Buffer)
				case "Read":
					_, err = io.Copy(&s.Buffer, struct{ io.Reader }{r.Body})
				}
				if err != nil || n != int64(test.size) || !bytes.Equal(s.Bytes(), pattern(test.size)) {
					t.Errorf("%d bytes, %v: not the %d sent", n, err, test.size)
				}
				if by == "WritePipe" && (s.inPipe > 0) != test.piped {
					t.Errorf("%d bytes of %d came in a pipe", s.inPipe, test.size)
				}
			})
		}
	}
}

// raw is a channel whose function is the test.
func raw(t testing.TB) (*Conn, *net.UnixConn) {
	t.Helper()
	a, b := pair(t)
	c := NewConn(a, Config{})
	t.Cleanup(func() { _ = c.Close(); _ = b.Close() })
	write(t, b, frame(0x01, 0, 0, `{"protocol":1,"concurrency":8}`))
	if _, err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, b
}

func write(t testing.TB, conn *net.UnixConn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// invoked sends an event; the function is to answer it.
func invoked(ctx context.Context, t testing.TB, c *Conn) chan *Reply {
	t.Helper()
	replies := make(chan *Reply, 1)
	go func() {
		r, err := c.Invoke(ctx, &Invocation{Pipes: true}, nil)
		if err != nil {
			t.Error(err)
		}
		replies <- r
	}()
	return replies
}

func answerBegins(t testing.TB, c *Conn, function *net.UnixConn, id uint64) *Reply {
	t.Helper()
	replies := invoked(t.Context(), t, c)
	if h, _, err := newFrameReader(function).next(); err != nil || h.kind != kindInvoke || h.id != id { // alone in the socket
		t.Fatalf("%+v, %v", h, err)
	}
	write(t, function, frame(0x04, 1, id, withMeta(`{"status":200,"headers":[]}`, "")))
	return <-replies
}

// full is the window as DATA, in which each byte says where it is.
func full(id uint64) string {
	var s strings.Builder
	for p := pattern(Window); len(p) > 0; p = p[chunk:] {
		s.WriteString(frame(0x05, 1, id, string(p[:chunk])))
	}
	return s.String()
}

// TestPipeUnread: whoever does not take their answer holds up nobody else, and nothing
// beyond the window is kept.
func TestPipeUnread(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	slow := answerBegins(t, c, function, 1)
	write(t, function, full(1))
	other := answerBegins(t, c, function, 2)
	write(t, function, frame(0x05, 0, 2, string(pattern(chunk))))
	var s pipeSink
	if _, err := other.Body.(io.WriterTo).WriteTo(&s); err != nil || !bytes.Equal(s.Bytes(), pattern(chunk)) {
		t.Errorf("beside a slow one: %d bytes, %v", s.Len(), err)
	}
	_ = other.Body.Close()
	write(t, function, frame(0x05, 0, 1, "x"))
	<-c.Done()
	if err := c.Err(); !errors.Is(err, ErrProtocol) {
		t.Errorf("beyond the window: %v", err)
	}
	s = pipeSink{}
	if _, err := slow.Body.(io.WriterTo).WriteTo(&s); !errors.Is(err, ErrProtocol) || !bytes.Equal(s.Bytes(), pattern(Window)) || s.inPipe == 0 {
		t.Errorf("the slow one: %d bytes, %d of them in a pipe, %v", s.Len(), s.inPipe, err)
	}
	_ = slow.Body.Close()
}

// TestPipeOfMorsels: a pipe that takes no more bytes, for they come one by one, leaves
// the others to memory; none is lost or out of order.
func TestPipeOfMorsels(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	r := answerBegins(t, c, function, 1)
	want := pattern(Window)
	for i := 0; i < Window; i += chunk {
		write(t, function, frame(0x05, 1, 1, string(want[i:i+chunk]))[:headerSize])
		for j := i; j < i+chunk; {
			n := min(1+j%700, i+chunk-j)
			write(t, function, string(want[j:j+n]))
			j += n
		}
	}
	write(t, function, frame(0x05, 0, 1, ""))
	var s pipeSink
	if _, err := r.Body.(io.WriterTo).WriteTo(&s); err != nil || !bytes.Equal(s.Bytes(), want) {
		t.Errorf("%d bytes, %v: not the %d sent", s.Len(), err, len(want))
	}
	_ = r.Body.Close()
}

// TestPipeNotHandedOn: what nobody has read of an answer is in no other.
func TestPipeNotHandedOn(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	for id := uint64(1); id < 20; id += 2 {
		given := answerBegins(t, c, function, id)
		write(t, function, full(id))
		if _, err := io.ReadFull(given.Body, make([]byte, 20<<10)); err != nil { // some of it from a pipe
			t.Fatal(err)
		}
		_ = given.Body.Close()
		h, _, err := newFrameReader(function).next()
		if err != nil || h.kind != kindCancel {
			t.Fatalf("%+v, %v", h, err)
		}
		write(t, function, frame(0x06, 0, id, `{"type":"t","message":"m","stack":""}`))

		r := answerBegins(t, c, function, id+1)
		want := bytes.Repeat([]byte{0xff}, 3*chunk)
		for i := range 3 {
			more := byte(1)
			if i == 2 {
				more = 0
			}
			write(t, function, frame(0x05, more, id+1, string(want[i*chunk:(i+1)*chunk])))
		}
		var s pipeSink
		if _, err := r.Body.(io.WriterTo).WriteTo(&s); err != nil || !bytes.Equal(s.Bytes(), want) {
			t.Fatalf("round %d: %d bytes, %v: not those of this answer", id, s.Len(), err)
		}
		_ = r.Body.Close()
		// A grant may have been sent.
		drainFrames(t, function)
	}
}

// drainFrames reads what has come.
func drainFrames(t testing.TB, function *net.UnixConn) {
	t.Helper()
	raw, err := function.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var buf [4096]byte
	_ = raw.Control(func(fd uintptr) {
		for {
			if _, _, err := unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT); err != nil {
				return
			}
		}
	})
}

// TestPipeBreaksOff: a function that ends in the middle of a frame ends the body there.
func TestPipeBreaksOff(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	r := answerBegins(t, c, function, 1)
	write(t, function, frame(0x05, 1, 1, string(pattern(2*chunk)))[:headerSize+chunk])
	_ = function.Close()
	var s pipeSink
	if _, err := r.Body.(io.WriterTo).WriteTo(&s); !errors.Is(err, ErrClosed) || !bytes.Equal(s.Bytes(), pattern(chunk)) {
		t.Errorf("%d bytes, %v", s.Len(), err)
	}
	_ = r.Body.Close()
}

// TestPipeClosedWhileWritten: a body that is closed while its pipe is being emptied
// leaves the pipe to nobody.
func TestPipeClosedWhileWritten(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	replies := invoked(ctx, t, c)
	if h, _, err := newFrameReader(function).next(); err != nil || h.kind != kindInvoke {
		t.Fatalf("%+v, %v", h, err)
	}
	write(t, function, frame(0x04, 1, 1, withMeta(`{"status":200,"headers":[]}`, "")))
	r := <-replies
	write(t, function, full(1))
	gone := errors.New("gone")
	s := pipeSink{before: func() { cancel(gone); <-ctx.Done() }}
	if _, err := r.Body.(io.WriterTo).WriteTo(&s); !errors.Is(err, gone) {
		t.Errorf("%d bytes, %v", s.Len(), err)
	}
	_ = r.Body.Close()
	c.pipes.mu.Lock()
	defer c.pipes.mu.Unlock()
	for _, p := range c.pipes.idle {
		if !p.empty() {
			t.Error("a pipe that is not empty is kept")
		}
	}
}

// TestPipesFileInData: a file that comes along with a body's bytes is kept by nobody.
func TestPipesFileInData(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	r := answerBegins(t, c, function, 1)
	f := memfd(t, []byte("x"), 0)
	text := frame(0x05, 0, 1, string(pattern(4*chunk)))
	write(t, function, text[:headerSize+chunk])
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if _, _, err := function.WriteMsgUnix([]byte(text[headerSize+chunk:headerSize+2*chunk]), unix.UnixRights(int(fd)), nil); err != nil {
			t.Error(err)
		}
	})
	write(t, function, text[headerSize+2*chunk:])
	var s pipeSink
	if _, err := r.Body.(io.WriterTo).WriteTo(&s); err != nil || !bytes.Equal(s.Bytes(), pattern(4*chunk)) {
		t.Errorf("%d bytes, %v", s.Len(), err)
	}
	_ = r.Body.Close()
}
