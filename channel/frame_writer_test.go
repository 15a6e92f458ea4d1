package channel

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// messages connects a frameWriter to a socket that keeps apart what is sent apart.
func messages(t *testing.T) (w *frameWriter, received *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	done, wg := make(chan struct{}), &sync.WaitGroup{}
	t.Cleanup(wg.Wait)
	w, err = newFrameWriter(ends[0], done, wg, func(err error) { t.Errorf("the channel ended: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return w, ends[1]
}

// TestFramesGathered: what goroutines of one thread send goes out together; of one
// goroutine each frame goes out by itself, at once.
func TestFramesGathered(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w, received := messages(t)
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
		if n > mostGather+small+100 {
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
	for range 500 {
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
