package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
	"github.com/fre-engine/fre/video/asset"
)

// TestMain runs the test's program as fre-video when a script calls it.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"fre-video": main})
}

// transcoder is an engine without sandboxes whose transcoder finds no video in any file.
type transcoder struct{ *servertest.Engine }

// Invoke answers like the transcoder.
func (t transcoder) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	if _, err := t.Engine.Invoke(ctx, name, r); err != nil {
		return nil, err
	}
	if r.Body != nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
	}
	status, text := http.StatusNoContent, ""
	switch {
	case r.Path == "/sources/":
		status, text = http.StatusOK, "[]"
	case r.Path == "/probe":
		status, text = http.StatusUnprocessableEntity, "open the source: Invalid data found when processing input"
	case r.Method == http.MethodGet:
		status = http.StatusNotFound
	}
	return &engine.Response{ID: "i", Status: status, Size: int64(len(text)), Body: io.NopCloser(strings.NewReader(text))}, nil
}

// startEngine serves a transcoder at a socket until stop is called.
func startEngine(socket string) (stop func(), err error) {
	l, err := server.Listen(socket, "")
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: server.New(server.Config{Engine: transcoder{servertest.New()}, Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "v1"}})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() {
		_ = s.Close()
		<-done
	}, nil
}

// reachable waits until a service answers at an address.
func reachable(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return testdaemon.Until(ctx, func() error {
		a, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			err = a.Body.Close()
		}
		return err
	})
}

// startService runs fre-video serve in this process.
func startService(args ...string) (addr string, stop func(), err error) {
	if addr, err = testdaemon.FreeAddress(); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	root := newRoot()
	root.SetArgs(append([]string{"serve", "--listen", addr, "--log-level", "error"}, args...))
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			panic(fmt.Sprintf("fre-video serve: %v", err))
		}
	}
	if err := reachable(addr); err != nil {
		cancel()
		return "", nil, errors.Join(err, <-ended)
	}
	return addr, stop, nil
}

// TestScripts runs testdata/*.txtar. Each script has a service at FRE_VIDEO_URL with an engine
// without sandboxes. $READY and $FAILED are assets of the service. $OTHER is a server without a
// video API, $FREE an address without a listener.
func TestScripts(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/lost/") {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "<html>")
	}))
	t.Cleanup(other.Close) // after the scripts, which run in parallel
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			socket, state := filepath.Join(env.WorkDir, "fre.sock"), filepath.Join(env.WorkDir, "state")
			stop, err := startEngine(socket)
			if err != nil {
				return err
			}
			env.Defer(stop)
			library, _, err := asset.Open(state)
			if err != nil {
				return err
			}
			ready := &asset.Asset{ID: strings.Repeat("r", 16), Name: "holidays.mp4", Created: time.Unix(1000, 0).UTC(), State: asset.Ready, Made: "m", Duration: 12.5}
			failed := &asset.Asset{ID: strings.Repeat("f", 16), Name: "torn.mp4", Created: time.Unix(999, 0).UTC(), State: asset.Failed, Error: "moov atom not found"}
			if err := errors.Join(library.Create(ready), library.Create(failed), os.WriteFile(library.Path(failed.ID, "source"), []byte("x"), 0o600), library.Close()); err != nil {
				return err
			}
			addr, end, err := startService("--state", state, "--engine", socket, "--max-bytes", "1000000")
			if err != nil {
				return err
			}
			env.Defer(end)
			free, err := testdaemon.FreeAddress()
			if err != nil {
				return err
			}
			for name, value := range map[string]string{
				"FRE_VIDEO_URL": "http://" + addr, "ADDR": addr, "READY": ready.ID, "FAILED": failed.ID, "OTHER": other.URL, "FREE": free,
				"XDG_STATE_HOME": filepath.Join(env.WorkDir, "home"), "TZ": "UTC",
			} {
				env.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// status N COMMAND…: run COMMAND and expect exit status N.
			"status": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec(args[1], args[2:]...)
				got := "0"
				if err != nil {
					got = strings.TrimPrefix(err.Error(), "exit status ")
				}
				if got != args[0] {
					ts.Fatalf("%s: %s, want exit status %s", strings.Join(args[1:], " "), got, args[0])
				}
			},
			// reachable ADDR: wait until a service answers at ADDR.
			"reachable": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(reachable(args[0])) },
			// json FIELD VALUE: check a field of the last command's output.
			"json": func(ts *testscript.TestScript, _ bool, args []string) {
				var v map[string]any
				ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
				if got := fmt.Sprint(v[args[0]]); got != args[1] {
					ts.Fatalf("%s is %q, want %q", args[0], got, args[1])
				}
			},
		},
	})
}
