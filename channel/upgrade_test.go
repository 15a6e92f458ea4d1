package channel

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	fn "github.com/fre-engine/fre/function/channel"
)

// An event that asks for another protocol gets an answer before the body is read, and then is a
// tunnel. A function without upgrades gets a plain event.
func TestUpgrade(t *testing.T) {
	for _, able := range []bool{true, false} {
		ours, theirs := pair(t)
		served := make(chan error, 1)
		go func() {
			served <- fn.Serve(context.Background(), theirs, Ready{Concurrency: 1, Upgrades: able}, func(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
				if e.Upgrade == "" {
					body, err := io.ReadAll(e.Body)
					return &fn.Answer{Body: strings.NewReader("plain " + string(body))}, err
				}
				if _, limited := ctx.Deadline(); limited {
					return nil, errors.New("a tunnel with a deadline")
				}
				return &fn.Answer{Status: 101, Headers: [][2]string{{"Upgrade", e.Upgrade}}, Body: e.Body}, nil
			})
		}()
		c := NewConn(ours, Config{})
		read, write := io.Pipe()
		r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Upgrade: "echo", Body: read}, DeadlineMS: time.Now().Add(time.Hour).UnixMilli()})
		switch {
		case !able && err == nil:
			if body, err := io.ReadAll(r.Body); err != nil || string(body) != "plain " || r.Status != 200 {
				t.Errorf("%d %q, %v", r.Status, body, err)
			}
			_ = r.Body.Close()
		case err != nil || r.Status != 101 || len(r.Headers) != 1:
			t.Errorf("%+v, %v", r, err)
		default:
			for _, word := range []string{"one", "two"} {
				if _, err := io.WriteString(write, word); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(word))
				if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != word {
					t.Fatalf("%q, %v, want %q", got, err, word)
				}
			}
			_ = write.Close()
			if rest, err := io.ReadAll(r.Body); err != nil || len(rest) > 0 {
				t.Errorf("at the end %q, %v", rest, err)
			}
			_ = r.Body.Close()
		}
		_ = write.Close()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// An unrequested 101 breaks the protocol.
func TestUpgradeUnasked(t *testing.T) {
	c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) {
		return &fn.Answer{Status: 101, Body: strings.NewReader("x")}, nil
	})
	if _, err := c.Invoke(t.Context(), &Invocation{}); !errors.Is(err, ErrProtocol) {
		t.Errorf("got %v", err)
	}
}
