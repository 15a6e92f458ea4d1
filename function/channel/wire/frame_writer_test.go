package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// messages connects a Writer to a socket that keeps the boundaries of messages.
func messages(t *testing.T) (*Writer, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	sends, received := ends[0], ends[1]
	done, wg := make(chan struct{}), &sync.WaitGroup{}
	t.Cleanup(wg.Wait)
	w, err := NewWriter(sends, done, wg, func(err error) { t.Errorf("the channel ended: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return w, received
}

// TestFramesCoalesced: frames of goroutines on one thread leave together. The frames of a single
// goroutine leave one by one, at once.
func TestFramesCoalesced(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w, received := messages(t)
	w.skips, w.skipped = 0, 0
	const senders = 40
	var wg sync.WaitGroup
	for i := 1; i < senders; i++ {
		wg.Go(func() {
			if err := w.Send(context.Background(), KindResponse, 0, uint64(i), []byte("meta"), bytes.Repeat([]byte{byte(i)}, 100*i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := w.Send(context.Background(), KindCancel, 0, senders, nil, nil); err != nil {
		t.Fatal(err)
	}
	seen, sent, buf := map[uint64]bool{}, 0, make([]byte, 1<<20)
	for !seen[senders] {
		n, err := received.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		sent++
		if n > mostCoalesced+smallFrame+100 {
			t.Errorf("%d bytes went out together", n)
		}
		for r := newReader(bytes.NewReader(buf[:n])); ; {
			h, p, err := r.Next()
			if err == io.EOF { //nolint:errorlint // as it is
				break
			}
			if err != nil || seen[h.ID] {
				t.Fatalf("frame %+v, seen %t: %v", h, seen[h.ID], err)
			}
			seen[h.ID] = true
			if h.ID == senders {
				continue
			}
			if _, body, err := Split(p); err != nil || !bytes.Equal(body, bytes.Repeat([]byte{byte(h.ID)}, 100*int(h.ID))) {
				t.Errorf("frame %d: %d bytes, %v", h.ID, len(body), err)
			}
		}
	}
	if len(seen) != senders || sent > senders/2 {
		t.Errorf("%d frames came by %d messages", len(seen), sent)
	}

	w, received = messages(t)
	w.skips, w.skipped = 0, 0
	for range 2 * mostSkips {
		if err := w.Send(context.Background(), KindInvoke, 0, 1, []byte("meta"), nil); err != nil {
			t.Fatal(err)
		}
		if n, err := received.Read(buf); err != nil || n != HeaderSize+8 {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if w.skipped != mostSkips {
		t.Errorf("after frames that nobody joined, %d are sent at once; want %d", w.skipped, mostSkips)
	}
}

// TestFramesNotCoalesced: an answer does not wait for computing goroutines.
func TestFramesNotCoalesced(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w, received := messages(t)
	w.skips, w.skipped = 0, 0
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() { // computes
			}
		})
	}
	slow, buf := 0, make([]byte, 1<<10)
	for range mostSkips {
		began := time.Now()
		if err := w.Send(context.Background(), KindResponse, 0, 1, []byte("meta"), nil); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > 5*time.Millisecond { // less than the scheduler gives each goroutine
			slow++
		}
		if _, err := received.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if w.skipped < mostSkips/2 {
		t.Errorf("after %d frames, of which %d were late, %d are sent at once", mostSkips, slow, w.skipped)
	}
}
