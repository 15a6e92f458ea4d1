package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// childEnv makes this test binary the peer on fd 3; its value is the kind of peer.
const childEnv = "FRE_TEST_RING"

func TestMain(m *testing.M) {
	kind := os.Getenv(childEnv)
	if kind == "" {
		os.Exit(m.Run())
	}
	if err := child(kind); err != nil {
		println(kind, err.Error())
		os.Exit(1)
	}
}

// newRing returns both sides of a ring and closes them when t ends.
func newRing(t testing.TB, capacity int) (*Producer, *Consumer) {
	t.Helper()
	forP, forC, err := Create(capacity)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProducer(forP)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewConsumer(forC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), c.Close(), p.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	})
	return p, c
}

func TestCreate(t *testing.T) {
	fretest.CheckLeaks(t)
	for capacity, want := range map[int]int{0: MinCapacity, MinCapacity: MinCapacity, MinCapacity + 1: 2 * MinCapacity, 1 << 20: 1 << 20} {
		p, c := newRing(t, capacity)
		if p.Capacity() != want || c.Capacity() != want || p.MaxRecord() != want/2-8 {
			t.Errorf("%d: capacities %d and %d, want %d; largest record %d", capacity, p.Capacity(), c.Capacity(), want, p.MaxRecord())
		}
	}
	if _, _, err := Create(MaxCapacity + 1); err == nil {
		t.Error("more than there may be: no error")
	}
}

// Records of every size come out unchanged and in order, for any interleaving of both sides. The
// ring is full as often as empty.
func TestOrder(t *testing.T) {
	r := fretest.Rand(t)
	p, c := newRing(t, 8<<10)
	var queue [][]byte
	full, empty := 0, 0
	for range 50000 {
		if r.IntN(2) == 0 {
			n := r.IntN(p.MaxRecord() + 1)
			if r.IntN(4) > 0 {
				n = r.IntN(100)
			}
			b, err := p.TryReserve(n)
			if errors.Is(err, ErrFull) {
				full++
				continue
			}
			if err != nil || len(b) != n || cap(b) != n {
				t.Fatalf("reserve %d: %d bytes, %v", n, len(b), err)
			}
			n = r.IntN(n + 1) // a record may shrink at the commit
			fill(b, r)
			queue = append(queue, bytes.Clone(b[:n]))
			p.Commit(n)
			continue
		}
		records, err := c.TryPeek(1 + r.IntN(5))
		if errors.Is(err, ErrEmpty) {
			if empty++; len(queue) > 0 {
				t.Fatalf("empty with %d records in it", len(queue))
			}
			continue
		}
		if err != nil || len(records) > len(queue) {
			t.Fatalf("%d records of %d, %v", len(records), len(queue), err)
		}
		for i, got := range records {
			if !bytes.Equal(got, queue[i]) {
				t.Fatalf("record %d of %d bytes, want %d others", i, len(got), len(queue[i]))
			}
		}
		n := r.IntN(len(records) + 1)
		c.Release(n)
		queue = queue[n:]
	}
	if full == 0 || empty == 0 {
		t.Errorf("full %d times, empty %d times", full, empty)
	}
}

func fill(b []byte, r *rand.Rand) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// A record of the largest size always fits after any record.
func TestLargest(t *testing.T) {
	p, c := newRing(t, MinCapacity)
	for n := range p.MaxRecord() {
		for _, size := range []int{n, p.MaxRecord()} {
			if err := p.Put(t.Context(), make([]byte, size)); err != nil {
				t.Fatalf("%d bytes after one of %d: %v", size, n, err)
			}
			if b, err := c.Peek(t.Context()); err != nil || len(b) != size {
				t.Fatalf("%d bytes, %v; want %d", len(b), err, size)
			}
			c.Release(1)
		}
	}
	if _, err := p.TryReserve(p.MaxRecord() + 1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := p.TryReserve(-1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestMisuse(t *testing.T) {
	p, c := newRing(t, MinCapacity)
	panics := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		f()
	}
	panics("commit of nothing", func() { p.Commit(0) })
	if _, err := p.TryReserve(10); err != nil {
		t.Fatal(err)
	}
	panics("commit of more", func() { p.Commit(11) })
	p.Commit(10)
	panics("commit again", func() { p.Commit(1) })
	panics("release of nothing", func() { c.Release(1) })
	if err := errors.Join(p.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.TryReserve(1); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Peek(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// A waiting side sleeps until a record or room arrives, its context ends, or the peer is gone.
func TestWaiting(t *testing.T) {
	fretest.CheckLeaks(t)
	asleep := func(e *end) {
		for e.mine.Load() == 0 {
			runtime.Gosched()
		}
	}
	t.Run("for a record", func(t *testing.T) {
		p, c := newRing(t, MinCapacity)
		for i := range 100 {
			done := make(chan error)
			go func() {
				b, err := c.Peek(t.Context())
				if err == nil && (len(b) != 1 || b[0] != byte(i)) {
					err = fmt.Errorf("got %v", b)
				}
				done <- err
			}()
			asleep(&c.end)
			if err := p.Put(t.Context(), []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			c.Release(1)
		}
	})
	t.Run("for room", func(t *testing.T) {
		p, c := newRing(t, MinCapacity)
		for {
			if _, err := p.TryReserve(1000); errors.Is(err, ErrFull) {
				break
			}
			p.Commit(1000)
		}
		done := make(chan error)
		go func() { _, err := p.Reserve(t.Context(), 1000); done <- err }()
		asleep(&p.end)
		if _, err := c.TryPeek(1); err != nil {
			t.Fatal(err)
		}
		c.Release(1)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("until the end of the context", func(t *testing.T) {
		_, c := newRing(t, MinCapacity)
		over := errors.New("over")
		for range 20 { // an end that comes late does not end the next wait
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() { _, err := c.Peek(ctx); done <- err }()
			asleep(&c.end)
			cancel(over)
			if err := <-done; !errors.Is(err, over) {
				t.Fatalf("got %v", err)
			}
			if _, err := c.Peek(ctx); !errors.Is(err, over) {
				t.Fatalf("ended before: got %v", err)
			}
		}
	})
	t.Run("until the producer is gone", func(t *testing.T) {
		p, c := newRing(t, MinCapacity)
		done := make(chan error)
		go func() {
			b, err := c.Peek(t.Context())
			if err != nil || string(b) != "last" {
				err = fmt.Errorf("got %q, %w", b, err)
			} else {
				c.Release(1)
				_, err = c.Peek(t.Context())
			}
			done <- err
		}()
		asleep(&c.end)
		if err := errors.Join(p.Put(t.Context(), []byte("last")), p.Close()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("until the consumer is gone", func(t *testing.T) {
		p, c := newRing(t, MinCapacity)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		for range MinCapacity/100 + 1 {
			if err = p.Put(t.Context(), make([]byte, 100)); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrGone) {
			t.Errorf("got %v", err)
		}
	})
}

// Forward writes the bytes that the records have at the call.
func TestForward(t *testing.T) {
	fretest.CheckLeaks(t)
	p, c := newRing(t, 1<<20)
	near, far := tcpPair(t)
	var want []byte
	for i := range 200 {
		record := bytes.Repeat([]byte{byte(i)}, i)
		want = append(want, record...)
		if err := p.Put(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	sent := 0
	for sent < len(want) {
		n, err := c.Forward(t.Context(), near)
		if err != nil {
			t.Fatal(err)
		}
		sent += int(n)
	}
	for range 1000 { // later records do not change the sent bytes
		if err := p.Put(t.Context(), bytes.Repeat([]byte{255}, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Peek(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Release(1)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("others than were put, %v", err)
	}
	_ = near.Close()
	if err := p.Put(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Forward(t.Context(), near); !errors.Is(err, net.ErrClosed) {
		t.Errorf("to a closed connection: %v", err)
	}
}

// Sendfile and splice of a ring's memory queue references to its pages, so a late receiver gets the
// bytes of later records, over TCP even after the acknowledgement. This is the reason for Forward's
// copy, not a promise.
func TestSpliced(t *testing.T) {
	const size = 16 << 10
	send := map[string]func(out, memory int, from int64) (int, error){
		"sendfile": func(out, memory int, from int64) (int, error) {
			return unix.Sendfile(out, memory, &from, size)
		},
		"splice": func(out, memory int, from int64) (int, error) {
			var pipe [2]int
			if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
				return 0, err
			}
			defer unix.Close(pipe[0])
			defer unix.Close(pipe[1])
			n, err := unix.Splice(memory, &from, pipe[1], nil, size, 0)
			if err != nil {
				return 0, err
			}
			m, err := unix.Splice(pipe[0], nil, out, nil, int(n), 0)
			return int(m), err
		},
	}
	for name, send := range send {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			p, c := newRing(t, 64<<10)
			near, far := tcpPair(t)
			if err := p.Put(t.Context(), bytes.Repeat([]byte("a"), size)); err != nil {
				t.Fatal(err)
			}
			record, err := c.Peek(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			raw, err := near.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			memory, err := c.memory.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var n int
			var failed error
			err = memory.Control(func(m uintptr) {
				_ = raw.Control(func(out uintptr) { n, failed = send(int(out), int(m), dataAt+lengthLen) })
			})
			if err := errors.Join(err, failed); err != nil || n == 0 {
				t.Fatalf("%d bytes, %v", n, err)
			}
			if record[0] != 'a' {
				t.Fatalf("the record begins with %q", record[0])
			}
			c.Release(1) // too early
			for range 4 {
				if err := p.Put(t.Context(), bytes.Repeat([]byte("b"), size)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Peek(t.Context()); err != nil {
					t.Fatal(err)
				}
				c.Release(1)
			}
			got := make([]byte, n)
			if _, err := io.ReadFull(far, got); err != nil {
				t.Fatal(err)
			}
			wrong := n - bytes.Count(got, []byte("a"))
			t.Logf("%d of %d bytes are others'", wrong, n)
			if wrong == 0 {
				t.Error("what was sent came whole: this kernel copies, and the reason is gone")
			}
		})
	}
}

func tcpPair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// startChild starts this test binary with an end of a Unix socket pair as fd 3.
func startChild(t testing.TB, kind string, more ...*os.File) (*net.UnixConn, *exec.Cmd) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "own"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(own)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+kind)
	cmd.ExtraFiles = append([]*os.File{theirs}, more...)
	cmd.Stderr = os.Stderr
	err = cmd.Start()
	_, _ = own.Close(), theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UnixConn), cmd
}

// child is the peer process.
func child(kind string) error {
	f, err := net.FileConn(os.NewFile(3, "conn"))
	if err != nil {
		return err
	}
	conn := f.(*net.UnixConn)
	ctx := context.Background()
	switch kind {
	case "echo": // returns every record
		in, err := Receive(conn)
		if err != nil {
			return err
		}
		c, err := NewConsumer(in)
		if err != nil {
			return err
		}
		out, err := Receive(conn)
		if err != nil {
			return err
		}
		p, err := NewProducer(out)
		if err != nil {
			return err
		}
		for {
			record, err := c.Peek(ctx)
			if errors.Is(err, io.EOF) {
				return errors.Join(p.Close(), c.Close())
			}
			if err == nil {
				err = p.Put(ctx, record)
			}
			if err != nil {
				return err
			}
			c.Release(1)
		}
	case "sink": // reads the announced number of bytes, then reports
		in, err := Receive(conn)
		if err != nil {
			return err
		}
		c, err := NewConsumer(in)
		if err != nil {
			return err
		}
		left, err := told(conn)
		if err != nil {
			return err
		}
		for sum := uint64(0); left > 0; {
			records, err := c.PeekMany(ctx, forwarded)
			if err != nil {
				return err
			}
			for _, r := range records {
				sum += touch(r)
				left -= len(r)
			}
			c.Release(len(records))
		}
		_, err = conn.Write([]byte{1})
		return err
	case "stream": // reads the same from fd 4 or from the connection itself
		var from io.Reader = conn
		left, err := told(conn)
		if err != nil {
			return err
		}
		if os.Getenv(childEnv+"_PIPE") != "" {
			from = os.NewFile(4, "pipe")
		}
		buf := make([]byte, 256<<10)
		for sum := uint64(0); left > 0; {
			n, err := from.Read(buf)
			if err != nil {
				return err
			}
			sum += touch(buf[:n])
			left -= n
		}
		_, err = conn.Write([]byte{1})
		return err
	}
	return errors.New("what?")
}

func told(conn io.Reader) (int, error) {
	var b [8]byte
	_, err := io.ReadFull(conn, b[:])
	return int(binary.NativeEndian.Uint64(b[:])), err
}

// touch reads each line of the cache.
func touch(b []byte) (sum uint64) {
	for i := 0; i < len(b); i += 64 {
		sum += uint64(b[i])
	}
	return sum
}

// Two processes exchange records by rings sent over a socket.
func TestProcesses(t *testing.T) {
	fretest.CheckLeaks(t)
	r := fretest.Rand(t)
	conn, cmd := startChild(t, "echo")
	mine, theirs, err := Create(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	back, mineBack, err := Create(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Send(conn, theirs), Send(conn, back), theirs.Close(), back.Close()); err != nil {
		t.Fatal(err)
	}
	p, err := NewProducer(mine)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewConsumer(mineBack)
	if err != nil {
		t.Fatal(err)
	}
	sizes := make([]int, 5000)
	for i := range sizes {
		sizes[i] = r.IntN(3000)
	}
	seed := r.Uint64()
	done := make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(seed, 0))
		for _, n := range sizes {
			b, err := p.Reserve(t.Context(), n)
			if err != nil {
				done <- err
				return
			}
			fill(b, r)
			p.Commit(n)
		}
		done <- p.Close()
	}()
	again := rand.New(rand.NewPCG(seed, 0))
	for i, n := range sizes {
		got, err := c.Peek(t.Context())
		if err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		want := make([]byte, n)
		if fill(want, again); !bytes.Equal(got, want) {
			t.Fatalf("record %d: %d bytes, want %d others", i, len(got), n)
		}
		c.Release(1)
	}
	if _, err := c.Peek(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
	if err := errors.Join(<-done, c.Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
}

// The death of the peer process ends all waits.
func TestProcessDies(t *testing.T) {
	fretest.CheckLeaks(t)
	conn, cmd := startChild(t, "sink")
	mine, theirs, err := Create(MinCapacity)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Send(conn, theirs), theirs.Close()); err != nil {
		t.Fatal(err)
	}
	p, err := NewProducer(mine)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		for { // the peer consumes only after the announcement
			if err := p.Put(t.Context(), make([]byte, 100)); err != nil {
				done <- err
				return
			}
		}
	}()
	for p.mine.Load() == 0 {
		runtime.Gosched()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
	_ = cmd.Wait()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// carrier is a way to carry records to another process.
type carrier struct {
	conn *net.UnixConn // connection to the process
	put  func(record []byte) error
	end  func() error
}

func ringCarrier(b *testing.B) carrier {
	b.Helper()
	conn, cmd := startChild(b, "sink")
	mine, theirs, err := Create(1 << 20)
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(Send(conn, theirs), theirs.Close()); err != nil {
		b.Fatal(err)
	}
	p, err := NewProducer(mine)
	if err != nil {
		b.Fatal(err)
	}
	return carrier{
		conn, func(record []byte) error { return p.Put(b.Context(), record) },
		func() error { return errors.Join(p.Close(), cmd.Wait()) },
	}
}

func socketCarrier(b *testing.B) carrier {
	b.Helper()
	conn, cmd := startChild(b, "stream")
	return carrier{conn, func(record []byte) error { _, err := conn.Write(record); return err }, cmd.Wait}
}

func pipeCarrier(b *testing.B) carrier {
	b.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv(childEnv+"_PIPE", "1")
	conn, cmd := startChild(b, "stream", r)
	return carrier{
		conn, func(record []byte) error { _, err := w.Write(record); return err },
		func() error { return errors.Join(r.Close(), w.Close(), cmd.Wait()) },
	}
}

// The benchmark carries records to another process that reads them: by a ring with a copy of each
// record, a Unix socket, and a pipe without framing.
func BenchmarkPass(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		record := bytes.Repeat([]byte{1}, size)
		for _, peer := range []struct {
			name  string
			start func(*testing.B) carrier
		}{{"ring", ringCarrier}, {"socket", socketCarrier}, {"pipe", pipeCarrier}} {
			b.Run(peer.name+"/"+strconv.Itoa(size), func(b *testing.B) {
				c := peer.start(b)
				if err := c.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
					b.Fatal(err)
				}
				if _, err := c.conn.Write(binary.NativeEndian.AppendUint64(nil, uint64(b.N*size))); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N { // b.Loop does not tell the number of rounds in advance
					if err := c.put(record); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := io.ReadFull(c.conn, make([]byte, 1)); err != nil { // all records have arrived
					b.Fatal(err)
				}
				b.StopTimer()
				if err := c.end(); err != nil {
					b.Error(err)
				}
			})
		}
	}
}
