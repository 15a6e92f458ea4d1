package adapter

import (
	"bufio"
	"bytes"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

const runtimeVersion = "/2018-06-01/runtime"

// Clients send two requests for each event, always in the same form. A connection's loop answers
// usual requests itself, in one goroutine and with one write each. net/http would add a second
// goroutine that reads ahead, and make a request, a context and two maps of headers. At the first
// unusual request the loop leaves the connection to net/http for good.
const (
	headBytes = 16 << 10
	endOfHead = "\r\n\r\n"
)

// peekHead waits for the head of a request, with its empty line. The head of an unusual request may
// be incomplete.
func peekHead(r *bufio.Reader) ([]byte, error) {
	for n := 1; ; {
		if _, err := r.Peek(n); err != nil {
			return nil, err
		}
		p, _ := r.Peek(r.Buffered()) // returns the buffered bytes without a read
		if i := bytes.Index(p, []byte(endOfHead)); i >= 0 {
			return p[:i+len(endOfHead)], nil
		}
		if bareLine(p) {
			return p, nil
		}
		n = len(p) + 1
	}
}

// bareLine reports whether a line ends without a carriage return. net/http accepts such lines.
func bareLine(head []byte) bool {
	return bytes.Count(head, []byte("\n")) != bytes.Count(head, []byte("\r\n"))
}

// usualRequest is a parsed usual request.
type usualRequest struct {
	next   bool   // asks for an event; else it is an answer
	id     string // of the answered event
	failed bool   // the answer is an error
	kind   string // type of the body, or of the error
	length int
}

// usual parses a head. It returns false for all but the requests that clients send all the time.
func usual(head []byte) (q usualRequest, ok bool) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	var f usualFields
	if bareLine(head) || !q.line(line) || !f.parse(rest) {
		return q, false
	}
	q.kind = f.kind
	if q.failed {
		q.kind = f.errorType
	}
	if f.sized {
		q.length = f.length
	}
	return q, q.next && q.length == 0 || !q.next && q.length >= 0
}

// line parses a request line. The length of an answer is -1 until its header comes.
func (q *usualRequest) line(line []byte) bool {
	method, line, _ := bytes.Cut(line, []byte(" "))
	path, version, _ := bytes.Cut(line, []byte(" "))
	path, ok := bytes.CutPrefix(path, []byte(runtimeVersion+"/invocation/"))
	switch {
	case !ok || string(version) != "HTTP/1.1":
		return false
	case string(method) == "GET" && string(path) == "next":
		q.next = true
		return true
	case string(method) == "POST":
		id, what, _ := bytes.Cut(path, []byte("/"))
		if string(what) != "response" && string(what) != "error" || bytes.IndexByte(id, '%') >= 0 {
			return false
		}
		q.id, q.failed, q.length = string(id), string(what) == "error", -1
		return true
	}
	return false
}

// usualFields are the header fields of a usual request.
type usualFields struct {
	kind, errorType string
	length          int
	sized           bool
}

// parse parses the lines of fields. It returns false for a field that usual requests do not have.
func (f *usualFields) parse(rest []byte) bool {
	for len(rest) > 2 {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, colon := bytes.Cut(line, []byte(":"))
		if !colon || len(name) == 0 || bytes.ContainsAny(name, " \t") || !f.add(name, bytes.Trim(value, " \t")) {
			return false
		}
	}
	return true
}

// add takes a field. It returns false for a field that usual requests do not have.
func (f *usualFields) add(name, value []byte) bool {
	switch string(bytes.ToLower(name)) {
	case "transfer-encoding", "expect", "upgrade", "trailer", "lambda-runtime-function-response-mode":
		return false
	case "connection":
		return strings.EqualFold(string(value), "keep-alive")
	case "content-length":
		n, err := strconv.ParseUint(string(value), 10, 31)
		if err != nil || f.sized {
			return false
		}
		f.length, f.sized = int(n), true
	case "content-type":
		f.kind = string(value)
		return f.kind != integrationResponse
	case "lambda-runtime-function-error-type":
		f.errorType = string(value)
	}
	return true
}

// answer converts an answer's body.
func (q *usualRequest) answer(body []byte, whole bool) answered {
	switch {
	case q.failed:
		return answered{err: failureIn(q.kind, body[:min(len(body), maxError)])}
	case whole:
		a := &channel.Answer{Status: 200}
		if err := httpAnswer(a, body); err != nil {
			return answered{err: err}
		}
		return answered{a: a}
	}
	return answered{a: &channel.Answer{Status: 200, Headers: [][2]string{{"content-type", answerType(q.kind)}}, Body: bytes.NewReader(body)}}
}
