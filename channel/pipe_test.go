package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// pieces gives a body in Reads of at most n bytes.
type pieces struct {
	r io.Reader
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(p.n, len(b))]) }

// TestPipedAnswers: a stream's bytes arrive in order. A long stream with large pieces goes through
// a pipe.
func TestPipedAnswers(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Setenv("FRE_FILES", "/tmp")
	c := serve(t, Config{}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		var size, piece int
		if _, err := fmt.Sscanf(e.Path, "/%d/%d", &size, &piece); err != nil {
			return nil, err
		}
		return &fn.Answer{Body: pieces{io.MultiReader(bytes.NewReader(pattern(size))), piece}}, nil
	})
	for _, test := range []struct {
		size, piece int
		piped       bool
	}{
		{0, 1, false},
		{1, 1, false},
		{20_000, 100, false},
		{wire.Chunk, wire.Chunk, true}, // the end of the body is seen later
		{wire.Chunk + 1, wire.Chunk, true},
		{1 << 20, wire.Chunk, true},
		{8<<20 + 1, wire.Chunk, true},
		{1 << 20, 10_000, false}, // small pieces: the body may be slow
	} {
		t.Run(fmt.Sprintf("%d by %d", test.size, test.piece), func(t *testing.T) {
			r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: fmt.Sprintf("/%d/%d", test.size, test.piece)}})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			got, err := io.ReadAll(r.Body)
			if err != nil || !bytes.Equal(got, pattern(test.size)) {
				t.Errorf("%d bytes, %v: not the %d sent", len(got), err, test.size)
			}
			if body, ok := r.Body.(replyBody); ok && body.k.in.Piped() != test.piped {
				t.Errorf("through a pipe: %t, want %t", !test.piped, test.piped)
			}
		})
	}
}

// raw returns a channel whose function is the test.
func raw(t testing.TB) (*Conn, *net.UnixConn) {
	t.Helper()
	a, b := pair(t)
	c := NewConn(a, Config{Memory: memory(t)})
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

// invoked sends an event; the test must answer as the function.
func invoked(ctx context.Context, t testing.TB, c *Conn) chan *Reply {
	t.Helper()
	replies := make(chan *Reply, 1)
	go func() {
		r, err := c.Invoke(ctx, &Invocation{})
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
	if h, _, err := reader(t, function).Next(); err != nil || h.Kind != wire.KindInvoke || h.ID != id { // alone in the socket
		t.Fatalf("%+v, %v", h, err)
	}
	write(t, function, frame(0x04, 1, id, withMeta(`{"status":200,"headers":[]}`, "")))
	return <-replies
}

// frameWithFDs encodes a frame that announces fds descriptors.
func frameWithFDs(k byte, fds int, id uint64, payload string) string {
	b := []byte(frame(k, 0, id, payload))
	binary.LittleEndian.PutUint16(b[6:], uint16(fds))
	return string(b)
}

// sendEnd sends PIPE with a file.
func sendEnd(t testing.TB, function *net.UnixConn, id uint64, f *os.File) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if _, _, err := function.WriteMsgUnix([]byte(frameWithFDs(0x22, 1, id, "")), unix.UnixRights(int(fd)), nil); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sendTotal sends PIPE with n, the number of bytes through the pipe.
func sendTotal(t testing.TB, function *net.UnixConn, id, n uint64) {
	t.Helper()
	write(t, function, frame(0x22, 0, id, string(binary.LittleEndian.AppendUint64(nil, n))))
}

// piped returns an answer that continues in a pipe; the test writes to w.
func piped(t testing.TB, c *Conn, function *net.UnixConn, id uint64) (reply *Reply, w *os.File) {
	t.Helper()
	reply = answerBegins(t, c, function, id)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	sendEnd(t, function, id, r)
	_ = r.Close()
	return reply, w
}

// TestPipeEnds: an answer in a pipe ends at the length that the function reports, even if another
// process has the pipe open. If the function breaks off or dies, the answer breaks off after the
// received bytes.
func TestPipeEnds(t *testing.T) {
	text := pattern(10_000)
	for name, test := range map[string]struct {
		end  func(t *testing.T, function *net.UnixConn, w *os.File)
		want error
	}{
		"well": {func(t *testing.T, function *net.UnixConn, w *os.File) {
			t.Helper()
			_ = w.Close()
			sendTotal(t, function, 1, uint64(len(text)))
		}, nil},
		"open still": {func(t *testing.T, function *net.UnixConn, _ *os.File) {
			t.Helper()
			sendTotal(t, function, 1, uint64(len(text)))
		}, nil},
		"told later": {func(t *testing.T, function *net.UnixConn, w *os.File) {
			t.Helper()
			_ = w.Close()
			<-time.After(50 * time.Millisecond)
			sendTotal(t, function, 1, uint64(len(text)))
		}, nil},
		"by death": {func(_ *testing.T, function *net.UnixConn, _ *os.File) { _ = function.Close() }, ErrClosed},
		"by an error": {func(t *testing.T, function *net.UnixConn, _ *os.File) {
			t.Helper()
			write(t, function, frame(0x06, 0, 1, `{"type":"t","message":"m","stack":""}`))
		}, &Failure{Type: "t", Message: "m"}},
		"too early": {func(t *testing.T, function *net.UnixConn, w *os.File) {
			t.Helper()
			_ = w.Close()
			sendTotal(t, function, 1, uint64(len(text)+1))
		}, ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			c, function := raw(t)
			reply, w := piped(t, c, function, 1)
			defer reply.Body.Close()
			ended := make(chan struct{})
			go func() { // while the reader waits
				defer close(ended)
				<-time.After(10 * time.Millisecond)
				if _, err := w.Write(text); err != nil {
					t.Error(err)
				}
				test.end(t, function, w)
			}()
			got, err := io.ReadAll(reply.Body)
			<-ended
			var failure *Failure
			if want := test.want; !errors.Is(err, want) && (!errors.As(err, &failure) || failure.Error() != want.Error()) || !bytes.Equal(got, text) {
				t.Errorf("%d bytes, %v, want %d and %v", len(got), err, len(text), want)
			}
		})
	}
}

// TestPipeEndless: a function that ends its answer and continues to fill the pipe blocks no reader.
func TestPipeEndless(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(t *testing.T, function *net.UnixConn)
		want error
		most int
	}{
		"after an error": {func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			write(t, function, frame(0x06, 0, 1, `{"type":"t","message":"m","stack":""}`))
		}, &Failure{Type: "t", Message: "m"}, 2 << 20},
		"after its death": {func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			_ = function.Close()
		}, ErrClosed, 2 << 20},
		"after its end": {func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			sendTotal(t, function, 1, 60_000)
		}, nil, 60_000},
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			c, function := raw(t)
			reply, w := piped(t, c, function, 1)
			defer reply.Body.Close()
			var writer sync.WaitGroup
			if _, err := w.Write(pattern(wire.Chunk)); err != nil { // as much as the pipe takes unread
				t.Fatal(err)
			}
			writer.Go(func() {
				for _, err := w.Write(pattern(wire.Chunk)); err == nil; {
					_, err = w.Write(pattern(wire.Chunk))
				}
			})
			test.end(t, function)
			for !reply.Body.(replyBody).k.out.Over() { // more bytes than the end allows may have been taken
				<-time.After(time.Millisecond)
			}
			got, err := io.ReadAll(reply.Body)
			var failure *Failure
			if want := test.want; len(got) > test.most || !errors.Is(err, want) && (!errors.As(err, &failure) || failure.Error() != want.Error()) {
				t.Errorf("%d bytes, %v, want %d at most and %v", len(got), err, test.most, want)
			}
			_ = reply.Body.Close()
			writer.Wait() // EPIPE
		})
	}
	t.Run("more than it says", func(t *testing.T) {
		fretest.CheckLeaks(t)
		c, function := raw(t)
		reply, w := piped(t, c, function, 1)
		if _, err := w.Write(pattern(1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(reply.Body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		sendTotal(t, function, 1, 999)
		<-c.Done()
		if err := c.Err(); !errors.Is(err, ErrProtocol) {
			t.Errorf("the channel ended by %v", err)
		}
		_ = reply.Body.Close()
	})
}

// TestPipeCanceled: a waiting reader gets the reason of the cancellation.
func TestPipeCanceled(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	replies := invoked(ctx, t, c)
	if h, _, err := reader(t, function).Next(); err != nil || h.Kind != wire.KindInvoke {
		t.Fatalf("%+v, %v", h, err)
	}
	write(t, function, frame(0x04, 1, 1, withMeta(`{"status":200,"headers":[]}`, "")))
	reply := <-replies
	defer reply.Body.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	sendEnd(t, function, 1, r)
	_ = r.Close()
	gone := errors.New("gone")
	time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
	if _, err := reply.Body.Read(make([]byte, 1)); !errors.Is(err, gone) {
		t.Errorf("read of a cancelled answer: %v", err)
	}
}

// TestPipeTaken: the function's slot is free when the function has reported the end, and the answer
// was read, closed or cancelled.
func TestPipeTaken(t *testing.T) {
	for name, leave := range map[string]func(ctx context.CancelFunc, r *Reply){
		"read":     func(_ context.CancelFunc, r *Reply) { _, _ = io.Copy(io.Discard, r.Body) },
		"closed":   func(_ context.CancelFunc, r *Reply) { _ = r.Body.Close() },
		"canceled": func(cancel context.CancelFunc, _ *Reply) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			c, function := raw(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			finished := make(chan struct{})
			replies := make(chan *Reply, 1)
			go func() {
				r, err := c.Invoke(ctx, &Invocation{Finished: func() { close(finished) }})
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
			defer reply.Body.Close()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			sendEnd(t, function, 1, r)
			_ = r.Close()
			if _, err := w.WriteString("text"); err != nil {
				t.Fatal(err)
			}
			_ = w.Close()
			sendTotal(t, function, 1, 4)
			write(t, function, frame(0x09, 0, 0, `{"level":"info","message":"after"}`))
			select {
			case <-finished:
				t.Fatal("the place is free while the answer waits in the pipe")
			case <-time.After(50 * time.Millisecond):
			}
			leave(cancel, reply)
			<-finished
		})
	}
}

// wantCancel reads CANCEL, which the engine sends for an unwanted answer.
func wantCancel(t testing.TB, function *net.UnixConn, id uint64) {
	t.Helper()
	if h, _, err := reader(t, function).Next(); err != nil || h.Kind != wire.KindCancel || h.ID != id {
		t.Fatalf("%+v, %v, want CANCEL of %d", h, err, id)
	}
}

// TestPipeGivenUp: closing an answer closes every reading end of its pipe: the function's next
// write fails with EPIPE.
func TestPipeGivenUp(t *testing.T) {
	fretest.CheckLeaks(t)
	c, function := raw(t)
	reply, w := piped(t, c, function, 1)
	if _, err := w.Write(pattern(1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(reply.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
	wantCancel(t, function, 1)
	if _, err := w.Write(pattern(1000)); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write to a pipe that nobody reads: %v", err)
	}
	write(t, function, frame(0x06, 0, 1, `{"type":"t","message":"m","stack":""}`))

	// The function may not know of the close yet.
	late := answerBegins(t, c, function, 2)
	_ = late.Body.Close()
	wantCancel(t, function, 2)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	sendEnd(t, function, 2, r)
	_ = r.Close()
	_ = w.Close()
	sendTotal(t, function, 2, 0)
	if next := answerBegins(t, c, function, 3); next.Body.Close() != nil || c.Err() != nil {
		t.Errorf("after a late pipe: %v", c.Err())
	}
}

// TestPipeHostile: a file that is not the reading end of a pipe, or a PIPE at a wrong time, ends
// the channel and leaves nothing open.
func TestPipeHostile(t *testing.T) {
	open := func(t *testing.T, name string, flags int) *os.File {
		t.Helper()
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	given := func(which func(t *testing.T) *os.File) func(*testing.T, *net.UnixConn) {
		return func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			sendEnd(t, function, 1, which(t))
		}
	}
	two := func(t *testing.T) (r, w *os.File) {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return r, w
	}
	pipe := func(t *testing.T) *os.File { t.Helper(); r, _ := two(t); return r }
	for name, send := range map[string]func(t *testing.T, function *net.UnixConn){
		"writing end":  given(func(t *testing.T) *os.File { t.Helper(); _, w := two(t); return w }),
		"regular file": given(func(t *testing.T) *os.File { t.Helper(); return memfd(t, []byte("x"), 0) }),
		"directory":    given(func(t *testing.T) *os.File { t.Helper(); return open(t, "/", unix.O_RDONLY) }),
		"device":       given(func(t *testing.T) *os.File { t.Helper(); return open(t, "/dev/zero", unix.O_RDONLY) }),
		"O_PATH": given(func(t *testing.T) *os.File {
			t.Helper()
			r := pipe(t)
			raw, err := r.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var f *os.File
			_ = raw.Control(func(fd uintptr) { f = open(t, fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_PATH) })
			return f
		}),
		"FIFO": given(func(t *testing.T) *os.File {
			t.Helper()
			name := filepath.Join(t.TempDir(), "fifo")
			if err := unix.Mkfifo(name, 0o600); err != nil {
				t.Fatal(err)
			}
			return open(t, name, unix.O_RDONLY|unix.O_NONBLOCK)
		}),
		"none": func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			write(t, function, frameWithFDs(0x22, 1, 1, ""))
		},
		"with a text":  func(t *testing.T, function *net.UnixConn) { t.Helper(); write(t, function, frame(0x22, 0, 1, "text")) },
		"no beginning": func(t *testing.T, function *net.UnixConn) { t.Helper(); sendTotal(t, function, 1, 0) },
		"a second": func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			sendEnd(t, function, 1, pipe(t))
			sendEnd(t, function, 1, pipe(t))
		},
		"data beside it": func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			sendEnd(t, function, 1, pipe(t))
			write(t, function, frame(0x05, 1, 1, "x"))
		},
		"two ends": func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			sendEnd(t, function, 1, pipe(t))
			sendTotal(t, function, 1, 1)
			sendTotal(t, function, 1, 1)
		},
		"after the end": func(t *testing.T, function *net.UnixConn) {
			t.Helper()
			write(t, function, frame(0x05, 0, 1, "x"))
			sendEnd(t, function, 1, pipe(t))
		},
		"before an answer": func(t *testing.T, function *net.UnixConn) { t.Helper(); sendEnd(t, function, 2, pipe(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			c, function := raw(t)
			reply := answerBegins(t, c, function, 1)
			send(t, function)
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrProtocol) {
				t.Errorf("the channel ended by %v", err)
			}
			_ = reply.Body.Close()
		})
	}
}
