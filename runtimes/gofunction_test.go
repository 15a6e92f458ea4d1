package runtimes_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/fre-engine/fre/function"
	"github.com/fre-engine/fre/function/web"
)

// goFunction is this test's program as a function written in Go. The argument names the handler, as
// in the testdata of other languages.
func goFunction(handler string) {
	if handler == "raising.handle" {
		function.Load(func() function.Handler { panic(&rangeError{"at import"}) })
	}
	if handler == "limits.handle" {
		handler = "all.limits"
	}
	if h, ok := goHandlers[strings.TrimPrefix(handler, "all.")]; ok {
		function.Handle(h)
	}
	if h, ok := goWebHandlers[strings.TrimPrefix(handler, "web.")]; ok {
		web.Serve(h)
	}
	fmt.Fprintf(os.Stderr, "no handler %q\n", handler)
	os.Exit(2)
}

type rangeError struct{ message string }

func (e *rangeError) Error() string { return e.message }

var errNoSuchThing = &rangeError{"no such thing"}

// goHandlers are package-level functions if a stack trace must name them.
var goHandlers = map[string]function.Handler{
	"echo": func(_ context.Context, e function.Event) (any, error) {
		body, err := e.Bytes()
		return function.Response{Status: 201, Header: function.Header{{"X-Path", e.Path}, {"x-many", "a"}, {"x-many", "b"}}, Body: body}, err
	},
	"large": func(context.Context, function.Event) (any, error) { return sealed() },
	"opened": func(context.Context, function.Event) (any, error) {
		f, err := os.CreateTemp("", "fre-test-")
		if err != nil {
			return nil, err
		}
		content, err := largeBytes(), os.Remove(f.Name())
		if err == nil {
			_, err = f.Write(append([]byte("skipped"), content...))
		}
		if err == nil {
			_, err = f.Seek(7, io.SeekStart)
		}
		return function.Response{Status: 203, Header: function.Header{{"content-type", "x/y"}}, Body: f}, err
	},
	"opened_pipe": func(context.Context, function.Event) (any, error) {
		r, w, err := os.Pipe()
		if err == nil {
			_, err = w.WriteString("from a pipe")
			_ = w.Close()
		}
		return r, err
	},
	"calls": func(ctx context.Context, e function.Event) (any, error) {
		body, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		r, err := function.Call(ctx, e.Path[1:], body, function.CallOptions{Method: "PUT", Path: cmp.Or(e.RawQuery, "/p?q=1"), Header: function.Header{{"x-a", "1"}}})
		if refused := (*function.CallError)(nil); errors.As(err, &refused) {
			return "CallError " + refused.Code, nil
		} else if err != nil {
			return nil, err
		}
		return function.Response{Status: r.Status, Header: function.Header{{"x-b", r.Header.Get("x-b")}}, Body: r.Body}, nil
	},
	"acalls": func(ctx context.Context, e function.Event) (any, error) {
		body, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		var wg sync.WaitGroup
		var answers [3]string
		for i := range answers {
			wg.Go(func() {
				if r, err := function.Call(ctx, "f", fmt.Sprintf("%s%d", body, i), function.CallOptions{}); err == nil {
					b, _ := r.Bytes()
					answers[i] = string(b)
				}
			})
		}
		wg.Wait()
		return strings.Join(answers[:], " "), nil
	},
	"calls_left": func(ctx context.Context, _ function.Event) (any, error) {
		go func() { _, _ = function.Call(ctx, "waits", nil, function.CallOptions{}) }()
		return "left", nil
	},
	"pipe": func(_ context.Context, e function.Event) (any, error) { return e.Body, nil },
	"describe": func(ctx context.Context, e function.Event) (any, error) {
		text, err := e.Bytes()
		left, ok := ctx.Deadline()
		return map[string]any{
			"method": e.Method, "path": e.Path, "query": e.Query(), "header": e.Header.Get("X-TWICE"), "text": string(text),
			"function": e.Function, "id": e.ID, "tenant": e.Tenant, "deadline": float64(e.Deadline.UnixMilli()) / 1000,
			"left": ok && left.Equal(e.Deadline),
		}, err
	},
	"text":    value("grüße"),
	"data":    value([]byte{0, 255}),
	"nothing": value(nil),
	"array":   value([]any{1, "two", nil}),
	"json_in": func(_ context.Context, e function.Event) (any, error) {
		var list []int
		sum := 0
		err := e.JSON(&list)
		for _, n := range list {
			sum += n
		}
		return map[string]int{"sum": sum}, err
	},
	"stream": value(func(yield func(string, error) bool) {
		for i := 0; i < 5 && yield(fmt.Sprintf("part %d\n", i), nil); i++ {
		}
	}),
	"stream_status": value(&function.Response{Status: 202, Header: function.Header{{"content-type", "text/x"}}, Body: func(yield func([]byte, error) bool) {
		for i := 0; i < 30 && yield(bytes.Repeat([]byte("x"), 100_000), nil); i++ {
		}
	}}),
	"stream_nothing":      value(func(func([]byte, error) bool) {}),
	"stream_raises":       streamRaises,
	"stream_raises_first": value(func(yield func(string, error) bool) { yield("", &rangeError{"at first"}) }),
	"stream_error": value(func(yield func(string, error) bool) {
		if yield("begun", nil) {
			yield("", fmt.Errorf("wrapped: %w", &rangeError{"in the middle"}))
		}
	}),
	"reader": func(context.Context, function.Event) (any, error) {
		return io.MultiReader(strings.NewReader("a"), strings.NewReader("b")), nil
	},
	"endless": value(func(yield func([]byte, error) bool) {
		for yield(bytes.Repeat([]byte("x"), 10_000), nil) {
		}
	}),
	"children": func(ctx context.Context, _ function.Event) (any, error) {
		return exec.CommandContext(ctx, "/bin/sh", "-c", "readlink /proc/self/fd/3 || echo none").Output()
	},

	"raises": func(context.Context, function.Event) (any, error) {
		return nil, fmt.Errorf("outer: %w", errNoSuchThing)
	},
	"raises_text":    func(context.Context, function.Event) (any, error) { return nil, errors.New("plain text") },
	"panics":         panics,
	"panics_text":    func(context.Context, function.Event) (any, error) { panic("plain text") },
	"index":          func(_ context.Context, e function.Event) (any, error) { return e.Path[math.MaxInt16:], nil },
	"unserialisable": value(math.NaN()),
	"wrong_type":     value(func() {}),
	"error_value":    value(errNoSuchThing),
	"bad_status":     value(function.Response{Status: 99}),
	"bad_header":     value(function.Response{Header: function.Header{{"a", "b\r\nc: d"}}}),
	"many_headers":   value(function.Response{Header: make(function.Header, 300)}),
	"big_headers":    value(function.Response{Header: function.Header{{"a", strings.Repeat("b", 300<<10)}}}),
	"dies":           func(context.Context, function.Event) (any, error) { os.Exit(3); return nil, nil },

	"logs": func(ctx context.Context, _ function.Event) (any, error) {
		l := function.Logger(ctx)
		l.Debug("d")
		l.Info("i 7")
		l.Warn("w")
		l.Error("e")
		return "ok", nil
	},
	"attributes": func(ctx context.Context, _ function.Event) (any, error) {
		slog.Default().InfoContext(ctx, "paid", "level", 3, "of", "two words")
		slog.Default().With("a", 1).WithGroup("g").InfoContext(ctx, "long", "b", strings.Repeat("x", 100<<10))
		return "ok", nil
	},
	"prints": func(context.Context, function.Event) (any, error) {
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		return "ok", nil
	},
	"concurrent": func() function.Handler {
		var mu sync.Mutex
		meet, waiting := make(chan struct{}), 0
		return func(_ context.Context, e function.Event) (any, error) { // returns once eight events run at once
			mu.Lock()
			here := meet
			if waiting++; waiting == 8 {
				close(meet)
				meet, waiting = make(chan struct{}), 0
			}
			mu.Unlock()
			<-here
			return e.Bytes()
		}
	}(),
	"waits": func(ctx context.Context, _ function.Event) (any, error) {
		function.Logger(ctx).Info("waiting")
		<-ctx.Done()
		return nil, ctx.Err()
	},
	"limits": func(context.Context, function.Event) (any, error) {
		return []int64{int64(runtime.GOMAXPROCS(0)), debug.SetMemoryLimit(-1)}, nil
	},
}

func value(v any) function.Handler {
	return func(context.Context, function.Event) (any, error) { return v, nil }
}

func panics(context.Context, function.Event) (any, error) { panic(errNoSuchThing) }

func streamRaises(context.Context, function.Event) (any, error) {
	return func(yield func(string, error) bool) {
		if yield("begun", nil) {
			panic(&rangeError{"in the middle"})
		}
	}, nil
}

var goWebHandlers = map[string]http.Handler{
	"request": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("X-Error", fmt.Sprint(err))
		w.WriteHeader(http.StatusTeapot)
		_ = json.NewEncoder(w).Encode([]any{r.Method, r.URL.Path, r.URL.RawQuery, r.Host, r.Header["X-Twice"], string(body), r.ContentLength})
	}),
	"empty":  http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	"none":   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	"html":   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<!doctype html><p>") }),
	"panics": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { webPanics() }),
	"breaks": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		webPanics()
	}),
	"mux": func() http.Handler {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /items/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.PathValue("id")) })
		return mux
	}(),
	"echo": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.Copy(w, r.Body)
	}),
	"ticks": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // each line waits for a line of the request
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			if err != nil {
				return
			}
			_, _ = w.Write(buf[:n])
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
		}
	}),
	"endless": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 10_000)); err != nil {
				return
			}
		}
	}),
}

func webPanics() { panic(errNoSuchThing) }

// inGo is the language of this test's program.
func inGo(t testing.TB) language {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return language{
		name: "go", command: func(string) ([]string, []string) { return []string{self}, []string{"GOTRACEBACK=none"} },
		errType: "*runtimes_test.rangeError", refusal: "*function.AnswerError", typeError: "*function.AnswerError",
	}
}

func largeBytes() []byte { return bytes.Repeat([]byte("0123456789abcdef"), 1<<16) }

// sealed returns the same file at each call.
var sealed = sync.OnceValues(func() (*function.Sealed, error) { return function.Seal(largeBytes()) })
