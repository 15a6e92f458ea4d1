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
	"fmt"
	"os"

	"github.com/fre-engine/fre/function/channel"
)

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
		return runHTTP(conn, args)
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
}
