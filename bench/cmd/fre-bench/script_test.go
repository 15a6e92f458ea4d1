package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
)

// TestMain is also the program under test.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"fre-bench": main})
}

// The scripts testdata/*.txtar pass against an engine without sandboxes at FRE_SOCKET.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Setup: func(env *testscript.Env) error {
			socket := filepath.Join(env.WorkDir, "fre.sock")
			env.Setenv("FRE_SOCKET", socket)
			l, err := server.Listen(socket, "")
			if err != nil {
				return err
			}
			s := &http.Server{Handler: server.New(server.Config{Engine: servertest.New(), Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "v1"}})}
			served := make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			env.Defer(func() {
				if err := s.Shutdown(context.Background()); err != nil {
					panic(err)
				}
				<-served
			})
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// status N COMMAND… runs the command and requires exit status N.
			"status": func(ts *testscript.TestScript, _ bool, args []string) {
				got := "0"
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					got = strings.TrimPrefix(err.Error(), "exit status ")
				}
				if got != args[0] {
					ts.Fatalf("%s: %s, want exit status %s", strings.Join(args[1:], " "), got, args[0])
				}
			},
		},
	})
}
