package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
)

// server is the function's process.
type server struct {
	pid      int
	listener int           // the socket of a server that does not bind itself, else -1
	exited   chan struct{} // closed once it has been reaped
	status   unix.WaitStatus
	words    tail
	copied   chan struct{} // closed at the end of its stderr
}

// start starts the server, and reaps whatever ends in the sandbox from then on.
// It sets cfg.address.
func start(cfg *config, args []string) (*server, error) {
	s := &server{listener: -1, exited: make(chan struct{}), copied: make(chan struct{})}
	l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(cfg.port))
	if err != nil {
		return nil, err
	}
	cfg.address = l.Addr().String()
	cfg.port = l.Addr().(*net.TCPAddr).Port
	files := []uintptr{0, 1, 2}
	if cfg.bind {
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		s.listener = int(f.Fd())
		// Accepted sockets inherit it; servers that did not make the socket may not
		// know that it is one of TCP's.
		if err := unix.SetsockoptInt(s.listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return nil, err
		}
		files = append(files, f.Fd())
	}
	if err := l.Close(); err != nil { // the file is another descriptor of the socket's
		return nil, err
	}
	env, port := environment(cfg), strconv.Itoa(cfg.port)
	for i := range args {
		args[i] = strings.NewReplacer("${PORT}", port, "$PORT", port).Replace(args[i])
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return nil, fmt.Errorf("the server cannot be started: %w (PATH=%s)", err, os.Getenv("PATH"))
	}
	if cfg.bind {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		env = append(env, becomeVariable+"="+program, "LISTEN_FDS=1")
		program = self
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files[2] = w.Fd()
	s.pid, err = syscall.ForkExec(program, args, &syscall.ProcAttr{Env: env, Files: files})
	_ = w.Close()
	if err != nil {
		return nil, fmt.Errorf("the server cannot be started: %s: %w", args[0], err)
	}
	go func() {
		_, _ = io.Copy(io.MultiWriter(os.Stderr, &s.words), r)
		close(s.copied)
	}()
	go s.reap()
	return s, nil
}

// becomeVariable names the program that a child becomes once it knows its id:
// sockets are for the process that LISTEN_PID names.
const becomeVariable = "FRE_HTTP_BECOME"

func become() error {
	program := os.Getenv(becomeVariable)
	err := errors.Join(os.Unsetenv(becomeVariable), os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())))
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("the server cannot be started: %s: %w", program, err)
}

// environment is the server's: the adapter's own variables are not in it.
func environment(cfg *config) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name != "FRE_CHANNEL" && name != "PORT" && !strings.HasPrefix(name, "FRE_HTTP_") {
			env = append(env, v)
		}
	}
	port := strconv.Itoa(cfg.port)
	return append(env, "PORT="+port, "FRE_HTTP_PORT="+port)
}

// reap waits for every process that ends: as the first one, the adapter inherits
// those whose parents have gone.
func (s *server) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil { // none is left
			return
		}
		if pid == s.pid {
			s.status = status
			close(s.exited)
		}
	}
}

func (s *server) signal(sig syscall.Signal) {
	select {
	case <-s.exited: // its id may be another's
	default:
		_ = syscall.Kill(s.pid, sig)
	}
}

// failure says how the server ended, and what it wrote last. It is called after
// exited.
func (s *server) failure() *channel.Failure {
	end := fmt.Sprintf("exit status %d", s.status.ExitStatus())
	if s.status.Signaled() {
		end = "signal " + unix.SignalName(s.status.Signal())
	}
	return &channel.Failure{Type: "ServerExited", Message: "the server ended with " + end, Stack: s.words.String()}
}

// tail keeps the last lines that are written to it.
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
