package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// mcpMaxLine is the longest message that fre mcp reads, in bytes: a file of 16 MiB in
// base64, with room for the rest.
const mcpMaxLine = 24 << 20

// mcpInput passes the messages of standard input on, one a line, to a reader that ends
// the session at the first one it cannot decode. mcpInput answers such a line itself, as
// JSON-RPC 2.0 section 5.1 says, and the session and its sandboxes live on:
//
//	not JSON                          -32700 Parse error
//	JSON, but no request or answer    -32600 Invalid Request
type mcpInput struct {
	in   *bufio.Reader
	out  io.Writer // safe for use beside the session's own answers
	line []byte    // what is left of a message that Read returns
}

func newMCPInput(in io.Reader, out io.Writer) *mcpInput {
	return &mcpInput{in: bufio.NewReader(in), out: out}
}

// Read is part of io.Reader.
func (m *mcpInput) Read(p []byte) (int, error) {
	for len(m.line) == 0 {
		line, long, err := m.next()
		if refused := mcpRefusal(line, long); refused != nil {
			if _, err := m.out.Write(refused); err != nil {
				return 0, err
			}
		} else if len(bytes.TrimSpace(line)) > 0 {
			m.line = append(bytes.TrimSpace(line), '\n')
		}
		if err != nil && len(m.line) == 0 {
			return 0, err
		}
	}
	n := copy(p, m.line)
	m.line = m.line[n:]
	return n, nil
}

// Close is part of io.Closer; standard input stays open.
func (m *mcpInput) Close() error { return nil }

// next reads a line. long reports that it is longer than mcpMaxLine; its rest was skipped.
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

// mcpRefusal is the answer to a line that is no message; nil if it is one, or blank.
func mcpRefusal(line []byte, long bool) []byte {
	var code int
	var message, data string
	switch line = bytes.TrimSpace(line); {
	case long:
		code, message, data = jsonrpc.CodeInvalidRequest, "Invalid Request", "the line has more than 24 MiB: write a large file in parts, or by exec"
	case len(line) == 0:
		return nil
	case !json.Valid(line):
		code, message, data = jsonrpc.CodeParseError, "Parse error", "the line is not JSON: send each message as JSON on a line of its own"
	case line[0] == '[':
		code, message, data = jsonrpc.CodeInvalidRequest, "Invalid Request", "batches are not supported: send each message on a line of its own"
	default:
		if _, err := jsonrpc.DecodeMessage(line); err == nil {
			return nil
		}
		code, message, data = jsonrpc.CodeInvalidRequest, "Invalid Request", `a message is an object with "jsonrpc": "2.0" and a method, or an id and a result or error`
	}
	answer, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": nil,
		"error": map[string]any{"code": code, "message": message, "data": data},
	})
	if err != nil { // of strings and numbers none fails
		return nil
	}
	return append(answer, '\n')
}

// lockedWriter is a writer for several goroutines; each Write comes out whole.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

// Write is part of io.Writer.
func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// Close is part of io.Closer; what it writes to stays open.
func (w *lockedWriter) Close() error { return nil }
