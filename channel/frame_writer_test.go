package channel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// messages connects a frameWriter to a socket that keeps apart what is sent apart.
func messages(t *testing.T) (*frameWriter, *net.UnixConn) {
	t.Helper()
	sends, received := fretest.SocketPair(t, unix.SOCK_SEQPACKET)
	done, wg := make(chan struct{}), &sync.WaitGroup{}
	t.Cleanup(wg.Wait)
	w, err := newFrameWriter(sends, done, wg, func(err error) { t.Errorf("the channel ended: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return w, received
}

// TestFramesCoalesced: what goroutines of one thread send goes out together; of one
// goroutine each frame goes out by itself, at once.
func TestFramesCoalesced(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w, received := messages(t)
	w.skips, w.skipped = 0, 0
	const senders = 40
	var wg sync.WaitGroup
	for i := 1; i < senders; i++ {
		wg.Go(func() {
			if err := w.send(context.Background(), kindResponse, 0, uint64(i), []byte("meta"), bytes.Repeat([]byte{byte(i)}, 100*i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := w.send(context.Background(), kindCancel, 0, senders, nil, nil); err != nil {
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
		for r := newFrameReader(bytes.NewReader(buf[:n])); ; {
			h, p, err := r.next()
			if err == io.EOF { //nolint:errorlint // as it is
				break
			}
			if err != nil || seen[h.id] {
				t.Fatalf("frame %+v, seen %t: %v", h, seen[h.id], err)
			}
			seen[h.id] = true
			if h.id == senders {
				continue
			}
			if _, body, err := split(p); err != nil || !bytes.Equal(body, bytes.Repeat([]byte{byte(h.id)}, 100*int(h.id))) {
				t.Errorf("frame %d: %d bytes, %v", h.id, len(body), err)
			}
		}
	}
	if len(seen) != senders || sent > senders/2 {
		t.Errorf("%d frames came by %d messages", len(seen), sent)
	}

	w, received = messages(t)
	w.skips, w.skipped = 0, 0
	for range 2 * mostSkips {
		if err := w.send(context.Background(), kindInvoke, 0, 1, []byte("meta"), nil); err != nil {
			t.Fatal(err)
		}
		if n, err := received.Read(buf); err != nil || n != headerSize+8 {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if w.skipped != mostSkips {
		t.Errorf("after frames that nobody joined, %d are sent at once; want %d", w.skipped, mostSkips)
	}
}

// TestFramesNotCoalesced: nobody's answer waits for those who compute.
func TestFramesNotCoalesced(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w, received := messages(t)
	w.skips, w.skipped = 0, 0
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() { // it computes
			}
		})
	}
	slow, buf := 0, make([]byte, 1<<10)
	for range mostSkips {
		began := time.Now()
		if err := w.send(context.Background(), kindResponse, 0, 1, []byte("meta"), nil); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > 5*time.Millisecond { // less than the scheduler gives each of them
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

// TestCoalescedEvents: events that go out together are each answered by its own, whatever
// is large among them, cancelled, or under way when the channel ends.
func TestCoalescedEvents(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := serve(t, Config{}, echo)
	c.w.skips, c.w.skipped = 0, 0
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for n := range 100 {
				size := (i*100 + n) * 7919 % 100_000
				if n%10 > 0 {
					size %= 2 * smallFrame
				}
				ctx, cancel := context.WithCancel(t.Context())
				if n%7 == 0 {
					go cancel()
				}
				body := pattern(size)
				r, err := c.Invoke(ctx, &Invocation{Path: "/"}, bytes.NewReader(body))
				if err == nil {
					var got []byte
					if got, err = io.ReadAll(r.Body); err == nil && !bytes.Equal(got, body) {
						t.Errorf("%d bytes came back of %d, or others", len(got), len(body))
					}
					_ = r.Body.Close()
				}
				if err != nil && (n%7 > 0 || !errors.Is(err, context.Canceled)) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for range 32 {
		wg.Go(func() {
			for {
				r, err := c.Invoke(t.Context(), &Invocation{Path: "/"}, nil)
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				_ = r.Body.Close()
			}
		})
	}
	time.Sleep(50 * time.Millisecond) //nolint:forbidigo // they are at it
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
