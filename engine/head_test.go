package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
)

// The head of an answer knows whether the answer is complete. No buffer remains after any end.
func TestHead(t *testing.T) {
	pool := fretest.Buffers(t, 8<<20)
	waits := 0
	waited := func(time.Duration) { waits++ }
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		size  int // of the answer
		fails bool
		want  int // bytes of the head
	}{
		"nothing":             {0, false, 0},
		"little":              {10, false, 10},
		"the first buffer":    {stdioFirst, false, stdioFirst},
		"one more":            {stdioFirst + 1, false, stdioFirst + 1},
		"all but one":         {stdioBuffered - 1, false, stdioBuffered - 1},
		"all":                 {stdioBuffered, false, stdioBuffered},
		"more":                {stdioBuffered + 1, false, stdioBuffered},
		"broken at once":      {0, true, 0},
		"broken in the first": {100, true, 100},
		"broken later":        {stdioFirst + 100, true, stdioFirst + 100},
	} {
		answer := bytes.Repeat([]byte("abcdefg"), c.size/7+1)[:c.size]
		var r io.Reader = bytes.NewReader(answer)
		if c.fails {
			r = io.MultiReader(r, iotest.ErrReader(broken))
		}
		h, err := readHead(t.Context(), pool, waited, iotest.HalfReader(r))
		if c.fails != errors.Is(err, broken) {
			t.Errorf("%s: got %v", name, err)
		}
		if whole := c.size < stdioBuffered && !c.fails; h.whole != whole {
			t.Errorf("%s: whole is %v", name, h.whole)
		}
		if got, err := io.ReadAll(h); err != nil || !bytes.Equal(got, answer[:c.want]) {
			t.Errorf("%s: %d bytes, want the first %d, %v", name, len(got), c.want, err)
		}
		for range 2 {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
		if n, err := h.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%s: after Close: %d bytes, %v", name, n, err)
		}
	}
	// With only the smaller buffers free, a long answer has a short head.
	one, err := pool.TryAcquire(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	h, err := readHead(t.Context(), pool, waited, bytes.NewReader(make([]byte, stdioBuffered)))
	if err != nil || h.whole || len(h.rest) != stdioFirst {
		t.Errorf("without a larger buffer: %d bytes, whole is %v, %v", len(h.rest), h.whole, err)
	}
	_ = h.Close()
	two, err := pool.TryAcquire(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if h, err := readHead(ctx, pool, waited, bytes.NewReader(nil)); !errors.Is(err, over) || h.Close() != nil {
		t.Errorf("without a buffer: %v", err)
	}
	if waits != 12 {
		t.Errorf("told %d times how long it waited", waits)
	}
	one.Release()
	two.Release()
}
