package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// Agents works on agents' sandboxes and their snapshots.
type Agents struct{ c *Client }

// Agents returns the calls for agents' sandboxes.
func (c *Client) Agents() Agents { return Agents{c} }

// Create creates a sandbox for an agent and returns once the sandbox runs.
func (g Agents) Create(ctx context.Context, r api.AgentRequest) (api.Agent, error) {
	return post[api.Agent](ctx, g.c, "/v1/agents", r)
}

// List returns the agents' sandboxes, oldest first.
func (g Agents) List(ctx context.Context) ([]api.Agent, error) {
	return get[[]api.Agent](ctx, g.c, "/v1/agents", nil)
}

func agentPath(id, what string) string { return "/v1/agents/" + url.PathEscape(id) + what }

// Get returns the agent's sandbox with the given id.
func (g Agents) Get(ctx context.Context, id string) (api.Agent, error) {
	return get[api.Agent](ctx, g.c, agentPath(id, ""), nil)
}

// Remove kills the processes of an agent's sandbox and removes the sandbox and /work.
func (g Agents) Remove(ctx context.Context, id string) error {
	return g.c.call(ctx, http.MethodDelete, agentPath(id, ""), nil, "", nil, nil)
}

// Exec runs a command in an agent's sandbox. Exec calls emit for each piece of output
// as the piece arrives. A nil stdin is empty. The end of ctx kills the command. An error of emit
// also kills the command, and Exec returns the error.
func (g Agents) Exec(ctx context.Context, id string, r api.AgentExec, stdin io.Reader, emit func(api.AgentOutput) error) (api.AgentExit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	line, err := json.Marshal(r)
	if err != nil {
		return api.AgentExit{}, err
	}
	body := io.Reader(bytes.NewReader(append(line, '\n')))
	if stdin != nil {
		body = io.MultiReader(body, stdin)
	}
	resp, err := g.c.send(ctx, http.MethodPost, agentPath(id, "/exec"), nil, http.Header{"Content-Type": {"application/json"}}, body)
	if err != nil {
		return api.AgentExit{}, err
	}
	defer resp.Body.Close()
	var exit api.AgentExit
	err = readLines(ctx, resp.Body, "command", endsShort, func(o api.AgentOutput) (bool, error) {
		if o.Exit != nil {
			exit = *o.Exit
			return true, nil
		}
		return false, emit(o)
	})
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = &api.Error{
			Code: api.CodeCrash, Status: http.StatusBadGateway, Message: "the sandbox ended during the command: out of memory or processes, or removed",
			Next: "/work stays unless the sandbox was removed: run the next command, or create a sandbox with more memory",
		}
	}
	return exit, err
}

// AgentRange is a part of a file; the zero value is the whole file.
type AgentRange struct {
	Offset int64
	Length int64 // 0: to the end
}

// ReadFile returns the content of a file in an agent's sandbox. The caller closes the
// content.
func (g Agents) ReadFile(ctx context.Context, id, path string, part AgentRange) (io.ReadCloser, error) {
	q := url.Values{"path": {path}}
	if part.Offset > 0 {
		q.Set("offset", strconv.FormatInt(part.Offset, 10))
	}
	if part.Length > 0 {
		q.Set("length", strconv.FormatInt(part.Length, 10))
	}
	resp, err := g.c.send(ctx, http.MethodGet, agentPath(id, "/files"), q, nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteFile creates or replaces a file and creates missing parent directories. mode is
// octal; "" means 644.
func (g Agents) WriteFile(ctx context.Context, id, path, mode string, content io.Reader) error {
	q := url.Values{"path": {path}}
	if mode != "" {
		q.Set("mode", mode)
	}
	return g.c.call(ctx, http.MethodPut, agentPath(id, "/files"), q, "application/octet-stream", content, nil)
}

// RemoveFile removes a file or an empty directory, or with recursive a whole directory.
func (g Agents) RemoveFile(ctx context.Context, id, path string, recursive bool) error {
	q := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	return g.c.call(ctx, http.MethodDelete, agentPath(id, "/files"), q, "", nil, nil)
}

// ListFiles describes a path and lists a directory's entries. An empty path means /work.
func (g Agents) ListFiles(ctx context.Context, id, path string) (api.AgentFiles, error) {
	return get[api.AgentFiles](ctx, g.c, agentPath(id, "/list"), url.Values{"path": {path}})
}

// MakeDir creates a directory and missing parents.
func (g Agents) MakeDir(ctx context.Context, id, path string) error {
	return g.c.call(ctx, http.MethodPost, agentPath(id, "/mkdir"), url.Values{"path": {path}}, "", nil, nil)
}

// Snapshot saves the content of an agent sandbox's /work.
func (g Agents) Snapshot(ctx context.Context, id string) (api.Snapshot, error) {
	var out api.Snapshot
	err := g.c.call(ctx, http.MethodPost, agentPath(id, "/snapshots"), nil, "", nil, &out)
	return out, err
}

// Snapshots returns the saved snapshots, newest first.
func (g Agents) Snapshots(ctx context.Context) ([]api.Snapshot, error) {
	return get[[]api.Snapshot](ctx, g.c, "/v1/snapshots", nil)
}

// RemoveSnapshot removes the snapshot with the given name or digest.
func (g Agents) RemoveSnapshot(ctx context.Context, ref string) error {
	return g.c.call(ctx, http.MethodDelete, "/v1/snapshots/"+url.PathEscape(ref), nil, "", nil, nil)
}
