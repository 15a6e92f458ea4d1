package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// filesFrame encodes FD or FILE by hand, in the layout of the protocol's page.
func filesFrame(k byte, id uint64, where string) string {
	f := frame(k, 0, id, withMeta(`{"status":200,"headers":[]}`, where))
	if k == 0x20 {
		f = f[:6] + "\x01" + f[7:]
	}
	return f
}

// mostWhole is the longest body of known length that a function in Go sends in RESPONSE.
const mostWhole = 256 << 10

// part is one message of a hostile function.
type part struct {
	bytes string
	fds   []int
}

// sendParts sends parts one by one; the engine may hang up at any part.
func sendParts(conn *net.UnixConn, parts ...part) {
	for _, p := range parts {
		var oob []byte
		if len(p.fds) > 0 {
			oob = unix.UnixRights(p.fds...)
		}
		if _, _, err := conn.WriteMsgUnix([]byte(p.bytes), oob, nil); err != nil {
			return
		}
	}
}

// hostile starts one invocation of a function that is READY and played by the test.
func hostile(t testing.TB, cfg Config) (c *Conn, theirs *net.UnixConn, reply func() (*Reply, error)) {
	t.Helper()
	a, b := pair(t)
	c = NewConn(a, cfg)
	t.Cleanup(func() { _, _ = c.Close(), b.Close() })
	type result struct {
		r   *Reply
		err error
	}
	got := make(chan result, 1)
	go func() {
		r, err := c.Invoke(context.Background(), &Invocation{})
		got <- result{r, err}
	}()
	if _, _, err := reader(t, b).Next(); err != nil { // INVOKE has arrived
		t.Fatal(err)
	}
	sendParts(b, part{bytes: frame(1, 0, 0, readyJSON)})
	return c, b, func() (*Reply, error) { r := <-got; return r.r, r.err }
}

// memfd returns a memfd with this content and these seals.
func memfd(t testing.TB, content []byte, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("answer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "answer")
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	addSeals(t, f, seals)
	return f
}

func addSeals(t testing.TB, f *os.File, seals int) {
	t.Helper()
	if seals != 0 {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
}

func fdOf(t testing.TB, f *os.File, err error) int {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

// readReply reads all of an answer, and reads an answer in a file twice.
func readReply(t testing.TB, r *Reply) []byte {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	if r.File != nil {
		file, err := io.ReadAll(io.NewSectionReader(r.File, r.Offset, r.Length))
		if err != nil || !bytes.Equal(file, body) {
			t.Errorf("File has %d bytes, %v; not the %d of Body", len(file), err, len(body))
		}
	}
	if int64(len(body)) != r.Length {
		t.Errorf("%d bytes, Length says %d", len(body), r.Length)
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	return body
}

// TestFileAnswers: a function in Go gives some answers in files, and every answer is complete.
func TestFileAnswers(t *testing.T) {
	fretest.CheckLeaks(t)
	want := pattern(3 << 20)
	sealed, err := fn.Seal(want)
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()
	open := memfd(t, want, 0)
	handler := func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		var offset, length int64
		_, _ = fmt.Sscan(e.Query, &offset, &length)
		a := &fn.Answer{Status: 206, Body: bytes.NewReader(want[offset : offset+length]), Offset: offset, Length: length}
		switch e.Path {
		case "/sealed":
			a.File = sealed
		case "/open":
			a.File = open
		case "/closed":
			a.File = os.NewFile(1<<20, "closed")
		}
		return a, nil
	}
	for _, engine := range []string{"takes files", "takes none"} {
		t.Run(engine, func(t *testing.T) {
			files := engine == "takes files"
			t.Setenv("FRE_FILES", map[bool]string{true: "/tmp"}[files])
			c := serve(t, Config{}, handler)
			for _, tt := range []struct {
				path           string
				offset, length int
				file           bool
			}{
				{"/bytes", 0, wire.Chunk, false},
				{"/bytes", 0, wire.Chunk + 1, false},
				{"/bytes", 0, mostWhole, false},
				{"/bytes", 0, mostWhole + 1, true},
				{"/bytes", 5, 2 << 20, true},
				{"/sealed", 0, len(want), true},
				{"/sealed", 77, 1000, true},
				{"/sealed", 0, 0, true},
				{"/sealed", len(want), 0, true},
				{"/open", 1, 1 << 20, false},
			} {
				r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: tt.path, Query: fmt.Sprint(tt.offset, tt.length)}})
				if err != nil {
					t.Fatal(err)
				}
				if got := r.File != nil; got != (tt.file && files) {
					t.Errorf("%+v: in a file: %v", tt, got)
				}
				if r.Status != 206 {
					t.Errorf("%+v: status %d", tt, r.Status)
				}
				if r.Length < 0 { // as DATA
					r.Length = int64(tt.length)
				}
				if got := readReply(t, r); !bytes.Equal(got, want[tt.offset:tt.offset+tt.length]) {
					t.Errorf("%+v: %d other bytes", tt, len(got))
				}
			}
		})
	}
}

// TestFileKept: an answer in a file outlives the channel, and the body's reader ends with the
// event.
func TestFileKept(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Setenv("FRE_FILES", "/tmp")
	want := pattern(1 << 20)
	var held, released atomic.Int64
	c := serve(t, Config{Hold: func(h Held) (func(), bool, error) {
		held.Add(h.Bytes)
		return func() { released.Add(h.Bytes) }, false, nil
	}}, func(context.Context, *fn.Event) (*fn.Answer, error) {
		return &fn.Answer{Body: bytes.NewReader(want)}, nil
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("client gone")
	first, err := c.Invoke(ctx, &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Invoke(t.Context(), &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, first.Body, 1000); err != nil {
		t.Error(err)
	}
	cancel(cause)
	if _, err := first.Body.Read(make([]byte, 1)); !errors.Is(err, cause) {
		t.Errorf("read after the event's end: %v", err)
	}
	if _, err := first.File.ReadAt(make([]byte, 1), 0); err != nil {
		t.Errorf("the file was closed by another than the body's Close: %v", err)
	}
	for range 2 {
		if err := first.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := first.Body.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("read after Close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := readReply(t, second); !bytes.Equal(got, want) {
		t.Error("other bytes after the channel's end")
	}
	if held.Load() != 2<<20 || released.Load() != 2<<20 {
		t.Errorf("held %d bytes, released %d; want both answers", held.Load(), released.Load())
	}
}

// TestKeptFiles: a sealed file that a function gives again is named instead of sent. A file in the
// place of an earlier file is not confused with the earlier file, even under concurrency. No file
// stays open.
func TestKeptFiles(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Setenv("FRE_FILES", "/tmp")
	var bodies [KeptFiles + 3][]byte
	var files [len(bodies)]*os.File
	for i := range files {
		bodies[i] = bytes.Repeat([]byte{byte('a' + i)}, 1000+i)
		f, err := fn.Seal(bodies[i])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	handler := func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		i := int(e.Path[0] - 'a')
		return &fn.Answer{Body: bytes.NewReader(bodies[i]), File: files[i], Length: int64(len(bodies[i])), Sealed: true}, nil
	}
	for _, kept := range []string{"", "3", "8", "9999"} {
		t.Run("FRE_KEPT_FILES="+kept, func(t *testing.T) {
			fretest.CheckLeaks(t)
			t.Setenv("FRE_KEPT_FILES", kept)
			c := serve(t, Config{}, handler)
			ask := func(i int) *os.File {
				t.Helper()
				r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: string(rune('a' + i))}})
				if err != nil {
					t.Error(err)
					return nil
				}
				if r.File == nil {
					t.Errorf("file %d is copied", i)
				}
				file := r.File
				if got := readReply(t, r); !bytes.Equal(got, bodies[i]) {
					t.Errorf("%q in place of file %d", got[:1], i)
				}
				return file
			}
			seen := map[*os.File]bool{}
			for range 10 {
				for i := range 3 {
					seen[ask(i)] = true
				}
			}
			for i := range 10 {
				seen[ask(i%2)] = true
			}
			if kept != "" && len(seen) != 3 {
				t.Errorf("%d files were opened for 3", len(seen))
			}
			if kept == "" && len(seen) != 40 {
				t.Errorf("%d files were opened for 40 answers", len(seen))
			}
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					for n := range 200 {
						ask((n*(w+1) + w) % len(files))
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestKeptFileOutlives: an answer in a kept file outlives the file's number and the channel.
func TestKeptFileOutlives(t *testing.T) {
	fretest.CheckLeaks(t)
	a, b := memfd(t, pattern(1000), wire.AnswerSeals), memfd(t, pattern(2000), wire.AnswerSeals)
	c, theirs, reply := hostile(t, Config{})
	next := func() *Reply {
		t.Helper()
		r, err := reply()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	again := func(frame string, fds ...int) *Reply {
		t.Helper()
		got := make(chan *Reply, 1)
		go func() {
			r, err := c.Invoke(t.Context(), &Invocation{})
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		f := reader(t, theirs)
		for {
			h, _, err := f.Next()
			if err != nil {
				t.Fatal(err)
			}
			if h.Kind == wire.KindInvoke && h.ID > 1 {
				break
			}
		}
		sendParts(theirs, part{frame, fds})
		return <-got
	}
	sendParts(theirs, part{filesFrame(0x20, 1, `{"offset":0,"length":1000,"kept":8}`), []int{int(a.Fd())}})
	first := next()
	named := filesFrame(0x20, 2, `{"offset":10,"length":990,"kept":8}`)
	second := again(named[:6] + "\x00" + named[7:])
	third := again(filesFrame(0x20, 3, `{"offset":0,"length":2000,"kept":8}`), int(b.Fd()))
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for i, tt := range []struct {
		r    *Reply
		want []byte
	}{{first, pattern(1000)}, {second, pattern(1000)[10:]}, {third, pattern(2000)}} {
		if got := readReply(t, tt.r); !bytes.Equal(got, tt.want) {
			t.Errorf("answer %d has %d other bytes", i, len(got))
		}
	}
}

// TestFileGrows: a memfd that may still grow is held without a bound, because its present size does
// not limit its later size.
func TestFileGrows(t *testing.T) {
	fretest.CheckLeaks(t)
	const size = 1 << 20
	sparse := func(seals int) *os.File {
		f := memfd(t, nil, 0)
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		addSeals(t, f, seals)
		return f
	}
	for name, tt := range map[string]struct {
		file  *os.File
		mount int64
	}{
		"sealed":                 {memfd(t, pattern(size), wire.AnswerSeals), 0},
		"not sealed":             {memfd(t, pattern(size), 0), math.MaxInt64},
		"not against all growth": {memfd(t, pattern(size), unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE), math.MaxInt64},
		"empty":                  {sparse(0), math.MaxInt64},
		"empty, sealed":          {sparse(wire.AnswerSeals), math.MaxInt64}, // fallocate(2) could still fill the file
	} {
		t.Run(name, func(t *testing.T) {
			var got Held
			_, theirs, reply := hostile(t, Config{Hold: func(h Held) (func(), bool, error) {
				got = h
				return func() {}, false, nil
			}})
			sendParts(theirs, part{bytes: filesFrame(0x20, 1, fmt.Sprintf(`{"offset":0,"length":%d}`, size)), fds: []int{int(tt.file.Fd())}})
			r, err := reply()
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Body.Close(); err != nil {
				t.Error(err)
			}
			if got.Mount != tt.mount {
				t.Errorf("held: %+v, want %d of its file system", got, tt.mount)
			}
		})
	}
}

// TestFinishedOnce: an answer in a file frees the function's slot only once, even if the channel
// ends meanwhile.
func TestFinishedOnce(t *testing.T) {
	fretest.CheckLeaks(t)
	good := memfd(t, pattern(1000), wire.AnswerSeals)
	ours, theirs := pair(t)
	var c *Conn
	var n atomic.Int32
	made := make(chan struct{})
	c = NewConn(ours, Config{Hold: func(Held) (func(), bool, error) {
		<-made
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			c.fail(ErrClosed)
		}()
		<-finished // the events of the channel have ended
		return func() {}, true, nil
	}})
	close(made)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err := c.Invoke(context.Background(), &Invocation{Finished: func() { n.Add(1) }})
		if err == nil {
			err = r.Body.Close()
		} else if errors.Is(err, ErrClosed) {
			err = nil
		}
		if err != nil {
			t.Error(err)
		}
	}()
	if _, _, err := reader(t, theirs).Next(); err != nil {
		t.Fatal(err)
	}
	sendParts(theirs, part{bytes: frame(1, 0, 0, readyJSON)},
		part{filesFrame(0x20, 1, `{"offset":0,"length":1000}`), []int{int(good.Fd())}})
	<-done
	_ = c.Close()
	if got := n.Load(); got != 1 {
		t.Errorf("Finished was called %d times", got)
	}
}

// TestFilesInARow: the descriptors of successive frames stay with their frames, at any end of the
// reader's buffer.
func TestFilesInARow(t *testing.T) {
	fretest.CheckLeaks(t)
	var files [3]*os.File
	for i := range files {
		files[i] = memfd(t, bytes.Repeat([]byte{byte('a' + i)}, 1000), wire.AnswerSeals)
	}
	shell := frame(9, 0, 0, `{"level":"info","message":""}`)
	whole := len(filesFrame(0x20, 1, `{"offset":0,"length":1000}`))
	for before := 0; before <= 3*whole+1; before += 7 {
		blocked, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		ours, theirs := pair(t)
		c := NewConn(ours, Config{Log: func(string, string, string) {
			once.Do(func() {
				close(blocked)
				<-release
			})
		}})
		var wg sync.WaitGroup
		for range files {
			wg.Go(func() {
				r, err := c.Invoke(t.Context(), &Invocation{})
				if err != nil {
					t.Errorf("%d bytes before the buffer's end: %v", before, err)
					return
				}
				if body := readReply(t, r); len(bytes.Trim(body, string(body[:1]))) > 0 {
					t.Errorf("%d bytes before the buffer's end: bytes of two files", before)
				}
			})
		}
		f := reader(t, theirs)
		for range files {
			if _, _, err := f.Next(); err != nil {
				t.Fatal(err)
			}
		}
		sendParts(theirs, part{bytes: frame(1, 0, 0, readyJSON) + shell})
		<-blocked
		sendParts(theirs, part{bytes: frame(9, 0, 0, `{"level":"info","message":"`+strings.Repeat("x", 16<<10-len(shell)-before)+`"}`)})
		for i, file := range files {
			sendParts(theirs, part{filesFrame(0x20, uint64(i+1), `{"offset":0,"length":1000}`), []int{int(file.Fd())}})
		}
		close(release)
		wg.Wait()
		_ = c.Close()
		_ = theirs.Close()
	}
}

// unsure is a body whose Len is the length so far.
type unsure struct{ left, have int }

func (u *unsure) Len() int { return u.have }

func (u *unsure) Read(p []byte) (int, error) {
	if u.left == 0 {
		return 0, io.EOF
	}
	if u.have == 0 {
		u.have = min(32<<10, u.left)
	}
	n := min(len(p), u.have)
	u.have -= n
	u.left -= n
	return n, nil
}

// TestUnsureLength: the channel does not trust a body's Len.
func TestUnsureLength(t *testing.T) {
	fretest.CheckLeaks(t)
	const length = 200 << 10
	c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) {
		return &fn.Answer{Body: &unsure{left: length}}, nil
	})
	r, err := c.Invoke(t.Context(), &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r.Body); len(got) != length || err != nil {
		t.Errorf("%d bytes of %d, %v", len(got), length, err)
	}
	_ = r.Body.Close()
}

// TestFileRefused: an engine at its limit refuses further answers in files, with the reason.
func TestFileRefused(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Setenv("FRE_FILES", "/tmp")
	full := errors.New("enough")
	c := serve(t, Config{Hold: func(Held) (func(), bool, error) { return nil, false, full }}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		return &fn.Answer{Body: bytes.NewReader(pattern(len(e.Path) << 20))}, nil
	})
	for range 2 {
		finished := make(chan struct{})
		_, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: "/"}, Finished: func() { close(finished) }})
		if !errors.Is(err, full) {
			t.Errorf("got %v, want what Hold said", err)
		}
		<-finished
	}
	r, err := c.Invoke(t.Context(), &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	readReply(t, r)
}

// TestFilePlace: if answers hold much memory, the function's slot stays taken until the answer is
// read or the event has ended.
func TestFilePlace(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Setenv("FRE_FILES", "/tmp")
	full := false
	c := serve(t, Config{Hold: func(Held) (func(), bool, error) { return func() {}, full, nil }}, func(context.Context, *fn.Event) (*fn.Answer, error) {
		return &fn.Answer{Body: bytes.NewReader(pattern(1 << 20))}, nil
	})
	for _, tt := range []struct {
		name string
		full bool
		end  func(r *Reply, cancel func())
	}{
		{"free at once", false, nil},
		{"close", true, func(r *Reply, _ func()) { _ = r.Body.Close() }},
		{"cancel", true, func(_ *Reply, cancel func()) { cancel() }},
		{"the channel's end", true, func(r *Reply, _ func()) { _, _ = c.Close(), r.Body.Close() }},
	} {
		full = tt.full
		finished := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		r, err := c.Invoke(ctx, &Invocation{Finished: func() { close(finished) }})
		if err != nil {
			t.Fatal(err)
		}
		if tt.full {
			if isClosed(finished) {
				t.Errorf("%s: the place is free though the answer was not taken", tt.name)
			}
			tt.end(r, cancel)
		}
		<-finished
		_ = r.Body.Close()
		cancel()
	}
}

// TestFileCopied: only the body's reader reads files that can still change.
func TestFileCopied(t *testing.T) {
	content := pattern(300 << 10)
	disk, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Write(content); err != nil {
		t.Fatal(err)
	}
	sparse := memfd(t, nil, 0)
	if err := sparse.Truncate(int64(len(content))); err != nil {
		t.Fatal(err)
	}
	addSeals(t, sparse, wire.AnswerSeals)
	for name, f := range map[string]*os.File{
		"no seals":     memfd(t, content, 0),
		"grow":         memfd(t, content, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK),
		"shrink":       memfd(t, content, unix.F_SEAL_WRITE|unix.F_SEAL_GROW),
		"write":        memfd(t, content, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW),
		"future write": memfd(t, content, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE),
		"sparse":       sparse,
		"on a disk":    disk,
	} {
		t.Run(name, func(t *testing.T) {
			_, theirs, reply := hostile(t, Config{})
			sendParts(theirs, part{filesFrame(0x20, 1, `{"offset":7,"length":300000}`), []int{int(f.Fd())}})
			r, err := reply()
			if err != nil {
				t.Fatal(err)
			}
			if r.File != nil {
				t.Error("taken for immutable")
			}
			want := content[7:300007]
			if name == "sparse" {
				want = make([]byte, 300000)
			}
			if got := readReply(t, r); !bytes.Equal(got, want) {
				t.Errorf("%d other bytes", len(got))
			}
		})
	}
}

// TestFileTruncated: a file that becomes shorter breaks off the answer.
func TestFileTruncated(t *testing.T) {
	_, theirs, reply := hostile(t, Config{})
	f := memfd(t, pattern(300<<10), 0)
	sendParts(theirs, part{filesFrame(0x20, 1, `{"offset":0,"length":307200}`), []int{int(f.Fd())}})
	r, err := reply()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.CopyN(io.Discard, r.Body, 100<<10); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(150 << 10); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, r.Body)
	var failure *Failure
	if !errors.As(err, &failure) || n != 50<<10 {
		t.Errorf("%d bytes more and %v; want 51200 and a Failure", n, err)
	}
}

// TestWrongFiles: a forbidden descriptor or frame ends the channel, and the engine keeps no
// descriptor.
func TestWrongFiles(t *testing.T) {
	good := memfd(t, pattern(1000), wire.AnswerSeals)
	r, w, err := os.Pipe()
	pipeR, pipeW := fdOf(t, r, err), fdOf(t, w, err)
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sockets[0])
	defer unix.Close(sockets[1])
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	open := func(path string, flags int) int {
		t.Helper()
		f, err := os.OpenFile(path, flags, 0o600)
		return fdOf(t, f, err)
	}
	file := filepath.Join(t.TempDir(), "f")
	writeOnly := open(file, os.O_CREATE|os.O_WRONLY)
	if err := os.WriteFile(file, pattern(1000), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := filesFrame(0x20, 1, `{"offset":0,"length":1000}`)
	unkept := filesFrame(0x20, 1, `{"offset":0,"length":1,"kept":1}`)
	unkept = unkept[:6] + "\x00" + unkept[7:]
	changing := memfd(t, pattern(1000), 0)
	log := frame(9, 0, 1, `{"level":"info","message":"x"}`)
	fd := func(fds ...int) []part { return []part{{whole, fds}} }
	where := func(json string) []part { return []part{{filesFrame(0x20, 1, json), []int{int(good.Fd())}}} }
	for name, parts := range map[string][]part{
		"a pipe's reading end":   fd(pipeR),
		"a pipe's writing end":   fd(pipeW),
		"a socket":               fd(sockets[0]),
		"an epoll":               fd(epoll),
		"a directory":            fd(open(".", os.O_RDONLY)),
		"a device":               fd(open(os.DevNull, os.O_RDWR)),
		"O_PATH":                 fd(open(file, unix.O_PATH)),
		"only for writing":       fd(writeOnly),
		"in /proc":               where(`{"offset":0,"length":0}`)[:0],
		"none":                   fd(),
		"two at once":            fd(int(good.Fd()), int(good.Fd())),
		"three at once":          fd(int(good.Fd()), int(good.Fd()), pipeW),
		"many":                   fd(append(make([]int, 0, 253), bytesOf(int(good.Fd()), 253)...)...),
		"one with each part":     {{whole[:20], []int{int(good.Fd())}}, {whole[20:], []int{int(good.Fd())}}},
		"one too early":          {{log, []int{int(good.Fd())}}, {whole, nil}},
		"header says two":        {{whole[:6] + "\x02" + whole[7:], []int{int(good.Fd()), int(good.Fd())}}},
		"header says none":       {{whole[:6] + "\x00" + whole[7:], []int{int(good.Fd())}}},
		"header says 257":        {{whole[:6] + "\x01\x01" + whole[8:], []int{int(good.Fd())}}},
		"MORE":                   {{whole[:5] + "\x01" + whole[6:], []int{int(good.Fd())}}},
		"RESPONSE announces one": {{"\x24\x00\x00\x00\x04\x00\x01\x00" + whole[8:], []int{int(good.Fd())}}},
		"longer than the file":   where(`{"offset":0,"length":1001}`),
		"beyond the file":        where(`{"offset":1001,"length":0}`),
		"ends beyond the file":   where(`{"offset":999,"length":2}`),
		"negative length":        where(`{"offset":1000,"length":-1}`),
		"negative offset":        where(`{"offset":-1,"length":1}`),
		"overflow":               where(`{"offset":9223372036854775807,"length":9223372036854775807}`),
		"more than 64 bits":      where(`{"offset":0,"length":18446744073709551617}`),
		"a fraction":             where(`{"offset":0.5,"length":1}`),
		"no JSON":                where(`x`),
		"nothing":                where(``),
		"a name":                 where(`{"offset":0,"length":1,"name":"x"}`),
		"FILE without directory": {{filesFrame(0x21, 1, `{"offset":0,"length":1,"name":"x"}`), nil}},
		"kept as no number":      where(`{"offset":0,"length":1,"kept":-1}`),
		"kept as too many":       where(`{"offset":0,"length":1,"kept":9}`),
		"kept, could change":     {{filesFrame(0x20, 1, `{"offset":0,"length":1,"kept":1}`), []int{int(changing.Fd())}}},
		"not kept":               {{unkept, nil}},
		"kept, in a FILE":        {{filesFrame(0x21, 1, `{"offset":0,"length":1,"name":"x","kept":1}`), nil}},
		"kept, twice":            {{filesFrame(0x20, 1, `{"offset":0,"length":1000,"kept":1}`), []int{int(good.Fd())}}, {unkept, nil}},
		"twice":                  {{whole, []int{int(good.Fd())}}, {whole, []int{int(good.Fd())}}},
		"another's id":           {{filesFrame(0x20, 2, `{"offset":0,"length":1}`), []int{int(good.Fd())}}},
	} {
		if name == "in /proc" {
			parts = []part{{filesFrame(0x20, 1, `{"offset":0,"length":0}`), []int{open("/proc/self/status", os.O_RDONLY)}}}
		}
		t.Run(name, func(t *testing.T) {
			c, theirs, reply := hostile(t, Config{})
			// EOF at the other end of this pipe shows that no other process has the pipe open.
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			sendParts(theirs, parts...)
			sendParts(theirs, part{log, []int{int(w.Fd())}})
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
			got, rerr := reply()
			if strings.HasSuffix(name, "twice") {
				readReply(t, got)
			} else if !errors.Is(rerr, ErrProtocol) {
				t.Errorf("Invoke: %v, want ErrProtocol", rerr)
			}
			_ = c.Close()
			_ = theirs.Close()
			_ = w.Close()
			if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the pipe is still open somewhere: %d, %v", n, err)
			}
		})
	}
}

func bytesOf(fd, n int) []int {
	fds := make([]int, n)
	for i := range fds {
		fds[i] = fd
	}
	return fds
}

// TestUnannounced: descriptors without an announcing frame are closed, and do not disturb the
// frames.
func TestUnannounced(t *testing.T) {
	good := memfd(t, pattern(1000), wire.AnswerSeals)
	log := frame(9, 0, 1, `{"level":"info","message":"x"}`)
	for name, parts := range map[string][]part{
		"with LOG":             {{log, []int{-1}}},
		"with RESPONSE":        {{frame(4, 1, 1, withMeta(`{"status":200,"headers":[]}`, "a")), []int{-1}}, {frame(5, 0, 1, "b"), []int{-1}}},
		"253 at once":          {{log, bytesOf(-1, 253)}},
		"in a frame's parts":   {{log[:7], []int{-1}}, {log[7:20], []int{-1}}, {log[20:], bytesOf(-1, 3)}},
		"just before a file's": {{log[:5], []int{-1}}},
		"a long frame":         {{frame(9, 0, 1, `{"level":"info","message":"`+strings.Repeat("x", 100<<10)+`"}`), []int{-1}}},
	} {
		t.Run(name, func(t *testing.T) {
			c, theirs, reply := hostile(t, Config{})
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for i := range parts {
				for j := range parts[i].fds {
					parts[i].fds[j] = int(w.Fd())
				}
			}
			sendParts(theirs, parts...)
			if name != "with RESPONSE" {
				rest := ""
				if name == "just before a file's" {
					rest = log[5:]
				}
				sendParts(theirs, part{rest + filesFrame(0x20, 1, `{"offset":0,"length":2}`), []int{int(good.Fd())}})
			}
			got, err := reply()
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(got.Body); len(b) != 2 || err != nil {
				t.Errorf("%q, %v", b, err)
			}
			_ = got.Body.Close()
			_ = w.Close()
			// The engine holds the last descriptor until the next read begins.
			sendParts(theirs, part{frame(9, 0, 1, `{"level":"info","message":"x"}`), nil})
			if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the pipe is still open somewhere: %d, %v", n, err)
			}
			if err := c.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCancelledFile: an answer in a file that arrives after the cancellation is closed.
func TestCancelledFile(t *testing.T) {
	a, b := pair(t)
	var released atomic.Int64
	done := make(chan struct{})
	c := NewConn(a, Config{Hold: func(Held) (func(), bool, error) { return func() { released.Add(1); close(done) }, false, nil }})
	defer c.Close()
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := c.Invoke(ctx, &Invocation{})
		got <- err
	}()
	if _, _, err := reader(t, b).Next(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	f := memfd(t, pattern(1000), wire.AnswerSeals)
	sendParts(b, part{frame(1, 0, 0, readyJSON), nil}, part{filesFrame(0x20, 1, `{"offset":0,"length":1000}`), []int{int(f.Fd())}})
	<-done
	if n := released.Load(); n != 1 {
		t.Errorf("released %d times", n)
	}
}

// filesDir returns a directory in memory, like /tmp of a sandbox.
func filesDir(t *testing.T) (dir string, cfg Config) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fre-files-") //nolint:usetesting // in memory
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, Config{Files: func() (*os.File, error) { return os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0) }}
}

// TestNamedFile: the engine removes the files that a function leaves in its directory. A file
// counts as immutable only if no process can write to the file.
func TestNamedFile(t *testing.T) {
	fretest.CheckLeaks(t)
	content := pattern(300 << 10)
	write := func(t *testing.T, path string) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		prepare   func(t *testing.T, path string)
		immutable bool
	}{
		"closed": {write, true},
		"open for reading": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path)
			f, err := os.Open(path)
			fdOf(t, f, err)
		}, true},
		"open for writing": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path)
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			fdOf(t, f, err)
		}, false},
		"mapped": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Munmap(m) })
		}, false},
		"linked twice": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path)
			if err := os.Link(path, path+"2"); err != nil {
				t.Fatal(err)
			}
		}, false},
		"sparse": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, content[:100<<10], 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, int64(len(content))); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, cfg := filesDir(t)
			_, theirs, reply := hostile(t, cfg)
			tt.prepare(t, filepath.Join(dir, "a file"))
			sendParts(theirs, part{filesFrame(0x21, 1, `{"offset":1,"length":100000,"name":"a file"}`), nil})
			r, err := reply()
			if err != nil {
				t.Fatal(err)
			}
			if os.Geteuid() == 0 && tt.immutable != (r.File != nil) {
				t.Errorf("taken for immutable: %v", r.File != nil)
			}
			if got := readReply(t, r); !bytes.Equal(got, content[1:100001]) {
				t.Errorf("%d other bytes", len(got))
			}
			if _, err := os.Lstat(filepath.Join(dir, "a file")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
}

// TestWrongNames: a name cannot lead out of the directory or to a file that is not regular.
func TestWrongNames(t *testing.T) {
	fretest.CheckLeaks(t)
	for name, prepare := range map[string]func(path string) error{
		"..":                     nil,
		".":                      nil,
		"":                       nil,
		"/etc/passwd":            nil,
		"../x":                   nil,
		"d/x":                    nil,
		"a\x00b":                 nil,
		strings.Repeat("x", 256): nil,
		"link":                   func(path string) error { return os.Symlink("/etc/passwd", path) },
		"near": func(path string) error {
			return errors.Join(os.WriteFile(path+"x", nil, 0o600), os.Symlink("nearx", path))
		},
		"fifo": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"dir":  func(path string) error { return os.Mkdir(path, 0o700) },
		"socket": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				l.(*net.UnixListener).SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"gone": nil,
	} {
		t.Run(name[:min(len(name), 12)], func(t *testing.T) {
			dir, cfg := filesDir(t)
			c, theirs, reply := hostile(t, cfg)
			if prepare != nil {
				if err := prepare(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			quoted := fmt.Sprintf(`{"offset":0,"length":0,"name":%q}`, name)
			sendParts(theirs, part{filesFrame(0x21, 1, strings.ReplaceAll(quoted, `\x00`, `\u0000`)), nil})
			_, err := reply()
			if name == "gone" {
				var failure *Failure
				if !errors.As(err, &failure) || c.Err() != nil {
					t.Errorf("got %v, the channel %v; want a Failure and nil", err, c.Err())
				}
				return
			}
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
		})
	}
}

// FuzzFiles: frames in messages of any length, with descriptors of any kind, leave no descriptor
// open.
func FuzzFiles(f *testing.F) {
	whole := filesFrame(0x20, 1, `{"offset":0,"length":1000}`)
	f.Add([]byte(whole), uint16(0), []byte{1})
	f.Add([]byte(whole), uint16(20), []byte{0, 1})
	f.Add([]byte(whole), uint16(16), []byte{1, 2})
	f.Add([]byte(whole), uint16(0), []byte{2})
	f.Add([]byte(whole), uint16(0), []byte{5})
	f.Add([]byte(whole+whole), uint16(len(whole)), []byte{1, 1})
	f.Add([]byte(frame(9, 0, 1, `{"level":"info","message":"x"}`)+whole), uint16(40), []byte{1, 1})
	f.Add([]byte(filesFrame(0x21, 1, `{"offset":0,"length":1,"name":"x"}`)), uint16(3), []byte{3})
	f.Add([]byte(filesFrame(0x20, 1, `{"offset":0,"length":1,"kept":1}`)), uint16(0), []byte{1})
	for _, raw := range malformed {
		f.Add([]byte(raw), uint16(len(raw)/2), []byte{1, 4})
	}
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16, kinds []byte) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		file := memfd(t, pattern(1000), wire.AnswerSeals)
		var parts []part
		for i := 0; len(raw) > 0; i++ {
			n := len(raw)
			if cut > 0 {
				n = min(n, int(cut))
			}
			p := part{bytes: string(raw[:n])}
			if i < len(kinds) {
				for k := kinds[i] % 8; k > 0; k-- {
					p.fds = append(p.fds, [...]int{int(file.Fd()), int(w.Fd())}[k%2])
				}
			}
			parts = append(parts, p)
			raw = raw[n:]
			if len(parts) > 64 {
				break
			}
		}
		c, theirs, reply := hostile(t, Config{})
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if r, err := reply(); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
			}
		}()
		sendParts(theirs, parts...)
		_ = theirs.CloseWrite()
		_, _ = io.Copy(io.Discard, theirs)
		<-c.Done()
		<-answered
		if err := c.Err(); !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrClosed) {
			t.Errorf("unexpected end: %v", err)
		}
		_ = c.Close()
		_ = theirs.Close()
		_ = w.Close()
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("a descriptor is still open: %d, %v", n, err)
		}
	})
}
