package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"

	"github.com/fre-engine/fre/internal/fretest"
)

// counted limits and counts memory on Go's heap.
type counted struct {
	most  int64 // bytes
	used  atomic.Int64
	times atomic.Int64
}

var errNone = errors.New("there is none")

func (m *counted) acquire(size int) (Buffer, error) {
	if m.used.Add(int64(size)) > m.most {
		m.used.Add(-int64(size))
		return nil, errNone
	}
	m.times.Add(1)
	return &countedBuffer{m, make([]byte, size)}, nil
}

type countedBuffer struct {
	m    *counted
	data []byte
}

func (l *countedBuffer) Bytes() []byte { return l.data }

func (l *countedBuffer) Release() {
	l.m.used.Add(-int64(len(l.data)))
	for i := range l.data { // a late reader sees the overwritten bytes
		l.data[i] = 0xdd
	}
}

// little is the most unread bytes of a body outside of buffers.
const little = 4 << 10

// TestBufferMemory: except for a small rest, an answer waits in buffers. The channel returns the
// buffers while the client reads, or when the client stops reading.
func TestBufferMemory(t *testing.T) {
	fretest.CheckLeaks(t)
	m := &counted{most: 2 << 20}
	c := serve(t, Config{Memory: m.acquire}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		var size, piece int
		if _, err := fmt.Sscanf(e.Path, "/%d/%d", &size, &piece); err != nil {
			return nil, err
		}
		if piece == 0 { // whole
			return &fn.Answer{Body: bytes.NewReader(pattern(size))}, nil
		}
		return &fn.Answer{Body: pieces{io.MultiReader(bytes.NewReader(pattern(size))), piece}}, nil
	})
	for _, test := range []struct {
		size, piece int
		buffers     bool
	}{
		{0, 0, false},
		{little, 0, false},
		{little + 1, 0, true},
		{wire.Chunk - 1, 0, true},
		{100, 1, false},
		{300_000, 1000, true},
		{1 << 20, 12_345, true},
		{3<<20 + 1, wire.Chunk, true},
	} {
		for _, stops := range []bool{false, true} {
			m.times.Store(0)
			r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: fmt.Sprintf("/%d/%d", test.size, test.piece)}})
			if err != nil {
				t.Fatal(err)
			}
			if short := test.piece == 0 && test.size <= little; short != (r.Bytes != nil) || short && !bytes.Equal(r.Bytes, pattern(test.size)) {
				t.Errorf("%+v: %d bytes are at hand", test, len(r.Bytes))
			}
			if stops {
				_, err = io.CopyN(io.Discard, r.Body, int64(rand.IntN(test.size+1)))
			} else {
				var got []byte
				got, err = io.ReadAll(iotest.OneByteReader(io.LimitReader(r.Body, 3)))
				rest, rerr := io.ReadAll(r.Body)
				if err = errors.Join(err, rerr); !bytes.Equal(append(got, rest...), pattern(test.size)) {
					t.Errorf("%+v: not what was sent", test)
				}
				if buffers := m.times.Load() > 0; buffers != test.buffers && test.size != 100 {
					t.Errorf("%+v: in buffers %t", test, buffers)
				}
			}
			if err != nil {
				t.Errorf("%+v: %v", test, err)
			}
			if err := r.Body.Close(); err != nil {
				t.Error(err)
			}
			if n := m.used.Load(); n != 0 {
				t.Fatalf("%+v, stops %t: %d bytes are not given back", test, stops, n)
			}
		}
	}
}

// TestNoMemory: without memory an answer fails with the reason, at its beginning or later, and its
// event ends. Other answers are not affected.
func TestNoMemory(t *testing.T) {
	fretest.CheckLeaks(t)
	m := &counted{most: 128 << 10}
	c := serve(t, Config{Memory: m.acquire}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		switch e.Path {
		case "/whole":
			return &fn.Answer{Body: bytes.NewReader(pattern(200_000))}, nil
		case "/stream": // an unread answer
			return &fn.Answer{Body: always{}}, nil
		}
		return &fn.Answer{Body: bytes.NewReader(pattern(50_000))}, nil
	})
	for range 3 {
		for _, path := range []string{"/whole", "/stream"} {
			finished := make(chan struct{})
			r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: path}, Finished: func() { close(finished) }})
			if err == nil {
				<-finished // the function knows the failure
				_, err = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
			}
			if !errors.Is(err, errNone) {
				t.Errorf("%s: %v; want the reason", path, err)
			}
			select {
			case <-finished:
			case <-time.After(5 * time.Minute):
				t.Errorf("%s: its place is not free", path)
			}
			if n := m.used.Load(); n != 0 {
				t.Errorf("%s: %d bytes are not given back", path, n)
			}
			r, err = c.Invoke(t.Context(), &Invocation{})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, pattern(50_000)) {
				t.Errorf("another: %d bytes, %v", len(got), err)
			}
			_ = r.Body.Close()
		}
	}
}
