package adapter

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// runLambda starts the client and serves its events.
func runLambda(conn *net.UnixConn, args []string) int {
	begun := time.Now()
	startError := func(err error) int {
		return fail(conn, &channel.Failure{Type: "StartError", Message: err.Error()})
	}
	timeout, err := time.ParseDuration(os.Getenv("FRE_HTTP_TIMEOUT"))
	if err != nil {
		return startError(fmt.Errorf("FRE_HTTP_TIMEOUT: %w", err))
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return startError(err)
	}
	api := &runtimeAPI{
		server: &server{listener: -1}, whole: os.Getenv("FRE_LAMBDA_EVENT") == "http",
		next: make(chan *invocation), asked: make(chan struct{}), failed: make(chan *channel.Failure, 1),
	}
	unusual := &handedOver{Listener: l, conns: make(chan net.Conn)}
	go api.accept(l, unusual)                                                 // until the process ends
	go func() { _ = (&http.Server{Handler: api.handler()}).Serve(unusual) }() // likewise
	program, err := lookCode(args[0])
	if err != nil {
		return startError(err)
	}
	env := append(environment(), "AWS_LAMBDA_RUNTIME_API="+l.Addr().String())
	if err := api.server.spawn(newChildren(), program, args, env, []uintptr{0, 1, 2}); err != nil {
		return startError(err)
	}
	api.server.passSignals()
	if f := api.waitReady(timeout); f != nil {
		code := fail(conn, f)
		api.server.signal(syscall.SIGKILL)
		return code
	}
	ready := channel.Ready{Runtime: "lambda", Concurrency: 1, LoadMicros: time.Since(begun).Microseconds()}
	return api.server.serve(conn, ready, api.handle)
}
