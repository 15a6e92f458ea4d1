package adapter

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fre-engine/fre/function/channel"
)

// httpEvent is an event in payload format 2.0
// (docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html),
// as for function URLs. The bootstraps of Python and Node do the same.
func httpEvent(e *channel.Event, body []byte) map[string]any {
	headers, cookies := map[string]string{}, []string{}
	for _, h := range e.Headers {
		name := strings.ToLower(h[0])
		switch have, ok := headers[name]; {
		case name == "cookie":
			for c := range strings.SplitSeq(h[1], ";") {
				cookies = append(cookies, strings.TrimSpace(c))
			}
		case ok:
			headers[name] = have + "," + h[1]
		default:
			headers[name] = h[1]
		}
	}
	now := time.Now().UTC()
	host := headers["host"]
	prefix, _, _ := strings.Cut(host, ".")
	out := map[string]any{
		"version": "2.0", "routeKey": "$default", "rawPath": e.Path, "rawQueryString": e.Query, "headers": headers,
		"isBase64Encoded": false,
		"requestContext": map[string]any{
			"accountId": "anonymous", "apiId": e.Function, "domainName": host, "domainPrefix": prefix,
			"http": map[string]any{
				"method": e.Method, "path": e.Path, "protocol": "HTTP/1.1", "sourceIp": clientAddress(headers["x-forwarded-for"]), "userAgent": headers["user-agent"],
			},
			"requestId": e.ID, "routeKey": "$default", "stage": "$default",
			"time": now.Format("02/Jan/2006:15:04:05 -0700"), "timeEpoch": now.UnixMilli(),
		},
	}
	if len(cookies) > 0 {
		out["cookies"] = cookies
	}
	if q := query(e.Query); len(q) > 0 {
		out["queryStringParameters"] = q
	}
	if len(body) > 0 {
		if isText(headers["content-type"]) && utf8.Valid(body) {
			out["body"] = string(body)
		} else {
			out["body"], out["isBase64Encoded"] = base64.StdEncoding.EncodeToString(body), true
		}
	}
	return out
}

// query joins the values of a repeated parameter.
func query(raw string) map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, value = unescape(name), unescape(value)
		if have, ok := out[name]; ok {
			value = have + "," + value
		}
		out[name] = value
	}
	return out
}

func unescape(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return strings.ToValidUTF8(u, "\ufffd")
	}
	return s
}

// clientAddress is the last address in X-Forwarded-For: the gateway's own client.
func clientAddress(forwarded string) string {
	last := strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:])
	if net.ParseIP(last) == nil {
		return ""
	}
	return last
}

// isText reports whether a body of the type is passed as text.
func isText(contentType string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	kind = strings.TrimSpace(kind)
	return kind == "" || strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") ||
		slices.Contains([]string{"application/json", "application/xml", "application/javascript"}, kind)
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
	typed := false
	for _, field := range h.fields() {
		name, value := field[0], field[1]
		if !token(name) || strings.ContainsFunc(value, control) {
			return &channel.Failure{Type: "InvalidResponse", Message: fmt.Sprintf("the handler's header %q has an invalid name or value: %q", name, value)}
		}
		if name = strings.ToLower(name); !hopByHopLower[name] {
			typed = typed || name == "content-type"
			a.Headers = append(a.Headers, [2]string{name, value})
		}
	}
	if !typed {
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

var hopByHopLower = func() map[string]bool {
	out := map[string]bool{}
	for name := range hopByHop {
		out[strings.ToLower(name)] = true
	}
	return out
}()

// integrationResponse is the type of a streamed answer that begins with status and headers in JSON
// and eight zero bytes.
const integrationResponse = "application/vnd.awslambda.http-integration-response"

const maxPrelude = 256 << 10

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
