package engine

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/admission"
)

// TestDegraded: clients that do not read their answers use up the memory. The engine then refuses
// requests that need more memory and serves requests that need none. It returns to normal by itself
// after the clients have read their answers.
func TestDegraded(t *testing.T) {
	r := open(t)
	r.stop()
	r.start(Config{
		BufferBytes: 8 << 20,
		Admission:   admission.Config{MinFree: 0.5, Every: 10 * time.Millisecond},
	})
	r.deploy("native", stdio)
	r.deploy("warm", nil)
	r.mustCall("native", "/", "a", "a")
	var untaken []*Response
	var err error
	for range 100 {
		var resp *Response
		if resp, err = r.Invoke(t.Context(), "native", &Request{Path: "/big"}); err != nil {
			break
		}
		untaken = append(untaken, resp)
	}
	var refused *admission.RefusedError
	if !errors.Is(err, ErrDegraded) || !errors.As(err, &refused) || refused.Reason != admission.Memory {
		t.Fatalf("after %d answers that nobody takes: %v", len(untaken), err)
	}
	if s, _ := r.admission.State(); s == admission.Normal {
		t.Errorf("it is %v", s)
	}
	r.mustCall("warm", "/", "small", "small")
	large := strings.Repeat("x", cheapBody+1)
	if _, _, err := r.call(t.Context(), "warm", "/", large); !errors.Is(err, ErrDegraded) {
		t.Errorf("a large body: %v", err)
	}
	if _, err := r.Invoke(t.Context(), "warm", &Request{Path: "/", Body: strings.NewReader("x"), Length: -1}); !errors.Is(err, ErrDegraded) {
		t.Errorf("a body of unknown size: %v", err)
	}
	if n := r.Functions(); len(n) != 2 {
		t.Errorf("%d functions are listed", len(n))
	}
	if h, err := r.Holdings(); err != nil || h.Buffers.Held == 0 || h.Sandboxes < len(untaken) || h.Cgroups < h.Sandboxes {
		t.Errorf("it holds %+v, %v", h, err)
	}
	st, err := r.Status()
	if err != nil || st.State == admission.Normal || st.Reason != admission.Memory || st.Since.Before(st.Started) || st.Buffers.Held == 0 || st.Functions != 2 {
		t.Errorf("its status is %+v, %v", st, err)
	}
	for _, resp := range untaken {
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 3<<20 {
			t.Errorf("an answer from before: %d bytes, %v", n, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the engine to be normal", func() bool { s, _ := r.admission.State(); return s == admission.Normal })
	r.mustCall("native", "/", "b", "b")
	r.mustCall("warm", "/", large, large)
	eventually(t, "all memory to be given back", func() bool { free, bytes := r.buffers.Free(); return free == bytes })
}
