package daemontest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
)

// Terminal is a program at a terminal, together with its user, who types and reads the screen.
type Terminal struct {
	t           testing.TB
	cmd         *exec.Cmd
	master, tty *os.File
	before      unix.Termios
	screen      []byte // output that Sees has not searched yet
	found       []byte // output up to the end of the text that Sees found last
}

// RunAtTerminal starts cmd at a new terminal that belongs to root. The caller waits for the
// program's end with Leaves.
func RunAtTerminal(t testing.TB, cmd *exec.Cmd, rows, columns uint16) *Terminal {
	t.Helper()
	u := &Terminal{t: t, cmd: cmd}
	var err error
	if u.master, u.tty, err = sandbox.OpenTerminal(0); err != nil {
		t.Fatal(err)
	}
	u.Resize(rows, columns)
	u.before = u.termios()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = u.tty, u.tty, u.tty
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true} // SIGWINCH goes to the process that has the controlling terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *Terminal) termios() unix.Termios {
	u.t.Helper()
	got, err := unix.IoctlGetTermios(int(u.tty.Fd()), unix.TCGETS)
	if err != nil {
		u.t.Fatal(err)
	}
	return *got
}

// Types sends keys.
func (u *Terminal) Types(keys string) {
	u.t.Helper()
	if _, err := u.master.WriteString(keys); err != nil {
		u.t.Fatal(err)
	}
}

// Resize changes the size of the window.
func (u *Terminal) Resize(rows, columns uint16) {
	u.t.Helper()
	if err := sandbox.ResizeTerminal(u.master, rows, columns); err != nil {
		u.t.Fatal(err)
	}
}

// Signal sends sig to the program.
func (u *Terminal) Signal(sig unix.Signal) {
	u.t.Helper()
	if err := u.cmd.Process.Signal(sig); err != nil {
		u.t.Fatal(err)
	}
}

// Sees waits until the text is on the screen. The next search begins behind the text.
func (u *Terminal) Sees(text string) {
	u.t.Helper()
	buf := make([]byte, 4096)
	if err := u.master.SetReadDeadline(time.Now().Add(within)); err != nil {
		u.t.Fatal(err)
	}
	for {
		if i := bytes.Index(u.screen, []byte(text)); i >= 0 {
			end := i + len(text)
			u.found, u.screen = u.screen[:end], u.screen[end:]
			return
		}
		n, err := u.master.Read(buf)
		if u.screen = append(u.screen, buf[:n]...); err != nil {
			u.t.Fatalf("waiting for %q: %v; the screen says %q", text, err, u.screen)
		}
	}
}

// Saw reports whether the text was on the screen before the end of the last search.
func (u *Terminal) Saw(text string) bool { return strings.Contains(string(u.found), text) }

// Leaves waits for the program's end, and checks the exit status and that the program restored the
// terminal's settings.
func (u *Terminal) Leaves(status int) {
	u.t.Helper()
	late := time.AfterFunc(within, func() { _ = u.cmd.Process.Kill() })
	defer late.Stop()
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
