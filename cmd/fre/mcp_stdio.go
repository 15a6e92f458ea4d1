package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// mcpMaxLine is the longest message that fre mcp reads, in bytes: a file of 16 MiB in base64, with
// room for the rest.
const mcpMaxLine = 24 << 20

// mcpInput passes on the messages of standard input, one for each line. Its reader, the MCP
// library, ends the session at the first line that it cannot decode. mcpInput answers such a line
// itself, as JSON-RPC 2.0 section 5.1 says, and the session and its sandboxes live on:
//
//	not JSON                          -32700 Parse error
//	JSON, but no request or answer    -32600 Invalid Request
//
// At the end of the input mcpInput waits until the session has answered, because the session
// cancels all calls when its input ends. So a script may write its messages and close.
type mcpInput struct {
	in   *bufio.Reader
	out  *mcpOutput
	line []byte // the rest of a message, for the next Read
}

func newMCPInput(in io.Reader, out *mcpOutput) *mcpInput {
	return &mcpInput{in: bufio.NewReader(in), out: out}
}

// Read implements io.Reader.
func (m *mcpInput) Read(p []byte) (int, error) {
	for len(m.line) == 0 {
		line, long, err := m.next()
		message, refused := mcpMessage(line, long)
		if refused != nil {
			if _, err := m.out.Write(refused); err != nil {
				return 0, err
			}
		} else if len(bytes.TrimSpace(line)) > 0 {
			m.line = append(bytes.TrimSpace(line), '\n')
			m.out.expect(message)
		}
		if err != nil && len(m.line) == 0 {
			m.out.wait(mcpPatience)
			return 0, err
		}
	}
	n := copy(p, m.line)
	m.line = m.line[n:]
	return n, nil
}

// Close implements io.Closer; standard input stays open.
func (m *mcpInput) Close() error { return nil }

// next reads a line. long reports a line longer than mcpMaxLine, whose rest was skipped.
func (m *mcpInput) next() (line []byte, long bool, err error) {
	for {
		piece, err := m.in.ReadSlice('\n')
		if long = long || len(line)+len(piece) > mcpMaxLine; long {
			line = nil
		} else {
			line = append(line, piece...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

// mcpMessage decodes a line. refused is the answer to a malformed line; both results are nil for a
// blank line.
func mcpMessage(line []byte, long bool) (decoded jsonrpc.Message, refused []byte) {
	var code int
	var message, data string
	switch line = bytes.TrimSpace(line); {
	case long:
		code, message, data = jsonrpc.CodeInvalidRequest, "Invalid Request", "the line is longer than 24 MiB: write a large file in parts, or with exec"
	case len(line) == 0:
		return nil, nil
	case !json.Valid(line):
		code, message, data = jsonrpc.CodeParseError, "Parse error", "the line is not JSON: send each message as one line of JSON"
	case line[0] == '[':
		code, message, data = jsonrpc.CodeInvalidRequest, "Invalid Request", "batches are not supported: send each message on a line of its own"
	default:
		if decoded, err := jsonrpc.DecodeMessage(line); err == nil {
			return decoded, nil
		}
		code, message, data = jsonrpc.CodeInvalidRequest, "Invalid Request", `a message is an object with "jsonrpc": "2.0" and a method, or an id and a result or error`
	}
	answer, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": nil,
		"error": map[string]any{"code": code, "message": message, "data": data},
	})
	if err != nil { // strings and numbers can always be encoded
		return nil, nil
	}
	return nil, append(answer, '\n')
}

// mcpPatience bounds the wait for answers after the end of the input: a first call may build the
// sandbox's image.
const mcpPatience = 2 * time.Minute

// mcpOutput writes messages, one in each Write, and tracks unanswered calls. It is safe for use by
// several goroutines.
type mcpOutput struct {
	mu     sync.Mutex
	to     io.Writer
	calls  map[string]bool // by id, in JSON
	failed bool            // the client reads no more
	change chan struct{}   // closed and replaced when a call is answered
}

func newMCPOutput(to io.Writer) *mcpOutput {
	return &mcpOutput{to: to, calls: map[string]bool{}, change: make(chan struct{})}
}

// Write implements io.Writer.
func (o *mcpOutput) Write(p []byte) (int, error) {
	var answer struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	answered := json.Unmarshal(p, &answer) == nil && answer.Method == ""
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.to.Write(p)
	o.failed = o.failed || err != nil
	if answered || err != nil {
		o.endLocked(string(answer.ID))
	}
	return n, err
}

// Close implements io.Closer. The writer below stays open.
func (o *mcpOutput) Close() error { return nil }

// expect records a call, and forgets a call that the client cancels.
func (o *mcpOutput) expect(m jsonrpc.Message) {
	r, ok := m.(*jsonrpc.Request)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.IsCall() {
		if id, err := json.Marshal(r.ID.Raw()); err == nil {
			o.calls[string(id)] = true
		}
	} else if r.Method == "notifications/cancelled" {
		var cancelled struct {
			ID json.RawMessage `json:"requestId"`
		}
		if json.Unmarshal(r.Params, &cancelled) == nil {
			o.endLocked(string(cancelled.ID))
		}
	}
}

func (o *mcpOutput) endLocked(id string) {
	delete(o.calls, id)
	close(o.change)
	o.change = make(chan struct{})
}

// wait returns when every call is answered, when the client reads no more, or after the patience.
func (o *mcpOutput) wait(patience time.Duration) {
	late := time.After(patience)
	for {
		o.mu.Lock()
		over, change := o.failed || len(o.calls) == 0, o.change
		o.mu.Unlock()
		if over {
			return
		}
		select {
		case <-change:
		case <-late:
			return
		}
	}
}
