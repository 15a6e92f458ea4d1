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

// Profile writes a profile of the engine's program to w: cpu, trace and mutex of
// the next d, heap and goroutine of this moment. `go tool pprof` reads it, of a
// trace `go tool trace`.
func (c *Client) Profile(ctx context.Context, kind string, d time.Duration, w io.Writer) error {
	q := url.Values{"seconds": {strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}}
	resp, err := c.send(ctx, http.MethodGet, "/v1/debug/profiles/"+url.PathEscape(kind), q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return orCause(ctx, err)
}

// CountSyscalls returns how often the engine made which system call while during
// ran, the most frequent first. Whatever else the engine did in that time is
// among them.
func (c *Client) CountSyscalls(ctx context.Context, during func() error) ([]api.Syscall, error) {
	body, done := io.Pipe() // which holds the request open
	defer done.Close()
	resp, err := c.send(ctx, http.MethodPost, "/v1/debug/syscalls", nil, nil, body)
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

// Call makes a request of the API's and discards the answer.
func (c *Client) Call(ctx context.Context, method, target string) error {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return err
	}
	if u.Host != "" {
		return errors.New("a path of the API's begins with /v1/")
	}
	resp, err := c.send(ctx, method, u.EscapedPath(), u.Query(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return orCause(ctx, err)
}
