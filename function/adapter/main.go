// Package adapter is the first process of a function that does not speak the channel itself. FRE
// carries it as the program fre-http; functions in Go need package function instead. The arguments
// of [Main] are the command line of the function's process. FRE_CONTRACT says which protocol the
// process speaks.
//
// Empty: the process is an HTTP server. The adapter starts it, waits until it accepts connections,
// and passes it each event as a request over loopback.
//
//	engine ── channel, fd 3 ── adapter ── HTTP/1.1, 127.0.0.1:PORT ── server
//
// "lambda": the process is a client of AWS Lambda's Runtime API, and the adapter is the server
// (lambda.go).
//
//	engine ── channel, fd 3 ── adapter ── HTTP/1.1, AWS_LAMBDA_RUNTIME_API ── client
//
// "cgi": the adapter starts the process for each event (cgi.go).
//
// "agent": the adapter runs the commands that events bring (agent.go).
//
// FRE_HTTP_LISTEN says which process binds: "port", the server, at $PORT; "fd", the adapter, whose
// socket the server gets as systemd's first (sd_listen_fds(3)). FRE_HTTP_PORT is the port, 0 for
// any free port. FRE_HTTP_READY, if not "", is a path to request before the first event.
// FRE_HTTP_TIMEOUT bounds the time until the server accepts.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// Exit statuses, the same in every bootstrap.
const (
	exitFailed    = 1
	exitMalformed = 70
)

// stopGrace bounds the wait for the end of a server whose connections have ended, so that failures
// can name the cause of its end.
const stopGrace = 200 * time.Millisecond

// Main runs the adapter and returns its exit status.
func Main(args []string) int {
	if os.Getenv(becomeVariable) != "" {
		fmt.Fprintln(os.Stderr, become())
		return 127
	}
	conn, err := channel.Inherited()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	switch contract := os.Getenv("FRE_CONTRACT"); contract {
	case "":
	case "lambda":
		return runLambda(conn, args)
	case "cgi":
		return runCGI(conn, args)
	case "agent":
		return runAgent(conn)
	default:
		fmt.Fprintf(os.Stderr, "FRE_CONTRACT is %q\n", contract)
		return exitFailed
	}
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

// fail sends FAILED.
func fail(conn *net.UnixConn, f *channel.Failure) int {
	if err := channel.Fail(conn, f); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return exitFailed
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

// exitCode converts the channel's end to an exit status.
func exitCode(err error) int {
	switch {
	case errors.Is(err, channel.ErrProtocol):
		fmt.Fprintln(os.Stderr, err)
		return exitMalformed
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	return 0
}

// config is the template's configuration.
type config struct {
	bind        bool   // the adapter binds and hands the socket over
	port        int    // 0 until a port is chosen
	address     string // 127.0.0.1:port
	ready       string // path, "" for none
	timeout     time.Duration
	concurrency int
}

func configuration() (*config, error) {
	c := &config{}
	port, err := strconv.ParseUint(os.Getenv("FRE_HTTP_PORT"), 10, 16)
	if err != nil {
		return c, fmt.Errorf("FRE_HTTP_PORT: %w", err)
	}
	if c.timeout, err = time.ParseDuration(os.Getenv("FRE_HTTP_TIMEOUT")); err != nil {
		return c, fmt.Errorf("FRE_HTTP_TIMEOUT: %w", err)
	}
	if c.concurrency, err = strconv.Atoi(os.Getenv("FRE_CONCURRENCY")); err != nil {
		return c, fmt.Errorf("FRE_CONCURRENCY: %w", err)
	}
	if dir := os.Getenv("FRE_HTTP_DIR"); dir != "" { // of an ordinary image, instead of /function
		if err := os.Chdir(dir); err != nil {
			return c, fmt.Errorf("FRE_HTTP_DIR: %w", err)
		}
	}
	c.port, c.bind, c.ready = int(port), os.Getenv("FRE_HTTP_LISTEN") == "fd", os.Getenv("FRE_HTTP_READY")
	return c, nil
}
