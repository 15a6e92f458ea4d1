package load

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"
)

// errAnswer is wrapped by errors about an answer that is not valid HTTP/1.1.
var errAnswer = errors.New("not an HTTP/1.1 answer")

// head holds the header fields that determine the end of an answer.
type head struct {
	status  int
	length  int64 // Content-Length; -1: absent
	chunked bool
	keep    bool // the server keeps the connection open after the answer

	retryAfter time.Duration // 0: absent
}

var (
	nameLength     = []byte("content-length")
	nameCoding     = []byte("transfer-encoding")
	nameConnection = []byte("connection")
	nameRetryAfter = []byte("retry-after")
	codingChunked  = []byte("chunked")
	optionClose    = []byte("close")
	optionKeep     = []byte("keep-alive")
)

// parseHead parses a status line and header fields up to the empty line (RFC 9112, 4 and 6.3). Each
// line ends in CR LF. parseHead allocates nothing for a valid head.
func parseHead(text []byte) (head, error) {
	line, rest, _ := bytes.Cut(text, []byte("\r\n"))
	h, err := parseStatus(line)
	if err != nil {
		return head{}, err
	}
	coded := false
	for {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		if len(line) == 0 {
			break
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return head{}, fmt.Errorf("%w: header line %.60q", errAnswer, line)
		}
		name, value := line[:colon], bytes.TrimSpace(line[colon+1:])
		coded = coded || bytes.EqualFold(name, nameCoding)
		if err := h.field(name, value); err != nil {
			return head{}, err
		}
	}
	if coded { // Transfer-Encoding overrides Content-Length
		h.length = -1
	}
	if h.length < 0 && !h.chunked && h.status >= 200 && h.status != 204 && h.status != 304 {
		h.keep = false // the body ends with the connection; ending after an answer to HEAD costs little
	}
	if h.status == 101 {
		h.keep = false
	}
	return h, nil
}

// parseStatus parses a line such as "HTTP/1.1 200 OK"; the reason phrase may be missing.
func parseStatus(line []byte) (head, error) {
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return head{}, fmt.Errorf("%w: %.60q", errAnswer, line)
	}
	status, ok := decimal(line[9:12])
	if !ok || status < 100 || status > 999 {
		return head{}, fmt.Errorf("%w: %.60q", errAnswer, line)
	}
	return head{status: int(status), length: -1, keep: line[7] == '1'}, nil
}

// field takes a header field over into the head.
func (h *head) field(name, value []byte) error {
	switch {
	case bytes.EqualFold(name, nameLength):
		n, ok := decimal(value)
		if !ok || h.length >= 0 && h.length != n {
			return fmt.Errorf("%w: content-length %.60q", errAnswer, value)
		}
		h.length = n
	case bytes.EqualFold(name, nameCoding):
		h.chunked = bytes.EqualFold(lastToken(value), codingChunked)
	case bytes.EqualFold(name, nameConnection):
		switch {
		case hasToken(value, optionClose):
			h.keep = false
		case hasToken(value, optionKeep):
			h.keep = true
		}
	case bytes.EqualFold(name, nameRetryAfter):
		h.retryAfter = retryAfter(value)
	}
	return nil
}

// retryAfter parses seconds or a date (RFC 9110, 10.2.3). The result is 0 for an invalid or past
// value, and at most an hour.
func retryAfter(value []byte) time.Duration {
	if n, ok := decimal(value); ok {
		return time.Duration(min(n, 3600)) * time.Second
	}
	t, err := http.ParseTime(string(value))
	if err != nil {
		return 0
	}
	return min(max(time.Until(t), 0), time.Hour)
}

// decimal parses a string of digits.
func decimal(text []byte) (int64, bool) {
	if len(text) == 0 {
		return 0, false
	}
	n := int64(0)
	for _, c := range text {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// parseChunkSize parses the line before a chunk: hexadecimal digits and extensions, which are
// ignored (RFC 9112, 7.1).
func parseChunkSize(line []byte) (int64, error) {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	digits = bytes.TrimRight(digits, " \t")
	n := int64(0)
	for _, c := range digits {
		var d byte
		switch {
		case c >= '0' && c <= '9':
			d = c - '0'
		case c >= 'a' && c <= 'f':
			d = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			d = c - 'A' + 10
		default:
			return 0, fmt.Errorf("%w: chunk size %.60q", errAnswer, line)
		}
		if n > math.MaxInt64>>8 {
			return 0, fmt.Errorf("%w: chunk size %.60q", errAnswer, line)
		}
		n = n<<4 | int64(d)
	}
	if len(digits) == 0 {
		return 0, fmt.Errorf("%w: chunk size %.60q", errAnswer, line)
	}
	return n, nil
}

// lastToken returns the last element of a comma-separated list.
func lastToken(list []byte) []byte {
	return bytes.TrimSpace(list[bytes.LastIndexByte(list, ',')+1:])
}

// hasToken reports whether a comma-separated list contains the token, ignoring case.
func hasToken(list, token []byte) bool {
	for len(list) > 0 {
		var one []byte
		one, list, _ = bytes.Cut(list, []byte(","))
		if bytes.EqualFold(bytes.TrimSpace(one), token) {
			return true
		}
	}
	return false
}
