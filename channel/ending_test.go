package channel

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"
)

// TestEnding: after STOP a function gets no more events, answers the events that it took, and gives
// the rest back.
func TestEnding(t *testing.T) {
	c, function := raw(t)
	taken := invoked(t.Context(), t, c)
	r := reader(t, function)
	first, _, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	crossed := make(chan error)
	go func() {
		_, err := c.Invoke(t.Context(), &Invocation{})
		crossed <- err
	}()
	second, _, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	write(t, function, frame(byte(wire.KindStop), 0, 0, ""))
	<-c.Ending()
	if _, err := c.Invoke(t.Context(), &Invocation{}); !errors.Is(err, ErrUnserved) {
		t.Errorf("an event after STOP: %v", err)
	}
	write(t, function, frame(byte(wire.KindError), 0, second.ID, `{"type":"Ends","message":"","unserved":true}`))
	if err := <-crossed; !errors.Is(err, ErrUnserved) {
		t.Errorf("an event that was given back: %v", err)
	}
	write(t, function, frame(0x04, 0, first.ID, withMeta(`{"status":200,"headers":[]}`, "body")))
	reply := <-taken
	if got, err := io.ReadAll(reply.Body); string(got) != "body" || err != nil {
		t.Errorf("the event that it took: %q, %v", got, err)
	}
}

// TestServeEnds: Serve sends STOP when its context ends, and answers the events under way.
func TestServeEnds(t *testing.T) {
	a, b := pair(t)
	ctx, end := context.WithCancel(t.Context())
	goOn := make(chan struct{})
	served := make(chan error)
	go func() {
		served <- fn.Serve(ctx, b, Ready{Runtime: "go", Concurrency: 8}, func(context.Context, *fn.Event) (*fn.Answer, error) {
			end()
			<-goOn
			return &fn.Answer{Body: strings.NewReader("answered")}, nil
		})
	}()
	c := NewConn(a, Config{Memory: memory(t)})
	defer c.Close()
	reply := invoked(t.Context(), t, c)
	<-c.Ending()
	if _, err := c.Invoke(t.Context(), &Invocation{}); !errors.Is(err, ErrUnserved) {
		t.Errorf("an event after the end: %v", err)
	}
	close(goOn)
	if got, err := io.ReadAll((<-reply).Body); string(got) != "answered" || err != nil {
		t.Errorf("the event under way: %q, %v", got, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestFlows: the function sees each piece of a flowing body at once.
func TestFlows(t *testing.T) {
	c := serve(t, Config{}, echo)
	body, sender := io.Pipe()
	sent := make(chan error, 1)
	send := func(piece string) { _, err := io.WriteString(sender, piece); sent <- err }
	go send("a") // the function's answer begins with the first byte of the body
	reply, err := c.Invoke(t.Context(), &Invocation{Flows: true, Request: Request{Body: body}})
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range []string{"a", "bc"} {
		if piece != "a" {
			go send(piece)
		}
		got := make([]byte, len(piece))
		if _, err := io.ReadFull(reply.Body, got); err != nil || string(got) != piece {
			t.Errorf("sent %q, the answer has %q, %v", piece, got, err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	_ = sender.Close()
	if rest, err := io.ReadAll(reply.Body); len(rest) > 0 || err != nil {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if err := reply.Body.Close(); err != nil {
		t.Error(err)
	}
}
