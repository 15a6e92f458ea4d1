package system_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
)

// testSockets: WebSockets (RFC 6455) and server-sent events pass through the gateway to a packaged
// server with its own library. Client or server may end the connection.
func (w *world) testSockets(t *testing.T) {
	dial := func(t *testing.T) *websocket.Conn {
		t.Helper()
		conn, err := websocket.Dial("ws://"+w.d.Addr()+"/function/sockets/", "", w.d.URL("/"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	say := func(t *testing.T, conn *websocket.Conn, message any) {
		t.Helper()
		if err := websocket.Message.Send(conn, message); err != nil {
			t.Fatal(err)
		}
	}
	echo := func(t *testing.T, conn *websocket.Conn, text string) {
		t.Helper()
		say(t, conn, text)
		var got string
		if err := websocket.Message.Receive(conn, &got); err != nil || got != text {
			t.Fatalf("said %.20q, heard %.20q, %v", text, got, err)
		}
	}
	over := func(t *testing.T, conn *websocket.Conn) {
		t.Helper()
		var got string
		if err := websocket.Message.Receive(conn, &got); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("heard %.20q, %v; want the connection's end", got, err)
		}
	}
	unused := func(t *testing.T) {
		t.Helper()
		until(t, func() error {
			for _, s := range w.ps(t, "sockets") {
				if s.State == "busy" {
					return fmt.Errorf("%+v is busy, and nobody is connected", s)
				}
			}
			return nil
		})
	}

	t.Run("text and binary", func(t *testing.T) {
		conn := dial(t)
		for _, size := range []int{1, 125, 126, 70_000, 1 << 20} { // each form of a frame's length
			echo(t, conn, strings.Repeat("é", size/2)+"x")
			sent := bytes.Repeat([]byte{0, 0xff, '\n'}, size/3+1)
			say(t, conn, sent)
			var got []byte
			if err := websocket.Message.Receive(conn, &got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("sent %d bytes, got %d, %v", len(sent), len(got), err)
			}
		}
	})
	t.Run("the client closes", func(t *testing.T) {
		conn := dial(t)
		echo(t, conn, "here")
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		unused(t)
	})
	t.Run("the server closes", func(t *testing.T) {
		conn := dial(t)
		say(t, conn, "close")
		over(t, conn)
		_ = conn.Close()
		unused(t)
	})
	t.Run("the function dies", func(t *testing.T) {
		one, other := dial(t), dial(t)
		echo(t, one, "here")
		echo(t, other, "here, too")
		say(t, one, "die")
		over(t, one)
		over(t, other)
		// For a moment the instance still takes events and answers each with its reason to fail.
		until(t, func() error {
			a, err := w.call(t.Context(), "sockets", "/", "")
			if err == nil && a.Status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return err
		})
		echo(t, dial(t), "again")
	})
	t.Run("events", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.d.URL("/function/sockets/events"), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
			t.Errorf("content type %q", kind)
		}
		lines := bufio.NewReader(resp.Body)
		heard := func(want string) {
			t.Helper()
			line, err := lines.ReadString('\n')
			empty, err2 := lines.ReadString('\n')
			if line+empty != want || errors.Join(err, err2) != nil {
				t.Fatalf("heard %q, %v; want %q", line+empty, errors.Join(err, err2), want)
			}
		}
		heard("data: welcome\n\n")
		for range 3 { // each event arrives before the next request
			w.ok(t, "sockets", "/tell", "")
			heard("data: told\n\n")
		}
		w.ok(t, "sockets", "/finish", "")
		if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil {
			t.Errorf("at the end: %q, %v", rest, err)
		}
	})
	w.healthy(t)
}
