package live

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestTakenOverAtOnce: if several publishers arrive while the previous publisher ends, the last of
// them gets the stream, and the others are refused at once.
func TestTakenOverAtOnce(t *testing.T) {
	s, _ := newStream(t, t.TempDir(), time.Minute)
	c := &channel{Stream: s, input: make(chan struct{}, 1)}
	type claimed struct {
		release func(error)
		err     error
	}
	// come starts a publisher. A successor closes interrupted.
	come := func(name string) (interrupted <-chan struct{}, got <-chan claimed) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan claimed, 1)
		go func() {
			release, err := c.claim(ctx, name, cancel)
			done <- claimed{release, err}
		}()
		return ctx.Done(), done
	}
	endedA, gotA := come("a")
	a := <-gotA
	if a.err != nil {
		t.Fatal(a.err)
	}
	endedB, gotB := come("b")
	<-endedA
	endedC, gotC := come("c") // a has not gone yet
	<-endedB
	if b := <-gotB; !errors.Is(b.err, errReplaced) {
		t.Errorf("b was told %v", b.err)
	}
	a.release(errReplaced)
	last := <-gotC
	if last.err != nil || c.publisher != "c" {
		t.Fatalf("%v; %q publishes", last.err, c.publisher)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.stop()
	}()
	<-endedC
	_, gotD := come("d")
	if d := <-gotD; !errors.Is(d.err, errClosed) {
		t.Errorf("d, of a stream that has ended, was told %v", d.err)
	}
	last.release(nil)
	<-stopped
}
