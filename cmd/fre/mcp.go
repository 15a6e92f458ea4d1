package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func mcpCommand(c *cli) *cobra.Command {
	var o agentFlags
	cmd := &cobra.Command{
		Use: "mcp", Short: "Serve sandboxes to a language model by the Model Context Protocol",
		Long: `Serve the Model Context Protocol (MCP) on standard input and output. The tools create
sandboxes, run commands and code, and write, read and list files. See docs/agents.md.

The first call of a tool creates a sandbox with the limits in the flags. The model may
create further sandboxes with another image or other limits, but never with more network
than the flags allow. The end of the session removes all sandboxes of the session.`,
		Example: `  claude mcp add fre -- fre mcp
  claude mcp add fre -- fre mcp --network egress --allow pypi.org:443 --allow files.pythonhosted.org:443`,
		Args: command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			m := &mcpServer{client: cl, usual: o.request(), made: map[string]bool{}, kills: map[string]int64{}}
			defer m.close(context.WithoutCancel(cmd.Context()))
			out := newMCPOutput(cmd.OutOrStdout())
			transport := &mcp.IOTransport{Reader: newMCPInput(cmd.InOrStdin(), out), Writer: out, MaxLineLength: 2 * mcpMaxLine}
			err := m.server().Run(cmd.Context(), transport)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}),
	}
	o.flags(cmd)
	return cmd
}

// mcpServer is one client's session.
type mcpServer struct {
	client *client.Client
	usual  api.AgentRequest

	mu      sync.Mutex // held while the default sandbox is made
	current string     // id of the default sandbox; "" before the first use
	made    map[string]bool

	killsMu sync.Mutex
	kills   map[string]int64 // by sandbox: the last seen Agent.OOMKills
}

// close removes the session's sandboxes.
func (m *mcpServer) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.made {
		_ = m.client.Agents().Remove(ctx, id) // after an error the sandbox expires
	}
}

// Arguments of the tools. The model reads the jsonschema tags.
type (
	mcpCreate struct {
		Image       string   `json:"image,omitempty" jsonschema:"agent, python, node, java, php, ruby, native, or an image on the engine; default agent: Python, pip, bash and the tools of a shell user"`
		Snapshot    string   `json:"snapshot,omitempty" jsonschema:"name of a snapshot; /work starts with the files of the snapshot"`
		Memory      string   `json:"memory,omitempty" jsonschema:"memory limit, such as 512MiB"`
		Network     string   `json:"network,omitempty" jsonschema:"none, or egress if the session allows egress; default: the session's network"`
		Allow       []string `json:"allow,omitempty" jsonschema:"with egress: the only allowed destinations, such as pypi.org:443; the session must allow them too"`
		IdleSeconds int64    `json:"idle_seconds,omitempty" jsonschema:"seconds from the last use of the sandbox to its removal; default 900"`
	}
	mcpSandbox struct {
		Sandbox string `json:"sandbox,omitempty" jsonschema:"id of the sandbox; default: the sandbox of this session, created at its first use"`
	}
	mcpExec struct {
		mcpSandbox
		Command string            `json:"command" jsonschema:"command line for /bin/sh"`
		Dir     string            `json:"dir,omitempty" jsonschema:"working directory; default /work"`
		Env     map[string]string `json:"env,omitempty" jsonschema:"additional environment variables"`
		Stdin   string            `json:"stdin,omitempty" jsonschema:"standard input of the command"`
		Timeout int64             `json:"timeout_seconds,omitempty" jsonschema:"time limit of the command; default 600, at most 3600"`
	}
	mcpCode struct {
		mcpSandbox
		Language string `json:"language" jsonschema:"python, node or sh; the sandbox's image must have it"`
		Code     string `json:"code" jsonschema:"text of the program; its working directory is /work"`
		Timeout  int64  `json:"timeout_seconds,omitempty" jsonschema:"time limit of the program; default 600, at most 3600"`
	}
	mcpWrite struct {
		mcpSandbox
		Path    string `json:"path" jsonschema:"absolute, or relative to /work"`
		Content string `json:"content" jsonschema:"whole content of the file"`
		Base64  bool   `json:"base64,omitempty" jsonschema:"content is base64 of the file's bytes"`
		Mode    string `json:"mode,omitempty" jsonschema:"mode in octal; default: the mode of the old file, or 644 for a new file"`
	}
	mcpRead struct {
		mcpSandbox
		Path   string `json:"path" jsonschema:"absolute, or relative to /work"`
		Offset int64  `json:"offset,omitempty" jsonschema:"number of bytes to skip at the beginning"`
		Length int64  `json:"length,omitempty" jsonschema:"maximum number of bytes; default and maximum 65536"`
	}
	mcpList struct {
		mcpSandbox
		Path   string `json:"path,omitempty" jsonschema:"absolute, or relative to /work; default /work"`
		Offset int    `json:"offset,omitempty" jsonschema:"number of entries to skip at the beginning; entries are sorted by name"`
	}
)

// Answers of the tools.
type (
	mcpRan struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
		TimedOut bool   `json:"timed_out,omitempty"`
		Sandbox  string `json:"sandbox"`
		Warning  string `json:"warning,omitempty"`
	}
	mcpContent struct {
		Content   string `json:"content"`
		Base64    bool   `json:"base64,omitempty"`
		Truncated bool   `json:"truncated,omitempty"`
		Next      string `json:"next,omitempty"`

		image string // media type, if Content is a whole picture
	}
	mcpFiles struct {
		api.AgentFiles
		Next string `json:"next,omitempty"`
	}
	mcpDone struct {
		Done    string `json:"done"`
		Sandbox string `json:"sandbox"`
	}
)

func (m *mcpServer) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "fre", Title: "FRE sandboxes", Version: version().Version}, &mcp.ServerOptions{
		Instructions: "Run untrusted commands and code in sandboxes, which start in milliseconds. Write files below /work, which is kept between calls; the rest of the root is read-only. Sandboxes have no network unless the user allowed the network for this session. Background processes keep running between calls. FRE removes idle sandboxes, and all sandboxes at the end of this session.",
	})
	addTool(s, "create_sandbox", "Create an additional sandbox, from another image or with other limits, and return its id. The other tools create the default sandbox by themselves.", m.create)
	addTool(s, "exec", "Run a shell command in a sandbox and return its output and exit code.", m.exec)
	addTool(s, "run_code", "Run a program in a sandbox and return its output and exit code.", m.runCode)
	addTool(s, "write_file", "Create or replace a file in a sandbox. Missing directories in the path are created.", m.write)
	addTool(s, "read_file", "Read a file in a sandbox, or a part of it.", m.read)
	addTool(s, "list_files", "List a directory in a sandbox.", m.list)
	addTool(s, "snapshot", "Save the files of a sandbox's /work as a snapshot. create_sandbox can start from the snapshot, also in a later session.", m.snapshot)
	addTool(s, "remove_sandbox", "Kill the processes of a sandbox and remove the sandbox with its files.", m.remove)
	return s
}

// addTool registers a tool. An error becomes the tool's answer, with the next step, for the model to
// act on.
func addTool[In, Out any](s *mcp.Server, name, description string, handle func(context.Context, In) (Out, error)) {
	mcp.AddTool(s, &mcp.Tool{Name: name, Description: description}, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		out, err := handle(ctx, in)
		if err == nil {
			return mcpResult(out)
		}
		message, next := explain(err)
		failure := map[string]string{"error": message}
		text := message
		if next != "" {
			failure["next"] = next
			text += "\nnext: " + next
		}
		var wire *api.Error
		if errors.As(err, &wire) {
			failure["code"] = string(wire.Code)
		}
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: failure}, nil, nil
	})
}

// mcpResult makes a tool's answer: the fields as structured content, and as text for a model. A
// file's text and a picture have their own kinds of content.
func mcpResult(out any) (*mcp.CallToolResult, any, error) {
	file, ok := out.(mcpContent)
	switch {
	case ok && file.image != "":
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: []byte(file.Content), MIMEType: file.image}}}, nil, nil
	case ok && !file.Base64:
		content := []mcp.Content{&mcp.TextContent{Text: file.Content}}
		if file.Truncated {
			content = append(content, &mcp.TextContent{Text: "[the file continues: " + file.Next + "]"})
		}
		return &mcp.CallToolResult{Content: content}, file, nil
	}
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // the reader is a model, not an HTML page
	if err := e.Encode(out); err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.TrimSuffix(text.String(), "\n")}}}, out, nil
}

func (m *mcpServer) create(ctx context.Context, in mcpCreate) (api.Agent, error) {
	r, err := m.request(in)
	if err != nil {
		return api.Agent{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.makeLocked(ctx, r)
}

// request merges a model's wishes with the session's defaults. The flags of fre mcp bound the
// network: a model may follow instructions from untrusted text.
func (m *mcpServer) request(in mcpCreate) (api.AgentRequest, error) {
	r := m.usual
	for _, f := range []struct {
		to   *string
		from string
	}{{&r.Image, in.Image}, {&r.Snapshot, in.Snapshot}, {&r.Memory, in.Memory}} {
		if f.from != "" {
			*f.to = f.from
		}
	}
	if in.IdleSeconds != 0 {
		r.IdleSeconds = in.IdleSeconds
	}
	switch {
	case in.Network == "" && len(in.Allow) == 0:
	case in.Network == "none":
		r.Network, r.Allow = in.Network, in.Allow
	case r.Network != "egress", len(r.Allow) > 0 && slices.ContainsFunc(in.Allow, func(to string) bool { return !slices.Contains(r.Allow, to) }):
		return r, failure.Hint(
			fmt.Errorf("the sandboxes of this session may have at most this network: %s", strings.TrimSpace(cmp.Or(r.Network, "none")+" "+strings.Join(r.Allow, " "))),
			"ask the user to allow more network: fre mcp --network egress --allow DESTINATION")

	default:
		r.Network = cmp.Or(in.Network, r.Network)
		if len(in.Allow) > 0 {
			r.Allow = in.Allow
		}
	}
	return r, nil
}

func (m *mcpServer) makeLocked(ctx context.Context, r api.AgentRequest) (api.Agent, error) {
	a, err := m.client.Agents().Create(ctx, r)
	if err == nil {
		m.made[a.ID] = true
	}
	return a, err
}

// inside calls do with the named sandbox, or with the session's default sandbox. It makes the default
// sandbox if the session has none, or if the old one has expired.
func (m *mcpServer) inside(ctx context.Context, named mcpSandbox, do func(id string) error) error {
	if named.Sandbox != "" {
		return do(named.Sandbox)
	}
	id, fresh, err := m.own(ctx, "")
	if err != nil {
		return err
	}
	if err = do(id); fresh || !isNotFound(err) {
		return err
	}
	if _, found := m.client.Agents().Get(ctx, id); !isNotFound(found) { // only a file is missing
		return err
	}
	if id, _, err = m.own(ctx, id); err != nil { // the sandbox has expired
		return err
	}
	return do(id)
}

// own returns the session's default sandbox. If its id is gone, own makes another.
func (m *mcpServer) own(ctx context.Context, gone string) (id string, fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current != "" && m.current != gone {
		return m.current, false, nil
	}
	delete(m.made, gone)
	a, err := m.makeLocked(ctx, m.usual)
	if err == nil {
		m.current = a.ID
	}
	return a.ID, true, err
}

func isNotFound(err error) bool {
	var wire *api.Error
	return errors.As(err, &wire) && wire.Code == api.CodeNotFound
}

func (m *mcpServer) exec(ctx context.Context, in mcpExec) (mcpRan, error) {
	return m.run(ctx, in.mcpSandbox, api.AgentExec{Shell: in.Command, Dir: in.Dir, Env: in.Env, TimeoutMS: in.Timeout * 1000}, in.Stdin)
}

func (m *mcpServer) runCode(ctx context.Context, in mcpCode) (mcpRan, error) {
	args, ok := map[string][]string{"python": {"python3", "-"}, "node": {"node", "-"}, "sh": {"/bin/sh", "-s"}}[in.Language]
	if !ok {
		return mcpRan{}, failure.Hint(fmt.Errorf("unknown language %q", in.Language), "use python, node or sh, or write_file and exec")
	}
	return m.run(ctx, in.mcpSandbox, api.AgentExec{Args: args, TimeoutMS: in.Timeout * 1000}, in.Code)
}

func (m *mcpServer) run(ctx context.Context, named mcpSandbox, r api.AgentExec, stdin string) (out mcpRan, err error) {
	err = m.inside(ctx, named, func(id string) error {
		var stdout, stderr clipped
		exit, err := m.client.Agents().Exec(ctx, id, r, strings.NewReader(stdin), func(o api.AgentOutput) error {
			stdout.add(o.Stdout + string(o.StdoutBase64))
			stderr.add(o.Stderr + string(o.StderrBase64))
			return nil
		})
		out = mcpRan{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: exit.Code, TimedOut: exit.TimedOut, Sandbox: id}
		if err == nil && exit.Code == killed && !exit.TimedOut {
			out.Warning = m.outOfMemory(ctx, id)
		}
		return err
	})
	return out, err
}

// killed is the exit code of a program that SIGKILL ended: 128 and the signal's number.
const killed = 137

// outOfMemory returns a warning if the kernel has killed a process of the sandbox for lack of
// memory since the last call; otherwise "".
func (m *mcpServer) outOfMemory(ctx context.Context, id string) string {
	a, err := m.client.Agents().Get(ctx, id)
	if err != nil {
		return ""
	}
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	before := m.kills[id]
	if m.kills[id] = a.OOMKills; a.OOMKills <= before {
		return ""
	}
	return fmt.Sprintf("out of memory: the sandbox has %d MiB, and the kernel killed a process because it needed more; use less memory, or call create_sandbox with more memory", a.MemoryBytes>>20)
}

func (m *mcpServer) write(ctx context.Context, in mcpWrite) (out mcpDone, err error) {
	content := in.Content
	if in.Base64 {
		raw, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return out, failure.Hint(fmt.Errorf("content is not base64: %w", err), "send the text itself and set base64 to false")
		}
		content = string(raw)
	}
	err = m.inside(ctx, in.mcpSandbox, func(id string) error {
		out = mcpDone{fmt.Sprintf("%d bytes written to %s", len(content), in.Path), id}
		return m.client.Agents().WriteFile(ctx, id, in.Path, in.Mode, strings.NewReader(content))
	})
	return out, err
}

func (m *mcpServer) read(ctx context.Context, in mcpRead) (out mcpContent, err error) {
	length := in.Length
	if length <= 0 || length > readBytes {
		length = readBytes
	}
	err = m.inside(ctx, in.mcpSandbox, func(id string) error {
		body, err := m.client.Agents().ReadFile(ctx, id, in.Path, client.AgentRange{Offset: in.Offset, Length: length + 1})
		if err != nil {
			return err
		}
		defer body.Close()
		raw, err := io.ReadAll(body)
		if kind := pictureOf(raw); kind != "" && in.Offset == 0 && in.Length == 0 && err == nil {
			out, err = m.picture(ctx, id, in.Path, kind)
			return err
		}
		if out.Truncated = int64(len(raw)) > length; out.Truncated {
			raw = raw[:length]
			if n := wholeRunes(raw); n > 0 { // a cut character would make the text invalid
				raw = raw[:n]
			}
			out.Next = fmt.Sprintf("read_file with offset %d", in.Offset+int64(len(raw)))
		}
		out.Content = string(raw)
		if !utf8.Valid(raw) {
			out.Content, out.Base64 = base64.StdEncoding.EncodeToString(raw), true
		}
		return err
	})
	return out, err
}

// pictureOf returns the media type of a picture that models understand, by the file's first bytes,
// or "".
func pictureOf(begin []byte) string {
	switch kind := http.DetectContentType(begin); kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return kind
	}
	return ""
}

func (m *mcpServer) picture(ctx context.Context, id, path, kind string) (out mcpContent, err error) {
	body, err := m.client.Agents().ReadFile(ctx, id, path, client.AgentRange{Length: mostPicture + 1})
	if err != nil {
		return out, err
	}
	defer body.Close()
	raw, err := io.ReadAll(body)
	if err == nil && len(raw) > mostPicture {
		err = failure.Hint(fmt.Errorf("%s is a picture larger than %d MiB", path, mostPicture>>20), "make the picture smaller, or read its bytes by giving a length")
	}
	return mcpContent{Content: string(raw), image: kind}, err
}

// list returns a part of a directory whose JSON stays below readBytes.
func (m *mcpServer) list(ctx context.Context, in mcpList) (out mcpFiles, err error) {
	err = m.inside(ctx, in.mcpSandbox, func(id string) error {
		out.AgentFiles, err = m.client.Agents().ListFiles(ctx, id, in.Path)
		return err
	})
	if err != nil {
		return out, err
	}
	total := len(out.Entries)
	from := min(max(in.Offset, 0), total)
	out.Entries = out.Entries[from:]
	room := readBytes
	for i := range out.Entries {
		entry, err := json.Marshal(out.Entries[i])
		if err != nil {
			return out, err
		}
		if room -= len(entry) + 1; room < 0 {
			out.Entries, out.Truncated = out.Entries[:i], true
			out.Next = fmt.Sprintf("list_files with offset %d; the directory has %d entries", from+i, total)
			break
		}
	}
	return out, nil
}

func (m *mcpServer) snapshot(ctx context.Context, in mcpSandbox) (out api.Snapshot, err error) {
	err = m.inside(ctx, in, func(id string) error {
		out, err = m.client.Agents().Snapshot(ctx, id)
		return err
	})
	return out, err
}

func (m *mcpServer) remove(ctx context.Context, in mcpSandbox) (mcpDone, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := in.Sandbox
	if id == "" {
		id = m.current
	}
	if id == "" {
		return mcpDone{}, failure.Hint(errors.New("this session has no sandbox yet"), "nothing to do: the next call of a tool creates a sandbox")
	}
	if err := m.client.Agents().Remove(ctx, id); err != nil {
		return mcpDone{}, err
	}
	delete(m.made, id)
	if m.current == id {
		m.current = ""
	}
	return mcpDone{"removed", id}, nil
}
