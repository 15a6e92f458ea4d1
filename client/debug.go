package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
)

// Debug examines the engine's process.
type Debug struct{ c *Client }

// Debug returns the calls for the engine's process.
func (c *Client) Debug() Debug { return Debug{c} }

// Profile writes a profile of the engine's process to w. The kinds cpu, trace and mutex cover
// the next d; heap and goroutine show the current state. `go tool trace` reads the kind trace,
// and `go tool pprof` the others.
func (g Debug) Profile(ctx context.Context, kind string, d time.Duration, w io.Writer) error {
	q := url.Values{"seconds": {strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}}
	resp, err := g.c.send(ctx, http.MethodGet, "/v1/debug/profiles/"+url.PathEscape(kind), q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return orCause(ctx, err)
}

// CountSyscalls calls during and returns the number of each system call that the engine made
// meanwhile, most frequent first. The counts include unrelated work of the engine.
func (g Debug) CountSyscalls(ctx context.Context, during func() error) ([]api.Syscall, error) {
	body, done := io.Pipe() // holds the request open
	defer done.Close()
	resp, err := g.c.send(ctx, http.MethodPost, "/v1/debug/syscalls", nil, nil, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	var line api.SyscallLine
	if err := lines.Decode(&line); err != nil {
		return nil, fmt.Errorf("count system calls: %w", orCause(ctx, err))
	}
	if err := during(); err != nil {
		return nil, err
	}
	if err := done.Close(); err != nil {
		return nil, err
	}
	line = api.SyscallLine{}
	if err := lines.Decode(&line); err != nil {
		return nil, fmt.Errorf("count system calls: %w", orCause(ctx, err))
	}
	if line.Error != nil {
		return nil, line.Error
	}
	return line.Syscalls, nil
}

// Call sends a request to the API and discards the answer.
func (g Debug) Call(ctx context.Context, method, target string) error {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return err
	}
	if u.Host != "" {
		return errors.New("a path of the API begins with /v1/")
	}
	resp, err := g.c.send(ctx, method, u.EscapedPath(), u.Query(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return orCause(ctx, err)
}

// Leaks returns the resources currently held by the engine's process.
func (g Debug) Leaks(ctx context.Context) (api.Leaks, error) {
	return get[api.Leaks](ctx, g.c, "/v1/debug/leaks", nil)
}
