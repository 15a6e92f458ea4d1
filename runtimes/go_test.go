package runtimes_test

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/channel"
)

// A line of slog reaches the log of its event, cut to the size of a frame.
func TestGoLog(t *testing.T) {
	i := inGo(t).start(t, "all.attributes")
	if _, err := i.invoke(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`1 info paid level=3 of="two words"`, ("1 info long a=1 g.b=" + strings.Repeat("x", 100<<10))[:len("1 info ")+32<<10]} {
		if diff := cmp.Diff(want, <-i.logs); diff != "" {
			t.Error(diff)
		}
	}
}

// TestGoAlone: A Go function that FRE did not start exits and names the command fre deploy.
func TestGoAlone(t *testing.T) {
	args, _ := inGo(t).command("")
	cmd := exec.CommandContext(t.Context(), args[0], "all.text")
	cmd.Env = []string{"FRE_CHANNEL=none"}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 64 || !strings.Contains(string(out), "fre deploy") {
		t.Errorf("got %v, %s", err, out)
	}
}

// TestWeb: An http.Handler gets the event as a request, and its response is the answer.
func TestWeb(t *testing.T) {
	plain := typedWeb("text/plain; charset=utf-8")
	for _, tt := range []struct {
		handler string
		event   channel.Invocation
		body    string
		want    answer
	}{
		{"request", channel.Invocation{
			Request: channel.Request{Method: "PUT", Path: "/a%20b", Query: "x=1", Headers: [][2]string{{"Host", "example.org"}, {"x-twice", "1"}, {"X-Twice", "2"}}},
		}, "body", answer{418, append(plain, [2]string{"X-Error", "<nil>"}), `["PUT","/a b","x=1","example.org",["1","2"],"body",4]` + "\n"}},
		{"empty", channel.Invocation{Request: channel.Request{Method: "GET", Path: "/"}}, "", answer{200, [][2]string{}, ""}},
		{"none", channel.Invocation{Request: channel.Request{Method: "GET", Path: "/"}}, "", answer{204, [][2]string{}, ""}},
		{"html", channel.Invocation{Request: channel.Request{Method: "GET", Path: "/"}}, "", answer{200, typedWeb("text/html; charset=utf-8"), "<!doctype html><p>"}},
		{"mux", channel.Invocation{Request: channel.Request{Method: "GET", Path: "/items/7"}}, "", answer{200, plain, "7"}},
		{"mux", channel.Invocation{Request: channel.Request{Method: "GET", Path: "//items/7"}}, "", answer{307, append(typedWeb("text/html; charset=utf-8"), [2]string{"Location", "/items/7"}), "<a href=\"/items/7\">Temporary Redirect</a>.\n\n"}},
		{"echo", channel.Invocation{Request: channel.Request{Method: "POST", Path: "/"}}, strings.Repeat("0123456789", 100_000), answer{200, typedWeb(byteType), strings.Repeat("0123456789", 100_000)}},
		{"echo", channel.Invocation{Request: channel.Request{Method: "POST", Path: "/%zz"}}, "", answer{400, [][2]string{{"content-type", textType}}, "parse \"/%zz\": invalid URL escape \"%zz\"\n"}},
	} {
		t.Run(tt.handler+" "+tt.event.Path, func(t *testing.T) {
			i := inGo(t).start(t, "web."+tt.handler)
			for range 2 {
				tt.event.Body = strings.NewReader(tt.body)
				r, err := i.Invoke(t.Context(), &tt.event)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, answer{r.Status, r.Headers, string(b)}); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func typedWeb(t string) [][2]string { return [][2]string{{"Content-Type", t}} }

// TestWebPanics: A panic of an http.Handler fails its event.
func TestWebPanics(t *testing.T) {
	for handler, begun := range map[string]string{"panics": "", "breaks": "begun"} {
		i := inGo(t).start(t, "web."+handler)
		got, err := i.invoke(t.Context(), "")
		var f *channel.Failure
		if !errors.As(err, &f) || f.Message != "no such thing" || !strings.HasPrefix(f.Stack, "github.com/fre-engine/fre/runtimes_test.webPanics\n") || strings.Contains(f.Stack, "net/http") {
			t.Errorf("%s: got %v, stack:\n%s", handler, err, f.Stack)
		}
		if got.Body != begun {
			t.Errorf("%s: body %q before the failure, want %q", handler, got.Body, begun)
		}
	}
}

// An answer streams while its request streams: each piece of the answer comes before the next piece
// of the request.
func TestWebStreams(t *testing.T) {
	i := inGo(t).start(t, "web.ticks")
	read, write := io.Pipe()
	defer write.Close()
	// The channel reads 32 KiB of a body ahead.
	go func() { _, _ = io.WriteString(write, strings.Repeat("x", 40<<10)) }()
	r, err := i.Invoke(t.Context(), &channel.Invocation{Request: channel.Request{Method: "POST", Path: "/", Body: read}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.CopyN(io.Discard, r.Body, 40<<10); err != nil {
		t.Fatal(err)
	}
	for _, tick := range []string{"one", "two"} {
		if _, err := io.WriteString(write, tick); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(tick))
		if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != tick {
			t.Fatalf("got %q, %v, want %q", got, err, tick)
		}
	}
}

// A broken-off answer ends its handler, and only then is the place free.
func TestWebCancel(t *testing.T) {
	i := inGo(t).start(t, "web.endless")
	for range 2 {
		finished := make(chan struct{})
		r, err := i.Invoke(t.Context(), &channel.Invocation{Request: channel.Request{Path: "/"}, Finished: func() { close(finished) }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, r.Body, 1<<20); err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		<-finished
	}
}
