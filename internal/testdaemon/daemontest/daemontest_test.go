package daemontest

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// TestMain: TestMain runs the program under test if the arguments ask for it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serve answers until SIGTERM. FAULT names the fault after the signal.
func serve(args []string) error {
	fault := os.Getenv("FAULT")
	if fault == "orphan" {
		if err := exec.Command("sleep", "600").Start(); err != nil {
			return err
		}
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	failed := make(chan error, 1)
	go func() {
		failed <- http.ListenAndServe(args[slices.Index(args, "--listen")+1], http.HandlerFunc(healthy))
	}()
	select {
	case err := <-failed:
		return err
	case <-term:
	}
	if fault == "status" {
		return errors.New("could not stop")
	}
	return nil
}

func healthy(http.ResponseWriter, *http.Request) {}

// recorder records the errors of a failing test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Error(args ...any) { r.errors = append(r.errors, fmt.Sprint(args...)) }

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestStop: a test fails if its engine ends badly or leaves a process behind.
func TestStop(t *testing.T) {
	t.Setenv("FRE_BIN", os.Args[0])
	for fault, want := range map[string]string{"": "", "status": "exit status 1", "orphan": "(sleep) survived"} {
		t.Run("fault "+fault, func(t *testing.T) {
			t.Setenv("FAULT", fault)
			d := Start(t, testdaemon.Config{State: filepath.Join(t.TempDir(), "state"), Log: t.Output()})
			for _, p := range testdaemon.Descendants(d.PID()) {
				t.Cleanup(func() { _ = syscall.Kill(p.PID, syscall.SIGKILL) })
			}
			r := recorder{TB: t}
			Stop(&r, d)
			if got := strings.Join(r.errors, "\n"); !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestDir(t *testing.T) {
	var dir string
	t.Run("in use", func(t *testing.T) {
		dir = Dir(t)
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s after its test: %v, want it gone", dir, err)
	}
}
