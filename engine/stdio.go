package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

// stdio runs the event as one process: the body on stdin, the answer on stdout. The exit status
// says whether the event has failed.
func (ev *event) stdio(r *Request) (*Response, error) {
	f := ev.f
	m := ev.invocation(r)
	env, err := channel.Environ(&m)
	if err != nil {
		return nil, err
	}
	spec, err := f.spec(live.NewID())
	if err != nil {
		return nil, err
	}
	if spec.Secrets, err = f.secrets(); err != nil {
		f.logFailure("", ev.name, &FunctionError{Message: err.Error()})
		return nil, err
	}
	defer wipe(spec.Secrets)
	in, err := f.eventSlot(&ev.ctx, ev.waits)
	if err != nil {
		return nil, err
	}
	ev.since = time.Now()
	outR, outW, err := live.OutputPipe()
	if err != nil {
		f.endEvent(in, 0)
		return nil, fmt.Errorf("make stdout: %w", err)
	}
	feed, err := newFeeder(r)
	if err != nil {
		err = cmp.Or(context.Cause(&ev.ctx), err)
	} else {
		spec.Stdin, spec.Stdout = feed.child, outW
		spec.Env = append(spec.Env[:len(spec.Env):len(spec.Env)], env...)
		in.box = in.newBox(spec.ID)
		ev.resp.Instance = in.box.ID
		if err = ev.enter(); err == nil {
			err = f.start(&ev.ctx, spec, in.box)
		}
	}
	_ = outW.Close()
	feed.closeChild()
	if err != nil {
		_ = outR.Close()
		feed.close()
		ev.leave(0)
		f.endEvent(in, 0)
		return nil, err
	}
	in.kind = in.box.Sandbox().Kind()
	started := time.Since(ev.began)
	f.started(in.kind, started)
	feed.start(ev.cancel)
	stop := context.AfterFunc(&ev.ctx, in.box.Kill) // the time is over, or the client has left
	end := func() {
		stop()
		in.box.Kill()
		_ = outR.Close()
		feed.close()
		<-in.box.Sandbox().Done()
		kept := ev.kept()
		ev.leave(kept)
		f.endEvent(in, kept)
	}

	ev.resp = Response{ID: ev.name, Instance: in.box.ID, Status: 200, Header: [][2]string{{"Content-Type", "application/octet-stream"}}, Cold: true, Start: started, StartKind: in.kind, Body: &ev.body}
	head, err := readHead(&ev.ctx, f.host.buffers, f.host.admission.Waited, outR)
	if err == nil && head.whole {
		err = ev.exited(in.box.Sandbox())
	}
	if err != nil {
		_ = head.Close()
		ev.cancel(err)
		end()
		return nil, err
	}
	if head.whole {
		end() // the program has ended, however slowly the client reads the answer
		ev.resp.Size = int64(len(head.rest))
		ev.body = replyBody{ReadCloser: head, ev: ev, whole: true, ended: true}
		ev.end = func(error) {}
		return &ev.resp, nil
	}
	ev.resp.Size = -1
	ev.body = replyBody{ReadCloser: &stdioBody{ev: ev, head: head, out: outR, sb: in.box.Sandbox()}, ev: ev}
	ev.end = func(error) {
		end()
		_ = head.Close() // its reader may notice late
	}
	ev.watch()
	return &ev.resp, nil
}

// stdioBody streams a long answer. It ends with an error if the program failed.
type stdioBody struct {
	ev   *event
	head *head
	out  *os.File // the output after head
	sb   *sandbox.Sandbox
}

func (b *stdioBody) Read(p []byte) (int, error) {
	if n, err := b.head.Read(p); err == nil {
		return n, nil
	}
	n, err := b.out.Read(p)
	return n, b.endError(err)
}

// endError turns the pipe's error into the answer's error.
func (b *stdioBody) endError(err error) error {
	switch {
	case err != nil && b.ev.ctx.Err() != nil: // the event's end closed the pipe
		return context.Cause(&b.ev.ctx)
	case errors.Is(err, io.EOF):
		if failed := b.ev.exited(b.sb); failed != nil {
			return failed
		}
	}
	return err
}

// Close ends a Read under way.
func (b *stdioBody) Close() error { return errors.Join(b.head.Close(), b.out.Close()) }

// exited waits for the program's end and returns an error if the program failed.
func (ev *event) exited(sb *sandbox.Sandbox) error {
	<-sb.Done() // the end of ev.ctx kills the sandbox
	if ev.ctx.Err() != nil {
		return context.Cause(&ev.ctx)
	}
	s := sb.Status()
	switch {
	case s.OOMKilled || s.Signal != 0:
		return ev.f.crashed(s, "it answered")
	case s.Code != 0:
		return &FunctionError{Type: "exit", Message: fmt.Sprintf("exit status %d", s.Code)}
	}
	return nil
}

// feeder writes a request body to a program's stdin: a small one before the program starts, a
// larger one in a goroutine.
type feeder struct {
	child *os.File  // the program's end; nil without a body
	ours  *os.File  // nil once all is written
	rest  io.Reader // to be written
	body  io.Reader
	done  chan struct{}
}

// smallBody is the capacity of a pipe, in bytes (pipe(7)).
const smallBody = 64 << 10

// newFeeder makes the pipe. It reads a small body first: before the client has sent all of it,
// the program need not start. The caller calls closeChild and close, even after an error.
func newFeeder(r *Request) (*feeder, error) {
	f := &feeder{body: r.Body, rest: r.Body}
	if r.Body == nil || r.Length == 0 {
		return f, nil
	}
	var small []byte
	if 0 < r.Length && r.Length <= smallBody {
		small = make([]byte, r.Length)
		if _, err := io.ReadFull(r.Body, small); err != nil {
			return f, fmt.Errorf("read body: %w", err)
		}
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return f, fmt.Errorf("make stdin: %w", err)
	}
	f.child = os.NewFile(uintptr(fds[0]), "stdin")
	if err := unix.SetNonblock(fds[1], true); err != nil {
		return f, errors.Join(err, unix.Close(fds[1]))
	}
	if small != nil {
		n, err := unix.Write(fds[1], small)
		if n == len(small) {
			return f, unix.Close(fds[1])
		}
		if err != nil { // the host limits pipes (pipe-user-pages-hard)
			n = 0
		}
		f.rest = bytes.NewReader(small[n:])
	}
	f.ours = os.NewFile(uintptr(fds[1]), "stdin")
	return f, nil
}

func (f *feeder) closeChild() {
	if f.child != nil {
		_ = f.child.Close()
	}
}

// start begins to write the rest of the body. If the body cannot be read to its end, the event
// fails: the program must not take a part for the whole.
func (f *feeder) start(fail func(error)) {
	if f.ours == nil {
		return
	}
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		src := &faultReader{r: f.rest}
		_, _ = io.Copy(f.ours, src) // EPIPE: the program reads no more
		if src.err != nil {
			fail(fmt.Errorf("read body: %w", src.err))
			return // leave stdin open until the program ends: it must not see the end of its input
		}
		_ = f.ours.Close()
	}()
}

// faultReader remembers the error of a failed read.
type faultReader struct {
	r   io.Reader
	err error
}

func (r *faultReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// close stops the writing and waits for its goroutine.
func (f *feeder) close() {
	if f.ours == nil {
		return
	}
	_ = f.ours.Close()
	if c, ok := f.body.(io.Closer); ok {
		_ = c.Close()
	}
	if f.done != nil {
		<-f.done
	}
}
