package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
)

// A model chooses its sandbox's network within the limits of the flags.
func TestMCPNetwork(t *testing.T) {
	const pypi, npm, other = "pypi.org:443", "registry.npmjs.org:443", "example.com:443"
	for name, c := range map[string]struct {
		flags string // network and destinations
		asked string
		want  string // "" if refused
	}{
		"the flags'":               {"egress " + pypi, "", "egress " + pypi},
		"none by default":          {"", "none", "none"},
		"less than egress":         {"egress " + pypi, "none", "none"},
		"one of two":               {"egress " + pypi + " " + npm, "egress " + npm, "egress " + npm},
		"one without saying how":   {"egress " + pypi + " " + npm, " " + npm, "egress " + npm},
		"all that there is":        {"egress " + pypi, "egress", "egress " + pypi},
		"one of all":               {"egress", "egress " + other, "egress " + other},
		"egress where there is no": {"", "egress", ""},
		"one where there is no":    {"none", " " + other, ""},
		"another":                  {"egress " + pypi, "egress " + pypi + " " + other, ""},
	} {
		var usual api.AgentRequest
		var in mcpCreate
		usual.Network, usual.Allow = networkWords(c.flags)
		in.Network, in.Allow = networkWords(c.asked)
		got, err := (&mcpServer{usual: usual}).request(in)
		switch made := strings.Join(append([]string{got.Network}, got.Allow...), " "); {
		case c.want == "" && failure.Next(err) == "":
			t.Errorf("%s: %q, %v", name, made, err)
		case c.want != "" && (err != nil || made != c.want):
			t.Errorf("%s: %q, %v, want %q", name, made, err, c.want)
		}
	}
}

// networkWords splits a network and its destinations.
func networkWords(s string) (network string, allow []string) {
	words := strings.Split(s, " ")
	return words[0], words[1:]
}

// answered is the output of a session without unanswered calls.
func answered(to io.Writer) *mcpOutput {
	o := newMCPOutput(to)
	o.failed = true
	return o
}

// The end of the input is passed on once each call is answered, cancelled or out of time, and at
// once if the client stops reading.
func TestMCPEnd(t *testing.T) {
	const call, other = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":"b","method":"ping"}`
	for name, c := range map[string]struct {
		input string
		end   func(o *mcpOutput) // how the session's calls end
		late  bool
	}{
		"no call":   {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, false},
		"cancelled": {call + "\n" + `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, nil, false},
		"answered": {call + "\n" + other, func(o *mcpOutput) {
			fmt.Fprintln(o, `{"jsonrpc":"2.0","id":"b","result":{}}`)
			fmt.Fprintln(o, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`)
		}, false},
		"another call answered":   {call, func(o *mcpOutput) { fmt.Fprintln(o, `{"jsonrpc":"2.0","id":2,"result":{}}`) }, true},
		"a call of the session's": {call, func(o *mcpOutput) { fmt.Fprintln(o, `{"jsonrpc":"2.0","id":1,"method":"ping"}`) }, true},
		"nobody reads":            {call, func(o *mcpOutput) { o.to = brokenWriter{}; fmt.Fprintln(o, `{"jsonrpc":"2.0","method":"log"}`) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newMCPOutput(io.Discard)
				began := time.Now()
				done := make(chan error)
				go func() { _, err := io.ReadAll(newMCPInput(strings.NewReader(c.input), o)); done <- err }()
				synctest.Wait()
				if c.end != nil {
					c.end(o)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				if late := time.Since(began) >= mcpPatience; late != c.late {
					t.Errorf("after %v", time.Since(began))
				}
			})
		})
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A malformed line gets an error of JSON-RPC, and the messages around the line are read.
func TestMCPInput(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, c := range map[string]struct {
		line string
		code float64 // 0 if the line is passed on
	}{
		"a request":           {ping, 0},
		"an answer":           {`{"jsonrpc":"2.0","id":1,"result":{}}`, 0},
		"a notification":      {` {"jsonrpc":"2.0","method":"notifications/initialized"} ` + "\r", 0},
		"text":                {"not json", -32700},
		"half an object":      {`{"jsonrpc":"2.0",`, -32700},
		"two on one line":     {ping + ping, -32700},
		"no UTF-8":            {"\xff\xfe", -32700},
		"a number":            {"42", -32600},
		"another version":     {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, -32600},
		"a method of numbers": {`{"jsonrpc":"2.0","id":1,"method":7}`, -32600},
		"an id that is none":  {`{"jsonrpc":"2.0","id":{},"method":"ping"}`, -32600},
		"a batch":             {"[" + ping + "]", -32600},
		"too long":            {`"` + strings.Repeat("x", mcpMaxLine) + `"`, -32600},
	} {
		var answers strings.Builder
		passed, err := io.ReadAll(newMCPInput(strings.NewReader(ping+"\n\n"+c.line+"\n"+ping), answered(&answers)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := ping + "\n" + ping + "\n"
		if c.code == 0 {
			want = ping + "\n" + strings.TrimSpace(c.line) + "\n" + ping + "\n"
		}
		if string(passed) != want {
			t.Errorf("%s: passed on %.200q, want %.200q", name, passed, want)
		}
		var answer struct {
			ID    any `json:"id"`
			Error struct {
				Code float64 `json:"code"`
			} `json:"error"`
		}
		if answers.Len() > 0 {
			if err := json.Unmarshal([]byte(answers.String()), &answer); err != nil {
				t.Errorf("%s: answer %q: %v", name, answers.String(), err)
			}
		}
		if answer.Error.Code != c.code || answer.ID != nil {
			t.Errorf("%s: error %v of id %v, want %v of null", name, answer.Error.Code, answer.ID, c.code)
		}
	}
}

// For any input the session's reader gets only valid messages.
func FuzzMCPInput(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\nnot json\n[]\n\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		passed, err := io.ReadAll(newMCPInput(bytes.NewReader(input), answered(io.Discard)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(passed) {
			if _, err := jsonrpc.DecodeMessage(line); err != nil || line[len(line)-1] != '\n' {
				t.Errorf("%q was passed on: %v", line, err)
			}
		}
	})
}

// A model reads text unescaped, and sees pictures.
func TestMCPResult(t *testing.T) {
	for name, c := range map[string]struct {
		out  any
		want []mcp.Content
	}{
		"a file's text": {mcpContent{Content: "<b>x & y</b>"}, []mcp.Content{&mcp.TextContent{Text: "<b>x & y</b>"}}},
		"a part of it": {mcpContent{Content: "<", Truncated: true, Next: "read_file with offset 1"}, []mcp.Content{
			&mcp.TextContent{Text: "<"}, &mcp.TextContent{Text: "[the file continues: read_file with offset 1]"},
		}},
		"bytes":     {mcpContent{Content: "//4A", Base64: true}, []mcp.Content{&mcp.TextContent{Text: `{"content":"//4A","base64":true}`}}},
		"a picture": {mcpContent{Content: "\x89PNG", image: "image/png"}, []mcp.Content{&mcp.ImageContent{Data: []byte("\x89PNG"), MIMEType: "image/png"}}},
		"a command": {mcpRan{Stdout: "a > b\n", Sandbox: "s"}, []mcp.Content{&mcp.TextContent{Text: `{"stdout":"a > b\n","stderr":"","exit_code":0,"sandbox":"s"}`}}},
	} {
		got, _, err := mcpResult(c.out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got.Content); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
