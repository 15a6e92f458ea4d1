package adapter

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// agent is the program of an AI agent's sandbox. Requests come as events, so the engine never
// enters the sandbox, and no path leads out of it.
//
//	POST   /exec    a command (agentexec.go)
//	GET    /files   a file's content          ?path=&offset=&length=
//	PUT    /files   the body becomes a file   ?path=&mode=
//	DELETE /files                             ?path=&recursive=
//	GET    /list    the entry at a path       ?path=
//	POST   /mkdir                             ?path=&mode=
//
// Errors are answers in the control API's format.
type agent struct {
	children *children
	home     string        // base of relative paths
	running  chan struct{} // one token for each command
}

// mostCommands bounds the commands that run at once; requests for files are served meanwhile.
const mostCommands = 16

// agentHome is the directory of the sandbox's own files.
const agentHome = "/work"

func runAgent(conn *net.UnixConn) int {
	begun := time.Now()
	concurrency, err := strconv.Atoi(os.Getenv("FRE_CONCURRENCY"))
	if err != nil {
		return fail(conn, &channel.Failure{Type: "StartError", Message: "FRE_CONCURRENCY: " + err.Error()})
	}
	a := newAgent(newChildren(), agentHome)
	ready := channel.Ready{Runtime: "agent", Concurrency: concurrency, LoadMicros: time.Since(begun).Microseconds()}
	return exitCode(channel.Serve(context.Background(), conn, ready, a.handle))
}

func newAgent(c *children, home string) *agent {
	return &agent{children: c, home: home, running: make(chan struct{}, mostCommands)}
}

// handle answers one event.
func (a *agent) handle(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	answer, err := a.route(ctx, e)
	if err != nil {
		answer = refused(err)
	}
	return answer, nil
}

func (a *agent) route(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	if e.Method == "POST" && e.Path == "/exec" {
		return a.exec(ctx, e)
	}
	q, err := url.ParseQuery(e.Query)
	if err != nil {
		return nil, refuse("query: %v", err)
	}
	switch e.Method + " " + e.Path {
	case "GET /files":
		return a.read(q)
	case "PUT /files":
		return a.write(q, e.Body)
	case "DELETE /files":
		return a.remove(q)
	case "GET /list":
		return a.list(q)
	case "POST /mkdir":
		return a.mkdir(q)
	}
	return nil, &refusal{404, "not_found", fmt.Sprintf("the sandbox knows no %s %s", e.Method, e.Path), "compare the versions of client and engine: fre version"}
}
