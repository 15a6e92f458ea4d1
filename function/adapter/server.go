package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// server is the function's process.
type server struct {
	*child
	listener int  // the socket of a server that does not bind itself, else -1
	group    bool // start it as leader of a process group
	words    tail
	copied   chan struct{} // closed at the end of its stderr

	gone context.Context // ends with the process: the engine learns of the end before an event fails
}

// spawn starts the process. Its stderr goes to the adapter's stderr and to words.
func (s *server) spawn(c *children, program string, args, env []string, files []uintptr) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	files[2] = w.Fd()
	s.copied = make(chan struct{})
	s.child, err = c.start(program, args, &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: s.group}})
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return fmt.Errorf("the server cannot be started: %s: %w", args[0], err)
	}
	gone, end := context.WithCancel(context.Background())
	s.gone = gone
	go func() {
		<-s.exited
		end()
	}()
	go func() {
		_, _ = io.Copy(io.MultiWriter(os.Stderr, &s.words), r)
		_ = r.Close()
		close(s.copied)
	}()
	return nil
}

// waitCopied waits for the last stderr output of an ended process.
func (s *server) waitCopied() {
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-s.copied:
	case <-t.C: // another process holds stderr open
	}
}

// lookPath finds a program along PATH.
func lookPath(name string) (string, error) {
	program, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("the server cannot be started: %w (PATH=%s)", err, os.Getenv("PATH"))
	}
	return program, nil
}

// becomeVariable names the program that a child executes after it has learnt its pid: LISTEN_PID
// must name the process that uses the sockets.
const becomeVariable = "FRE_HTTP_BECOME"

func become() error {
	program := os.Getenv(becomeVariable)
	err := errors.Join(os.Unsetenv(becomeVariable), os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())))
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("the server cannot be started: %s: %w", program, err)
}

// environment is the function's: without the adapter's own variables.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name != "FRE_CHANNEL" && name != "PORT" && name != "FRE_CONTRACT" && name != "FRE_LAMBDA_EVENT" && !strings.HasPrefix(name, "FRE_HTTP_") {
			env = append(env, v)
		}
	}
	return env
}

// ended reports whether the process has ended, or ends within stopGrace.
func (s *server) ended() bool {
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-s.gone.Done():
		return true
	case <-t.C:
		return false
	}
}

// failure describes the server's end and its last output. Call it after exited.
func (s *server) failure() *channel.Failure {
	return &channel.Failure{Type: "ServerExited", Message: "the server ended with " + s.end(), Stack: s.words.String()}
}

// tail keeps the last lines of its input.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - tailSize; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.b), "\ufffd")
}

// stopGrace bounds the wait for the end of a server whose connections have ended, so that failures
// can name the cause of its end.
const stopGrace = 200 * time.Millisecond

// lookCode finds a program in the function's code, or else along PATH.
func lookCode(name string) (string, error) {
	if !strings.Contains(name, "/") {
		if program, err := lookPath("./" + name); err == nil {
			return program, nil
		}
	}
	return lookPath(name)
}

// passSignals passes the adapter's signals on to the process.
func (s *server) passSignals() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for sig := range signals {
			s.signal(sig.(syscall.Signal))
		}
	}()
}

// serve handles events until the engine closes the channel or the process ends, and returns the
// adapter's exit status.
func (s *server) serve(conn *net.UnixConn, ready channel.Ready, handle channel.Handler) int {
	err := channel.Serve(s.gone, conn, ready, handle)
	select {
	case <-s.exited: // ended before the engine asked for it
		fmt.Fprintln(os.Stderr, s.failure().Message)
		return exitFailed
	default:
	}
	s.signal(syscall.SIGTERM)
	if err != nil {
		return exitCode(err)
	}
	<-s.exited // or until the engine kills both
	return 0
}
