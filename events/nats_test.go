package events

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/template"
)

// natsCommand runs the nats command line.
func natsCommand(t *testing.T, server string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), fretest.Tool(t, "nats"), append([]string{"--server", server, "--no-context", "--timeout", within.String()}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// TestNATSCommand: The nats command line reads the streams with the password, and its message to a
// queue is an event.
func TestNATSCommand(t *testing.T) {
	e := &functions{}
	e.deploy("f", quick(), func(r *engine.Request, body []byte) (int, []byte, error) {
		if slices.Contains(r.Headers, [2]string{"X-Kind", "test"}) {
			return 200, append([]byte("of nats: "), body...), nil
		}
		return 200, body, nil
	})
	cfg := testConfig(t, e)
	cfg.Listen, cfg.User, cfg.Password = "127.0.0.1:0", "operator", "password"
	s := open(t, cfg)
	r, err := s.Publish(t.Context(), "f", request("hello nats"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := "nats://operator:password@" + s.Addr()
	if out, err := natsCommand(t, server, "stream", "ls", "--names"); err != nil || !strings.Contains(out, "FRE_EVENTS_default") {
		t.Errorf("nats stream ls: %s, %v", out, err)
	}
	if out, err := natsCommand(t, server, "stream", "get", "FRE_EVENTS_default", "1"); err != nil || !strings.Contains(out, "hello nats") || !strings.Contains(out, r.ID) || !strings.Contains(out, "fre.events.default.normal.f") {
		t.Errorf("nats stream get: %s, %v", out, err)
	}
	for _, other := range []string{"nats://" + s.Addr(), "nats://operator:wrong@" + s.Addr()} {
		if out, err := natsCommand(t, other, "stream", "ls"); err == nil {
			t.Errorf("%s may list streams: %s", other, out)
		}
	}
	// A message published by the tenant's client is an event.
	ended := watchEnds(t, s)
	if out, err := natsCommand(t, server, "pub", "--jetstream", "-H", "X-Kind: test", "fre.events.default.high.f", "by hand"); err != nil {
		t.Fatalf("nats pub: %s, %v", out, err)
	}
	e.setRoom(4)
	for range 2 {
		if got := <-ended; got.State != StateDone {
			t.Errorf("event of %s: %+v", got.Source, got)
		} else if d, err := s.Find(t.Context(), got.ID); err != nil {
			t.Error(err)
		} else if got.Source == "nats" && text(t, d) != "of nats: by hand" || got.Source != "nats" && text(t, d) != "hello nats" {
			t.Errorf("event of %s: %q", got.Source, text(t, d))
		}
	}
}

// A full disk ends JetStream. Once the disk has room, JetStream goes on with the acknowledged
// events.
func TestDiskFull(t *testing.T) {
	fretest.RequireRoot(t)
	e := &functions{}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	cfg := testConfig(t, e)
	cfg.Patience = 0 // a server with a full disk may leave a write unanswered
	if err := unix.Mount("tmpfs", cfg.Dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(cfg.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := open(t, cfg)
	acknowledged := map[string]bool{}
	var refused *RefusedError
	for body := strings.Repeat("x", 256<<10); ; {
		r, err := s.Publish(t.Context(), "f", request(body), Options{})
		if err != nil {
			// The server may also leave the write that fills the disk unanswered.
			if !errors.As(err, &refused) || refused.Code() != failure.EventsStorage && refused.Code() != failure.EventsUnavailable || refused.After == 0 {
				t.Fatalf("a full disk: %v", err)
			}
			break
		}
		acknowledged[r.ID] = true
		if len(acknowledged) > 100 {
			t.Fatal("25 MiB fit in 24")
		}
	}
	if err := unix.Mount("", cfg.Dir, "", unix.MS_REMOUNT, "size=96m"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	err := testdaemon.Until(ctx, func() error {
		r, err := s.Publish(ctx, "f", request("again"), Options{})
		if err == nil {
			acknowledged[r.ID] = true
		}
		return err
	})
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
	ended := watchEnds(t, s)
	e.setRoom(8)
	for len(acknowledged) > 0 {
		select {
		case got := <-ended:
			delete(acknowledged, got.ID)
		case <-ctx.Done():
			t.Fatalf("%d events that were acknowledged did not run", len(acknowledged))
		}
	}
}

// A client's message of the maximum size of NATS, whose event always fails, becomes a dead letter:
// whole if the engine keeps files of its own, otherwise without the body.
func TestForeignMessageDead(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Retries = 0
	fail := func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil }
	e.deploy("f", set, fail)
	e.deploy("g", set, fail)
	alone := open(t, testConfig(t, e))
	shared := open(t, cluster(t)(e))
	body := bytes.Repeat([]byte("x"), maxPayload)
	for _, test := range []struct {
		name, function string
		s              *Service
		header         nats.Header
		want           string
	}{
		{"alone", "f", alone, nil, string(body)},
		{"one of several", "f", shared, nil, ""},
		{"long headers", "g", shared, nats.Header{"Long": {strings.Repeat("<", 50<<10)}}, "small"}, // longer as JSON
	} {
		t.Run(test.name, func(t *testing.T) {
			// The first event creates the queue's stream.
			ends(t, test.s, test.function, "", Options{})
			ended := watchEnds(t, test.s)
			msg := &nats.Msg{Subject: queueSubject(template.DefaultTenant, Normal, test.function), Header: test.header, Data: body}
			if test.header != nil {
				msg.Data = []byte(test.want)
			}
			if _, err := test.s.js.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			var id string
			select {
			case end := <-ended:
				id = end.ID
			case <-time.After(within):
				t.Fatal("it does not end")
			}
			d, err := test.s.Find(t.Context(), id)
			if err != nil || d.State != StateDead || !strings.Contains(d.Error, "the function answered 500") || text(t, d) != test.want {
				t.Fatalf("dead letter: %v, %v; its body has %d bytes, want %d", d, err, len(text(t, d)), len(test.want))
			}
			if test.header != nil && !strings.Contains(d.Error, "the event's headers are too long and were not kept") {
				t.Errorf("of headers that are not kept it says %q", d.Error)
			}
			if test.want != "" {
				return
			}
			if !strings.Contains(d.Error, "not kept") {
				t.Errorf("of a body that is not kept it says %q", d.Error)
			}
			if err := test.s.Replay(t.Context(), id); !errors.Is(err, ErrNotDead) {
				t.Errorf("replay without its body: %v", err)
			}
		})
	}
}
