package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/fretest"
)

// Each profile has the format of its tool; pprof reads a gzipped protocol buffer.
func TestProfiles(t *testing.T) {
	c := connect(t, nil)
	for kind, want := range map[string]string{
		"cpu": "nanoseconds", "heap": "inuse_space", "goroutine": "TestProfiles", "mutex": "contentions",
	} {
		var got bytes.Buffer
		if err := c.Debug().Profile(t.Context(), kind, 10*time.Millisecond, &got); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		z, err := gzip.NewReader(&got)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if text, err := io.ReadAll(z); err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s: a profile of %d bytes without %q, error %v", kind, len(text), want, err)
		}
	}
	var got strings.Builder
	if err := c.Debug().Profile(t.Context(), "trace", time.Millisecond, &got); err != nil || !strings.HasPrefix(got.String(), "go 1.") {
		t.Errorf("trace: %.20q, error %v", got.String(), err)
	}
	for _, test := range []struct {
		kind string
		d    time.Duration
		want api.Code
	}{
		{"money", time.Second, api.CodeNotFound},
		{"cpu", 0, api.CodeBadRequest},
		{"cpu", time.Hour, api.CodeBadRequest},
	} {
		err := c.Debug().Profile(t.Context(), test.kind, test.d, io.Discard)
		if e := new(api.Error); !errors.As(err, &e) || e.Code != test.want {
			t.Errorf("%s for %v: error %v, want code %s", test.kind, test.d, err, test.want)
		}
	}
}

// The server refuses a second profile during the first, which ends with its client.
func TestOneProfile(t *testing.T) {
	c := connect(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &atFirstByte{do: func() {
		err := c.Debug().Profile(t.Context(), "heap", time.Second, io.Discard)
		if e := new(api.Error); !errors.As(err, &e) || e.Code != api.CodeInUse {
			t.Errorf("a second profile: error %v, want code %s", err, api.CodeInUse)
		}
		cancel()
	}}
	if err := c.Debug().Profile(ctx, "trace", time.Minute, w); !errors.Is(err, context.Canceled) {
		t.Errorf("the first, cancelled: %v", err)
	}
	for { // until the engine notices
		err := c.Debug().Profile(t.Context(), "heap", time.Second, io.Discard)
		if err == nil {
			break
		}
		if e := new(api.Error); !errors.As(err, &e) || e.Code != api.CodeInUse {
			t.Fatalf("after the first: %v", err)
		}
	}
}

// atFirstByte is a writer that calls do at its first byte.
type atFirstByte struct{ do func() }

func (w *atFirstByte) Write(b []byte) (int, error) {
	if do := w.do; do != nil {
		w.do = nil
		do()
	}
	return len(b), nil
}

// A call of the API counts as at least one read and one write of the process that serves the call.
func TestSyscalls(t *testing.T) {
	fretest.RequireRoot(t)
	const times = 20
	c := connect(t, nil)
	counts, err := c.Debug().CountSyscalls(t.Context(), func() error {
		for range times {
			if err := c.Debug().Call(t.Context(), "GET", "/v1/images?x=y"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, n := range counts {
		found[n.Name] = n.Calls
	}
	for _, name := range []string{"read", "write"} {
		if found[name] < 2*times { // by the client and by the server
			t.Errorf("%d calls of the API made %d calls of %s, want %d at least", times, found[name], name, 2*times)
		}
	}
	// An error during the count ends the count.
	if _, err := c.Debug().CountSyscalls(t.Context(), func() error { return io.ErrClosedPipe }); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("an error in between: got %v", err)
	}
	// A path cannot lead to another host.
	if err := c.Debug().Call(t.Context(), "GET", "http://example.org/v1/images"); err == nil {
		t.Error("a call went to another host")
	}
}
