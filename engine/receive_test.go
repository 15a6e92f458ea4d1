package engine

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fre-engine/fre/image"
)

// comingBody is an incomplete client body.
type comingBody struct{ *blockedBody }

func (comingBody) Here() bool { return false }

// pipedBody is a client body that the test writes.
type pipedBody struct{ *io.PipeReader }

func (pipedBody) Here() bool { return false }

// TestSlowSenders: clients with one byte of a short body hold no places of the function, and
// clients with flowing bodies hold half of the places.
func TestSlowSenders(t *testing.T) {
	for name, change := range isolations {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("f", func(c *image.Config) {
				change(c)
				c.Instances.Max = 2
			})
			ctx, giveUp := context.WithCancel(t.Context())
			errs := make(chan error)
			send := func(size int64) {
				resp, err := r.Invoke(ctx, "f", &Request{Method: "POST", Path: "/slurp", Body: comingBody{newBlockedBody("x")}, Length: size})
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close() // the answer has broken off
				}
				errs <- err
			}
			const short, long = 4, 3
			for range short {
				go send(100)
			}
			for range long {
				go send(-1)
			}
			f, err := r.lookup("f")
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "all to send", func() bool {
				f.flows.mu.Lock()
				defer f.flows.mu.Unlock()
				return r.received.Load() == short*100 && f.flows.n == 1 && f.flows.waiting.Len() == long-1
			})
			r.mustCall("f", "/", "served", "served")
			giveUp()
			for range short + long {
				if err := <-errs; !errors.Is(err, context.Canceled) {
					t.Errorf("a client that has gone: %v", err)
				}
			}
			r.idle("f")
			if r.received.Load() != 0 || f.flows.n != 0 || f.flows.waiting.Len() != 0 {
				t.Errorf("left: %d bytes, %d that flow, %d that wait", r.received.Load(), f.flows.n, f.flows.waiting.Len())
			}
		})
	}
}

// TestSlowFlow: a slow body loses its place once another event waits for the place; a fast body
// does not.
func TestSlowFlow(t *testing.T) {
	for _, tt := range []struct {
		name    string
		most    int
		bytes   int  // received per second
		read    bool // by the function
		waiters int  // events that wait for a place
		flows   int  // bodies that wait for their turn
		slow    bool
	}{
		{name: "nobody waits", most: 1, read: true},
		{name: "an event waits", most: 1, read: true, waiters: 1, slow: true},
		{name: "another place is left", most: 2, read: true, waiters: 1},
		{name: "a body waits", most: 2, read: true, flows: 1, slow: true},
		{name: "enough comes", most: 1, bytes: 1 << 10, read: true, waiters: 1},
		{name: "hardly anything comes", most: 1, bytes: 1, read: true, waiters: 1, slow: true},
		{name: "the function is slow", most: 1, bytes: 1, waiters: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &function{program: program{host: &host{}}}
				f.config.Instances.Max, f.config.Instances.Concurrency = tt.most, 1
				for range tt.waiters {
					f.waiters.Push(time.Now())
				}
				ev := &event{f: f}
				ev.ctx.open(t.Context(), time.Now().Add(time.Hour), func() {})
				from, sender := io.Pipe()
				r, done, err := ev.receive(&Request{Body: pipedBody{from}, Length: -1})
				if err != nil {
					t.Fatal(err)
				}
				defer done()
				for range tt.flows {
					f.flows.waiting.Push(struct{}{})
				}
				ev.input = from
				var ends sync.WaitGroup
				ends.Go(func() {
					for tt.bytes > 0 && ev.ctx.Err() == nil {
						<-time.After(time.Second)
						_, _ = sender.Write(make([]byte, tt.bytes)) // fails after the body is broken off
					}
				})
				if tt.read {
					ends.Go(func() { _, _ = io.Copy(io.Discard, r.Body) })
				}
				<-time.After(10 * slowEvery)
				if slow := errors.Is(context.Cause(&ev.ctx), ErrSlowBody); slow != tt.slow {
					t.Errorf("broken off: %v, want %v", slow, tt.slow)
				}
				ev.cancel(nil)
				_ = from.Close()
				ends.Wait()
				if f.flows.n != 0 && tt.flows == 0 {
					t.Errorf("%d places are not given back", f.flows.n)
				}
			})
		})
	}
}

// TestFlowingBody: the function gets each piece of a body of unknown length at once. A body that
// breaks off does not look complete.
func TestFlowingBody(t *testing.T) {
	for name, change := range map[string]func(*image.Config){"instance": nil, "event": fresh} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("f", change)
			body, sender := io.Pipe()
			go func() { _, _ = io.WriteString(sender, "a") }() // the answer begins with it
			resp, err := r.Invoke(t.Context(), "f", &Request{Method: "POST", Path: "/", Body: pipedBody{body}, Length: -1})
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1)
			for i, piece := range []string{"a", "b"} {
				if i > 0 {
					if _, err := io.WriteString(sender, piece); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece {
					t.Fatalf("sent %q, the answer has %q, %v", piece, got, err)
				}
			}
			_ = sender.CloseWithError(errCut)
			if rest, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("the body broke off, the answer ended well after %q", rest)
			}
			_ = resp.Body.Close() // the answer has broken off
			r.idle("f")
		})
	}
}

// TestRetires: an instance that announces its end gets no more events. An event not yet taken goes
// to another instance.
func TestRetires(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Instances.Max = 2 })
	for range 20 {
		r.mustCall("f", "/retire", "x", "x")
		r.mustCall("f", "/", strings.Repeat("y", 100), strings.Repeat("y", 100))
	}
}
