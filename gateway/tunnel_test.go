package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
)

const shout = "GET /function/f/shout HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n"

// switched reads the head of the answer, which must be 101.
func (c conn) switched() {
	c.t.Helper()
	if !c.switches() {
		c.t.Fatal("the function's time was over")
	}
}

// switches is switched, but returns false if the function timed out first.
func (c conn) switches() bool {
	c.t.Helper()
	resp, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusGatewayTimeout {
		return false
	}
	if h := resp.Header; resp.StatusCode != 101 || h.Get("Upgrade") != "shout" || h.Get("Connection") != "Upgrade" || h.Get("X-Volume") != "11" || h.Get("X-Fre-Id") == "" || h.Get("Content-Length") != "" {
		c.t.Fatalf("%s %v", resp.Status, h)
	}
	return true
}

// said sends words and reads them back in upper case.
func (c conn) said(words ...string) {
	c.t.Helper()
	for _, word := range words {
		c.send("%s", word)
		got := make([]byte, len(word))
		if _, err := io.ReadFull(c.Reader, got); err != nil || string(got) != strings.ToUpper(word) {
			c.t.Fatalf("%q, %v", got, err)
		}
	}
}

// A connection becomes a tunnel if client and function agree. The tunnel outlives the function's
// time limit, takes one of its places, and ends with either side or with the function.
func TestTunnel(t *testing.T) {
	r := open(t)
	const limit = 300 * time.Millisecond // the function may start too late for this limit
	r.deploy("brief", func(c *image.Config) { c.Resources.Timeout = limit })
	r.deploy("f", nil)
	r.deploy("one", stdio)
	busy := func() (n int) {
		for _, f := range r.eng.Functions() {
			n += f.Busy
		}
		return n
	}
	var c conn
	eventually(t, "a tunnel to a function that has started", func() bool {
		c = r.dial()
		c.send("%searly", strings.Replace(shout, "/f/", "/brief/", 1))
		return c.switches()
	})
	got := make([]byte, 5)
	if _, err := io.ReadFull(c.Reader, got); err != nil || string(got) != "EARLY" {
		t.Fatalf("%q, %v", got, err)
	}
	<-time.After(limit + 100*time.Millisecond)
	c.said("one", "two", strings.Repeat("large", 30_000))
	eventually(t, "one place to be taken", func() bool { return busy() == 1 }) // earlier events are given up
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c.Reader); err != nil || len(rest) > 0 {
		t.Errorf("at the end %q, %v", rest, err)
	}
	eventually(t, "the end of the event", func() bool { return busy() == 0 })

	// A client that vanishes.
	c = r.dial()
	c.send("%s", shout)
	c.switched()
	c.said("x")
	if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	eventually(t, "the end of the event", func() bool { return busy() == 0 })

	// A function that declines, a function without upgrades, and forbidden requests.
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"not this protocol": {strings.Replace(shout, "Upgrade: shout", "Upgrade: whisper", 1), 426},
		"a body":            {strings.Replace(shout, "\r\n\r\n", "\r\nContent-Length: 1\r\n\r\nx", 1), 426},
		"no Connection":     {strings.Replace(shout, "Connection: Upgrade\r\n", "", 1), 426},
		"stdio":             {strings.Replace(shout, "/f/", "/one/", 1), 200},
	} {
		c := r.dial()
		c.send("%s", tt.request)
		if a, body, err := c.answer("GET"); a.StatusCode != tt.status || err != nil {
			t.Errorf("%s: %d %q, %v", name, a.StatusCode, body, err)
		}
		_ = c.Close()
	}

	// A new deployment ends the tunnels of the deployment before.
	c = r.dial()
	c.send("%s", shout)
	c.switched()
	c.said("x")
	if err := r.eng.RemoveFunction(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if !c.closed() {
		t.Error("a tunnel outlives its function")
	}
}

// A tunnel without traffic ends, even if its client only listens.
func TestTunnelIdle(t *testing.T) {
	for _, half := range []bool{false, true} {
		ended := make(chan error, 1)
		r := serveFake(t, func(ctx context.Context, _ string, r *engine.Request) (*engine.Response, error) {
			read, write := io.Pipe()
			go func() {
				_, err := io.Copy(io.Discard, r.Body)
				if err == nil {
					<-ctx.Done()
					err = context.Cause(ctx)
				}
				ended <- err
				_ = write.CloseWithError(errors.New("over"))
			}()
			return &engine.Response{Status: 101, Size: -1, Body: read, Header: [][2]string{{"Upgrade", "shout"}, {"X-Volume", "11"}}}, nil
		}, func(c *Config) {
			if c.TunnelIdle = 20 * time.Millisecond; half {
				c.TunnelIdle = 2 * time.Second // time for a slow client to end its direction
			}
		})
		c := r.dial()
		c.send("%s", shout)
		c.switched()
		if half {
			if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		if !c.closed() {
			t.Error("it goes on")
		}
		err := <-ended
		if _, ok := errors.AsType[*BodyError](err); half && !errors.Is(err, errTunnelIdle) || !half && !ok {
			t.Errorf("half %v: %v", half, err)
		}
	}
}
