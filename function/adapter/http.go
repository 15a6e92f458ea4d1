package adapter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// runHTTP starts the server and serves its events.
func runHTTP(conn *net.UnixConn, args []string) int {
	cfg, err := configuration()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	begun := time.Now()
	s, err := start(cfg, args)
	if err != nil {
		return fail(conn, &channel.Failure{Type: "StartError", Message: err.Error()})
	}
	s.passSignals()
	p := &proxy{server: s, address: cfg.address}
	ctx, cancel := context.WithTimeoutCause(context.Background(), cfg.timeout, errNotReady)
	err = p.waitReady(ctx, cfg)
	cancel()
	if err != nil {
		code := fail(conn, p.failure(err))
		s.signal(syscall.SIGKILL)
		return code
	}
	ready := channel.Ready{Runtime: "http", Concurrency: cfg.concurrency, Upgrades: true, LoadMicros: time.Since(begun).Microseconds()}
	return s.serve(conn, ready, p.handle)
}

// start starts the server. It sets cfg.address.
func start(cfg *config, args []string) (*server, error) {
	s := &server{listener: -1}
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
		// Accepted sockets inherit the option; a server that did not make the socket may not know
		// its protocol.
		if err := unix.SetsockoptInt(s.listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return nil, err
		}
		files = append(files, f.Fd())
	}
	if err := l.Close(); err != nil { // the file is a second descriptor of the socket
		return nil, err
	}
	port := strconv.Itoa(cfg.port)
	for i := range args {
		args[i] = strings.NewReplacer("${PORT}", port, "$PORT", port).Replace(args[i])
	}
	program, err := lookPath(args[0])
	if err != nil {
		return nil, err
	}
	env := append(environment(), "PORT="+port, "FRE_HTTP_PORT="+port)
	if cfg.bind {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		env = append(env, becomeVariable+"="+program, "LISTEN_FDS=1")
		program = self
	}
	return s, s.spawn(newChildren(), program, args, env, files)
}

// handle is the channel's handler.
func (p *proxy) handle(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	a, err := p.pass(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, channel.ErrUnserved) {
			return nil, err
		}
		return nil, p.failure(err)
	}
	return a, nil
}

func (p *proxy) pass(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	if e.Upgrade != "" {
		e.Length = 0 // the following bytes belong to the other protocol
	}
	head, chunked, err := requestHead(e)
	if err != nil {
		return &channel.Answer{Status: 400, Headers: [][2]string{{"content-type", "text/plain; charset=utf-8"}}, Body: strings.NewReader(err.Error() + "\n")}, nil //nolint:nilerr // it is the client's mistake, and answered
	}
	if e.Upgrade != "" {
		return p.upgrade(ctx, e, head)
	}
	return p.send(ctx, e, head, chunked)
}
