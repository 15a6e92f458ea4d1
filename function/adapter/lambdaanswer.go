package adapter

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/fre-engine/fre/function/channel"
)

// answered is the result of an invocation.
type answered struct {
	a   *channel.Answer
	err error
}

// failureOf reads the exception that a client reports.
func failureOf(r *http.Request) *channel.Failure {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxError))
	return failureIn(r.Header.Get("Lambda-Runtime-Function-Error-Type"), body)
}

func failureIn(kind string, body []byte) *channel.Failure {
	var said struct {
		Type    string   `json:"errorType"`
		Message string   `json:"errorMessage"`
		Stack   []string `json:"stackTrace"`
		Trace   []string `json:"trace"` // node's
	}
	f := &channel.Failure{Type: kind, Message: string(body)}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(body, &said); err == nil || !errors.As(err, &syntax) { // members of the wrong type are ignored
		f.Message = said.Message
		if said.Type != "" {
			f.Type = said.Type
		}
		for _, line := range append(said.Stack, said.Trace...) {
			f.Stack += strings.TrimRight(line, "\n") + "\n"
		}
	}
	if f.Type == "" {
		f.Type = "Error"
	}
	return f
}

// maxError bounds the part of a client's error that is read.
const maxError = 1 << 20

// answerType is the type of a handler's result. Clients that name no type send JSON.
func answerType(kind string) string {
	if kind == "" || kind == "application/octet-stream" || strings.ContainsFunc(kind, control) {
		return "application/json"
	}
	return kind
}

// httpAnswer converts a handler's result for such an event: an object with statusCode, or any
// value, which becomes the body.
func httpAnswer(a *channel.Answer, returned []byte) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(returned, &members) != nil || members["statusCode"] == nil {
		var text string
		if json.Unmarshal(returned, &text) == nil {
			returned = []byte(text)
		}
		a.Headers, a.Body = [][2]string{{"content-type", "application/json"}}, bytes.NewReader(returned)
		return nil
	}
	var said struct {
		httpHead
		Body   json.RawMessage `json:"body"`
		Base64 bool            `json:"isBase64Encoded"`
	}
	if err := json.Unmarshal(returned, &said); err != nil {
		return &channel.Failure{Type: "InvalidResponse", Message: "the handler's answer: " + err.Error()}
	}
	var text string
	body := []byte(said.Body)
	if json.Unmarshal(said.Body, &text) == nil { // null too
		body = []byte(text)
	}
	if said.Base64 {
		var err error
		if body, err = base64.StdEncoding.DecodeString(text); err != nil {
			return &channel.Failure{Type: "InvalidResponse", Message: "the handler's answer has isBase64Encoded, but the body is not base64: " + err.Error()}
		}
	}
	a.Body = bytes.NewReader(body)
	return said.set(a)
}

// httpHead is the status and headers of such an answer.
type httpHead struct {
	Status  int                        `json:"statusCode"`
	Headers map[string]json.RawMessage `json:"headers"`
	Multi   map[string][]string        `json:"multiValueHeaders"`
	Cookies []string                   `json:"cookies"`
}

func (h *httpHead) set(a *channel.Answer) error {
	if a.Status = h.Status; a.Status == 0 {
		a.Status = 200
	}
	if a.Status < 200 || a.Status > 599 {
		return &channel.Failure{Type: "InvalidResponse", Message: fmt.Sprintf("the handler's statusCode %d is not from 200 to 599", a.Status)}
	}
	for _, field := range h.fields() {
		name, value := field[0], field[1]
		if !token(name) || strings.ContainsFunc(value, control) {
			return &channel.Failure{Type: "InvalidResponse", Message: fmt.Sprintf("the handler's header %q has an invalid name or value: %q", name, value)}
		}
		if name = strings.ToLower(name); !hopByHopLower[name] {
			a.Headers = append(a.Headers, [2]string{name, value})
		}
	}
	if !slices.ContainsFunc(a.Headers, func(h [2]string) bool { return h[0] == "content-type" }) {
		a.Headers = append(a.Headers, [2]string{"content-type", "text/plain; charset=utf-8"})
	}
	if len(a.Headers) > channel.MaxHeaders {
		return &channel.Failure{Type: "InvalidResponse", Message: fmt.Sprintf("the handler's answer has %d headers, at most %d", len(a.Headers), channel.MaxHeaders)}
	}
	return nil
}

// fields returns the names and values of the headers, sorted by name, and then the cookies. A name
// with several values replaces the same name with one.
func (h *httpHead) fields() (fields [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		var value string
		if json.Unmarshal(h.Headers[name], &value) != nil { // a number, a boolean
			value = string(h.Headers[name])
		}
		if _, ok := h.Multi[name]; !ok {
			fields = append(fields, [2]string{name, value})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Multi)) {
		for _, value := range h.Multi[name] {
			fields = append(fields, [2]string{name, value})
		}
	}
	for _, c := range h.Cookies {
		fields = append(fields, [2]string{"set-cookie", c})
	}
	return fields
}

// streamed is the body of an answer as it arrives. The client reports a late failure of the handler
// in trailers.
type streamed struct {
	r    *http.Request
	done chan struct{}
	once sync.Once
}

func (s *streamed) Read(p []byte) (int, error) {
	n, err := s.r.Body.Read(p)
	if err == io.EOF {
		if t := s.r.Trailer.Get("Lambda-Runtime-Function-Error-Type"); t != "" {
			body, _ := base64.StdEncoding.DecodeString(s.r.Trailer.Get("Lambda-Runtime-Function-Error-Body"))
			return n, failureIn(t, body)
		}
	}
	return n, err
}

func (s *streamed) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// integrationResponse is the type of a streamed answer that begins with status and headers in JSON
// and eight zero bytes.
const integrationResponse = "application/vnd.awslambda.http-integration-response"

const maxPrelude = 256 << 10

// answer converts the body. If the answer streams, the client's request lasts until the engine has
// read the body.
func (s *streamed) answer(whole bool) (a *channel.Answer, streams bool, err error) {
	a = &channel.Answer{Status: 200, Body: s}
	kind := s.r.Header.Get("Content-Type")
	switch {
	case kind == integrationResponse:
		return a, true, s.prelude(a)
	case s.r.Header.Get("Lambda-Runtime-Function-Response-Mode") == "streaming":
		a.Headers = [][2]string{{"content-type", cmp.Or(kind, "application/octet-stream")}}
		return a, true, nil
	case whole:
		body, err := io.ReadAll(s)
		if err == nil {
			err = httpAnswer(a, body)
		}
		return a, false, err
	}
	a.Headers = [][2]string{{"content-type", answerType(kind)}}
	if s.r.ContentLength < 0 || s.r.ContentLength > smallAnswer {
		return a, true, nil
	}
	body, err := io.ReadAll(s)
	a.Body = bytes.NewReader(body)
	return a, false, err
}

// prelude reads the beginning of such an answer, before its body.
func (s *streamed) prelude(a *channel.Answer) error {
	r := bufio.NewReader(s)
	var text []byte
	for !bytes.HasSuffix(text, make([]byte, 8)) {
		c, err := r.ReadByte()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if text = append(text, c); len(text) > maxPrelude {
			return &channel.Failure{Type: "InvalidResponse", Message: "the head of the handler's stream does not end"}
		}
	}
	var head httpHead
	if err := json.Unmarshal(text[:len(text)-8], &head); err != nil {
		return &channel.Failure{Type: "InvalidResponse", Message: "the head of the handler's stream: " + err.Error()}
	}
	a.Body = &buffered{Reader: r, Closer: s}
	return head.set(a)
}

// buffered reads from Reader and closes Closer.
type buffered struct {
	*bufio.Reader
	io.Closer
}
