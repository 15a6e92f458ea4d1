package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
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

// refusal is an error that the client can correct.
type refusal struct {
	status        int
	code          string
	message, next string
}

func (r *refusal) Error() string { return r.message }

func refuse(format string, args ...any) error {
	return &refusal{status: 400, code: "bad_request", message: fmt.Sprintf(format, args...)}
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

// refused makes an answer for an error in the control API's format.
func refused(err error) *channel.Answer {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{status: 500, code: "internal", message: err.Error()}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.status, r.code, r.next = 404, "not_found", "list the directory"
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			r.status, r.code, r.next = 403, "forbidden", "write below /work, or below /tmp"
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			r.status, r.code, r.next = 507, "no_space", "remove files of the sandbox, or create a sandbox with a larger /work"
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
			r.status, r.code, r.next = 503, "overloaded", "the sandbox reached a limit of processes or memory: end processes, or create a sandbox with higher limits"
		case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, fs.ErrExist):
			r.status, r.code = 400, "bad_request"
		}
	}
	type wire struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Next    string `json:"next,omitempty"`
	}
	return answerJSON(r.status, map[string]wire{"error": {r.code, r.message, r.next}})
}

func answerJSON(status int, v any) *channel.Answer {
	b, err := json.Marshal(v)
	if err != nil { // our own types always encode
		b = []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	return &channel.Answer{Status: status, Headers: [][2]string{{"content-type", "application/json"}}, Body: strings.NewReader(string(b))}
}
