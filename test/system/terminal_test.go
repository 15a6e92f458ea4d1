package system_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	pty "github.com/fre-engine/fre/sandbox"
)

// TestTerminals sits at a terminal and runs fre there, whose containers have one too:
// what is typed and printed, its size and Ctrl-C get through, and whichever way fre
// ends the terminal is as it was.
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
	u.sees("> ready\r\n")
	u.types("args one two\r")
	u.sees("args one two\r\none|two\r\n> ok\r\n") // the container's terminal echoes
	u.types("winsize\r")
	u.sees("30 100\r\n> ok\r\n")
	u.resize(40, 120)
	for !u.saw("40 120\r\n> ok\r\n") { // a resize and what is typed go different ways
		u.types("winsize\r")
		u.sees("> ok\r\n")
	}
	u.types("trap\r")
	u.sees("ready\r\n")
	u.types("\x03")
	u.sees("terminated\r\n> ok\r\n")
	u.types("\x10\x11")
	u.sees("fre attach term")
	u.leaves(0)
	if got := running(); got != "term running\n" {
		t.Errorf("once it was left there is %q", got)
	}

	// Others come back, and leave by keys of their own, a signal, or the end.
	u = w.sitDown(t, "attach", "--detach-keys", "ctrl-a,x", "term")
	u.types("winsize\r")
	u.sees("30 100\r\n> ok\r\n")
	u.types("args \x10\x11\r") // nothing special now
	u.sees("> ok\r\n")
	u.types("\x01x")
	u.leaves(0)
	u = w.sitDown(t, "attach", "term")
	u.types("args back\r")
	u.sees("back\r\n> ok\r\n")
	u.signals(unix.SIGTERM)
	u.leaves(130)
	if got := running(); got != "term running\n" {
		t.Errorf("after a signal there is %q", got)
	}
	u = w.sitDown(t, "attach", "term")
	u.types("exit 3\r")
	u.leaves(3)
	until(t, func() error {
		if got := running(); got != "" {
			return errors.New("after its end there is " + got)
		}
		return nil
	})

	// A run belongs to its fre.
	u = w.sitDown(t, "run", "-it", "ordinary", "--", "orders")
	u.sees("> ready\r\n")
	u.signals(unix.SIGHUP)
	u.leaves(128 + int(unix.SIGKILL))
	w.cli(t, "create", "-it", "--name", "again", "ordinary")
	for range 2 {
		u = w.sitDown(t, "start", "-a", "-i", "again")
		u.sees("> ready\r\n")
		u.types("exit 4\r")
		u.leaves(4)
	}
	w.refused(t, []string{"no terminal", "--no-stdin"}, "start", "-a", "-i", "again")
	w.refused(t, []string{"no terminal"}, "run", "-it", "ordinary")
	w.refused(t, []string{"detach-keys", "is no key"}, "attach", "--detach-keys", "escape", "again")
	w.cli(t, "rm", "again")
	if got := running(); got != "" {
		t.Errorf("what was refused left %q", got)
	}

	// The engine dies while somebody types.
	u = w.sitDown(t, "run", "-it", "ordinary")
	u.sees("> ready\r\n")
	w.d.Kill()
	u.sees("fre: engine broke off")
	u.leaves(125)
	w.restart(t)
	if got := running(); got != "" {
		t.Errorf("after a crash there is %q", got)
	}
	w.cli(t, "image", "rm", "ordinary")
}

// user is a terminal and fre, which runs at it.
type user struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File // what the user's hands and eyes are at
	tty    *os.File
	before unix.Termios
	screen []byte // what has been read and was not looked for
	last   []byte // what was found
}

// sitDown runs fre at a new terminal of 30 lines and 100 columns.
func (w *world) sitDown(t *testing.T, args ...string) *user {
	t.Helper()
	u := &user{t: t}
	var err error
	if u.master, u.tty, err = pty.OpenTerminal(0); err != nil {
		t.Fatal(err)
	}
	u.resize(30, 100)
	u.before = u.termios()
	u.cmd = exec.CommandContext(t.Context(), w.bin, append([]string{"--socket", w.d.Socket()}, args...)...)
	u.cmd.Stdin, u.cmd.Stdout, u.cmd.Stderr = u.tty, u.tty, u.tty
	u.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true} // which SIGWINCH needs
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *user) termios() unix.Termios {
	u.t.Helper()
	got, err := unix.IoctlGetTermios(int(u.tty.Fd()), unix.TCGETS)
	if err != nil {
		u.t.Fatal(err)
	}
	return *got
}

func (u *user) types(text string) {
	u.t.Helper()
	if _, err := u.master.WriteString(text); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) resize(rows, columns uint16) {
	u.t.Helper()
	if err := pty.ResizeTerminal(u.master, rows, columns); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) signals(sig unix.Signal) {
	u.t.Helper()
	if err := u.cmd.Process.Signal(sig); err != nil {
		u.t.Fatal(err)
	}
}

// sees waits until the text is on the screen, and looks no more at what is before it.
func (u *user) sees(text string) {
	u.t.Helper()
	buf := make([]byte, 4096)
	for {
		if i := bytes.Index(u.screen, []byte(text)); i >= 0 {
			end := i + len(text)
			u.last, u.screen = u.screen[:end], u.screen[end:]
			return
		}
		n, err := u.master.Read(buf)
		if u.screen = append(u.screen, buf[:n]...); err != nil {
			u.t.Fatalf("waiting for %q: %v; the screen says %q", text, err, u.screen)
		}
	}
}

// saw says whether what was looked for last came with the text.
func (u *user) saw(text string) bool { return strings.Contains(string(u.last), text) }

// leaves waits for the end of fre, which leaves the terminal as it was.
func (u *user) leaves(status int) {
	u.t.Helper()
	_ = u.cmd.Wait()
	if got := u.cmd.ProcessState.ExitCode(); got != status {
		u.t.Errorf("%q: exit status %d, want %d; the screen says %q", u.cmd.Args, got, status, u.screen)
	}
	if diff := cmp.Diff(u.before, u.termios()); diff != "" {
		u.t.Errorf("%q: its terminal was left otherwise than it was found (-before +after):\n%s", u.cmd.Args, diff)
	}
	if err := errors.Join(u.tty.Close(), u.master.Close()); err != nil {
		u.t.Error(err)
	}
}
