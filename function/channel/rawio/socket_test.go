package rawio

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// socketPair returns a connected pair of blocking Unix stream sockets.
func socketPair(t testing.TB) (a, b int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		t.Cleanup(func() { _ = unix.Close(fd) }) // a test may have closed fd
	}
	return fds[0], fds[1]
}

// TestSendRecv: head and body arrive in order, by raw calls and by ordinary calls.
func TestSendRecv(t *testing.T) {
	for _, tc := range []struct {
		name       string
		head, body int
	}{
		{"nothing in the body", 5, 0},
		{"nothing in the head", 0, 5},
		{"both", 20, 4097},
		{"as much as a raw call moves", 1, rawBytes - 1},
		{"more than a raw call moves", 1, rawBytes},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := socketPair(t)
			head, body := bytes.Repeat([]byte{'h'}, tc.head), bytes.Repeat([]byte{'b'}, tc.body)
			n, err := Send(a, [][]byte{head, body}, nil, 0)
			if err != nil || n != tc.head+tc.body {
				t.Fatalf("sent %d, %v; want %d", n, err, tc.head+tc.body)
			}
			var got []byte
			for len(got) < n {
				p := make([]byte, n+1)
				m, oobn, flags, err := Recv(b, p, nil, 0)
				if err != nil || oobn != 0 || flags&^unix.MSG_CMSG_CLOEXEC != 0 || m == 0 {
					t.Fatalf("received %d, %d, flags %#x, %v", m, oobn, flags, err)
				}
				got = append(got, p[:m]...)
			}
			if want := append(head, body...); !bytes.Equal(got, want) {
				t.Errorf("received %d bytes of others", len(got))
			}
		})
	}
}

// TestSendParts: Send sends any number of parts.
func TestSendParts(t *testing.T) {
	for _, count := range []int{0, 1, maxParts, maxParts + 1, gathered, gathered + 1, 100} {
		a, b := socketPair(t)
		parts := make([][]byte, count)
		for i := range parts {
			parts[i] = []byte{byte(i)}
		}
		want := bytes.Join(parts, nil)
		if n, err := Send(a, parts, nil, 0); n != count || err != nil {
			t.Errorf("%d parts: sent %d, %v", count, n, err)
			continue
		}
		p := make([]byte, 200)
		if n, _, _, err := Recv(b, p, nil, 0); count > 0 && (err != nil || !bytes.Equal(p[:n], want)) {
			t.Errorf("%d parts: received %v, %v", count, p[:n], err)
		}
	}
}

// TestSendRecvNeverWait: Send and Recv never wait, not even on blocking sockets.
func TestSendRecvNeverWait(t *testing.T) {
	for _, size := range []int{1, rawBytes + 1} {
		a, b := socketPair(t)
		if n, _, _, err := Recv(b, make([]byte, size), nil, 0); !errors.Is(err, unix.EAGAIN) || n != 0 {
			t.Errorf("from an empty socket into %d bytes: %d, %v", size, n, err)
		}
		for sent := 0; ; sent++ {
			n, err := Send(a, [][]byte{make([]byte, size)}, nil, 0)
			if errors.Is(err, unix.EAGAIN) && n == 0 {
				break
			}
			if err != nil || n == 0 || sent > 1<<20 {
				t.Fatalf("%d of %d bytes into a socket nobody reads: %v", n, size, err)
			}
		}
		if err := unix.Close(b); err != nil {
			t.Fatal(err)
		}
		n, err := Send(a, [][]byte{make([]byte, size)}, nil, 0)
		if errors.Is(err, unix.ECONNRESET) { // returned once, for the unread bytes
			n, err = Send(a, [][]byte{make([]byte, size)}, nil, 0)
		}
		if !errors.Is(err, unix.EPIPE) || n != 0 {
			t.Errorf("%d bytes to nobody: %d, %v", size, n, err)
		}
	}
}

// TestRecvEnd: the end of the stream is not an error.
func TestRecvEnd(t *testing.T) {
	a, b := socketPair(t)
	if err := unix.Close(a); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, rawBytes + 1} {
		if n, _, _, err := Recv(b, make([]byte, size), nil, 0); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
}

// TestSendRights: Send passes a file descriptor along.
func TestSendRights(t *testing.T) {
	a, b := socketPair(t)
	fd, err := unix.MemfdCreate("along", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if n, err := Send(a, [][]byte{[]byte("x")}, unix.UnixRights(fd), 0); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, err := Recv(b, make([]byte, 8), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%v, %v", messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%v, %v", fds, err)
	}
	defer unix.Close(fds[0])
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		t.Errorf("mode %#o, %v", st.Mode, err)
	}
}

// TestSendRecvAllocate: a message allocates no memory.
func TestSendRecvAllocate(t *testing.T) {
	a, b := socketPair(t)
	parts := [][]byte{[]byte("head"), []byte(strings.Repeat("b", 1000))}
	p, oob := make([]byte, 16<<10), make([]byte, unix.CmsgSpace(8))
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := Send(a, parts, nil, 0); err != nil {
			t.Error(err)
		}
		if _, _, _, err := Recv(b, p, oob, unix.MSG_CMSG_CLOEXEC); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
