package system_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// A container at a terminal gets the input, the window size and Ctrl-C of fre's own terminal, and
// prints there. After each way to end, fre restores the terminal.
func TestTerminals(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	w := newWorld(t)
	w.prepared, w.state = false, filepath.Join(w.dir, "state")
	w.restart(t)
	t.Cleanup(func() { w.stop(t) })
	w.cli(t, "image", "import", "-q", "-c", `ENTRYPOINT ["/bin/prog"]`, "-c", `CMD ["orders"]`, archive(t, w.dir), "ordinary")
	running := func() string { return w.cli(t, "ps", "-a", "--format", "{{.Name}} {{.State}}") }

	u := w.sitDown(t, "run", "-i", "-t", "--name", "term", "ordinary")
	u.Sees("> ready\r\n")
	u.Types("args one two\r")
	u.Sees("args one two\r\none|two\r\n> ok\r\n") // the container's terminal echoes
	u.Types("winsize\r")
	u.Sees("30 100\r\n> ok\r\n")
	u.Resize(40, 120)
	for !u.Saw("40 120\r\n> ok\r\n") { // a resize and input take different paths
		u.Types("winsize\r")
		u.Sees("> ok\r\n")
	}
	u.Types("trap\r")
	u.Sees("ready\r\n")
	u.Types("\x03")
	u.Sees("terminated\r\n> ok\r\n")
	u.Types("\x10\x11")
	u.Sees("fre attach term")
	u.Leaves(0)
	if got := running(); got != "term running\n" {
		t.Errorf("once it was left there is %q", got)
	}

	// A client comes back and leaves by its own keys, by a signal, or at the container's end.
	u = w.sitDown(t, "attach", "--detach-keys", "ctrl-a,x", "term")
	u.Types("winsize\r")
	u.Sees("30 100\r\n> ok\r\n")
	u.Types("args \x10\x11\r") // without effect now
	u.Sees("> ok\r\n")
	u.Types("\x01x")
	u.Leaves(0)
	u = w.sitDown(t, "attach", "term")
	u.Types("args back\r")
	u.Sees("back\r\n> ok\r\n")
	u.Signal(unix.SIGTERM)
	u.Leaves(130)
	if got := running(); got != "term running\n" {
		t.Errorf("after a signal there is %q", got)
	}
	u = w.sitDown(t, "attach", "term")
	u.Types("exit 3\r")
	u.Leaves(3)
	until(t, func() error {
		if got := running(); got != "" {
			return errors.New("after its end there is " + got)
		}
		return nil
	})

	// A run ends with its fre.
	u = w.sitDown(t, "run", "-it", "ordinary", "--", "orders")
	u.Sees("> ready\r\n")
	u.Signal(unix.SIGHUP)
	u.Leaves(128 + int(unix.SIGKILL))
	w.cli(t, "create", "-it", "--name", "again", "ordinary")
	for range 2 {
		u = w.sitDown(t, "start", "-a", "-i", "again")
		u.Sees("> ready\r\n")
		u.Types("exit 4\r")
		u.Leaves(4)
	}
	w.refused(t, []string{"no terminal", "--no-stdin"}, "start", "-a", "-i", "again")
	w.refused(t, []string{"no terminal"}, "run", "-it", "ordinary")
	w.refused(t, []string{"detach-keys", "bad key"}, "attach", "--detach-keys", "escape", "again")
	u = w.sitDown(t, "attach", "again") // the container does not run yet; the client can leave anyway
	u.Sees("fre: container again does not run; to start the container: fre start again\r\n")
	u.Types("\x10\x11")
	u.Sees("fre attach again")
	u.Leaves(0)
	w.cli(t, "rm", "again")
	until(t, func() error { // the first run may still be ending
		if got := running(); got != "" {
			return errors.New("what was refused left " + got)
		}
		return nil
	})

	// The engine dies during input.
	u = w.sitDown(t, "run", "-it", "ordinary")
	u.Sees("> ready\r\n")
	w.d.Kill()
	u.Sees("fre: engine broke off")
	u.Leaves(125)
	w.restart(t)
	if got := running(); got != "" {
		t.Errorf("after a crash there is %q", got)
	}
	w.cli(t, "image", "rm", "ordinary")
}

// sitDown runs fre at a new terminal of 30 lines and 100 columns.
func (w *world) sitDown(t *testing.T, args ...string) *daemontest.Terminal {
	t.Helper()
	return daemontest.RunAtTerminal(t, exec.CommandContext(t.Context(), w.bin, append([]string{"--socket", w.d.Socket()}, args...)...), 30, 100)
}
