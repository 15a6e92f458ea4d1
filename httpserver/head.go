package httpserver

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/fre-engine/fre/failure"
)

// Limits limits the head of a request.
type Limits struct {
	Head   int // bytes, the empty line included
	Target int // bytes of the request target
	Fields int
}

// DefaultLimits are the limits of most servers.
var DefaultLimits = Limits{Head: 64 << 10, Target: 8 << 10, Fields: 128}

// RequestError is the reason to refuse a request. An HTTP/1.1 connection must be closed after the
// answer: the end of the request is unknown.
type RequestError struct {
	Status int    // of the answer
	Reason string // for the author of the client
}

func (e *RequestError) Error() string { return e.Reason }

// Code returns the code of Status.
func (e *RequestError) Code() failure.Code {
	switch e.Status {
	case http.StatusRequestTimeout:
		return failure.SlowHead
	case http.StatusRequestURITooLong:
		return failure.PathTooLong
	case http.StatusExpectationFailed:
		return failure.ExpectationFailed
	case http.StatusRequestHeaderFieldsTooLarge:
		return failure.HeaderTooLarge
	case http.StatusNotImplemented:
		return failure.NotImplemented
	case http.StatusHTTPVersionNotSupported:
		return failure.VersionNotSupported
	case http.StatusServiceUnavailable:
		return failure.Busy
	}
	return failure.BadRequest
}

func bad(format string, args ...any) error {
	return &RequestError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// Field is a header field. Both parts are slices of the parsed buffer.
type Field struct {
	Name, Value []byte // Value without surrounding white space
}

// Head is the part of a request before the body. Its slices are valid as long as the parsed
// buffer.
type Head struct {
	Method []byte
	Target []byte // as received
	Path   []byte // path of the target, still escaped; "*" of OPTIONS *
	Query  []byte // query of the target, without the question mark
	Host   []byte // host of the target if present, else of the Host field
	Minor  int    // of the version: 0 or 1
	Fields []Field

	Length  int64 // of the body, 0 for no body, -1 if chunked
	Close   bool  // the connection must not be reused
	Expects bool  // the client waits for 100 (Continue) before it sends the body
	Upgrade bool  // the client asks for another protocol
}

// Parse parses the head at the start of b and returns its length in bytes, 0 if b does not hold
// the whole head yet. Errors are *[RequestError]. Parse allocates only for errors and for a
// longer list of fields.
func (h *Head) Parse(b []byte, l *Limits) (n int, err error) {
	*h = Head{Fields: h.Fields[:0]}
	p := parser{b: b, l: l}
	if whole, err := p.emptyLine(); err != nil || !whole {
		return 0, err
	}
	line, ok, err := p.firstLine()
	if err != nil || !ok {
		return 0, err
	}
	if err := h.requestLine(line, l); err != nil {
		return 0, err
	}
	if whole, err := h.fieldLines(&p); err != nil || !whole {
		return 0, err
	}
	if err := h.framing(); err != nil {
		return 0, err
	}
	return p.at, nil
}

// fieldLines reads the lines of fields. whole is false if the empty line after them is missing.
func (h *Head) fieldLines(p *parser) (whole bool, err error) {
	for {
		line, ok, err := p.line()
		if err != nil || !ok {
			return false, err
		}
		if len(line) == 0 {
			return true, nil
		}
		if len(h.Fields) == p.l.Fields {
			return false, &RequestError{http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("more than %d header fields", p.l.Fields)}
		}
		f, err := parseField(line)
		if err != nil {
			return false, err
		}
		h.Fields = append(h.Fields, f)
	}
}

// parser splits a head into lines.
type parser struct {
	b  []byte
	at int
	l  *Limits
}

// emptyLine skips an empty line: old clients send one after a body (RFC 9112 section 2.2). whole is
// false if the line is not complete.
func (p *parser) emptyLine() (whole bool, err error) {
	if len(p.b) == 0 || p.b[0] != '\r' {
		return true, nil
	}
	if len(p.b) < 2 {
		return false, nil
	}
	if p.b[1] != '\n' {
		return false, bad("a carriage return without a line feed")
	}
	p.at = 2
	return true, nil
}

// firstLine is line for the request line, whose limit is shorter.
func (p *parser) firstLine() (line []byte, ok bool, err error) {
	line, ok, err = p.line()
	if err == nil && !ok && len(p.b)-p.at > p.l.Target+64 {
		err = &RequestError{http.StatusRequestURITooLong, "the request line is too long"}
	}
	return line, ok, err
}

// line returns the next line without its end. ok is false if the line is not complete.
func (p *parser) line() (line []byte, ok bool, err error) {
	rest := p.b[p.at:]
	i := bytes.IndexByte(rest, '\n')
	if i < 0 || p.at+i >= p.l.Head {
		if len(p.b) >= p.l.Head {
			return nil, false, &RequestError{http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the head is larger than %d bytes", p.l.Head)}
		}
		return nil, false, nil
	}
	if i == 0 || rest[i-1] != '\r' {
		return nil, false, bad("a line feed without a carriage return")
	}
	p.at += i + 1
	return rest[:i-1], true, nil
}

// requestLine parses method SP target SP version (RFC 9112 section 3).
func (h *Head) requestLine(line []byte, l *Limits) error {
	method, rest, ok := bytes.Cut(line, []byte{' '})
	target, version, ok2 := bytes.Cut(rest, []byte{' '})
	if !ok || !ok2 {
		return bad("the request line is not METHOD TARGET HTTP/1.1")
	}
	if len(method) > 32 || !isToken(method) {
		return bad("invalid method")
	}
	switch string(version) {
	case "HTTP/1.1":
		h.Minor = 1
	case "HTTP/1.0":
	default:
		if bytes.HasPrefix(version, []byte("HTTP/")) && len(version) == len("HTTP/1.1") {
			return &RequestError{http.StatusHTTPVersionNotSupported, "HTTP/1.0 and HTTP/1.1 only"}
		}
		return bad("the request line does not end with a version")
	}
	if len(target) > l.Target {
		return &RequestError{http.StatusRequestURITooLong, fmt.Sprintf("the target is longer than %d bytes", l.Target)}
	}
	h.Method, h.Target = method, target
	return h.target()
}

// target splits the request target (RFC 9112 section 3.2).
func (h *Head) target() error {
	t := h.Target
	if err := checkTarget(t); err != nil {
		return err
	}
	switch {
	case len(t) > 0 && t[0] == '/':
	case string(t) == "*" && string(h.Method) == http.MethodOptions:
		h.Path = t
		return nil
	case string(h.Method) == http.MethodConnect:
		return &RequestError{http.StatusNotImplemented, "not a proxy: CONNECT is not supported"}
	default:
		var err error
		if t, err = h.absolute(t); err != nil {
			return err
		}
	}
	h.Path, h.Query, _ = bytes.Cut(t, []byte{'?'})
	if len(h.Path) == 0 {
		h.Path = slash
	}
	return nil
}

// checkTarget refuses bytes that no target has.
func checkTarget(t []byte) error {
	for _, c := range t {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return bad("byte 0x%02x in the target", c)
		}
	}
	return nil
}

// absolute reads the absolute form of a target, meant for proxies. It sets Host, which overrides
// the field, and returns the rest.
func (h *Head) absolute(t []byte) (rest []byte, err error) {
	scheme, rest, ok := bytes.Cut(t, []byte("://"))
	if !ok || !asciiEqual(scheme, "http") && !asciiEqual(scheme, "https") {
		return nil, bad("the target is neither a path nor a URL")
	}
	end := bytes.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	h.Host = rest[:end]
	if !isHost(h.Host) || len(h.Host) == 0 {
		return nil, bad("invalid host in the target")
	}
	return rest[end:], nil
}

var slash = []byte{'/'}

// parseField parses name ":" OWS value OWS (RFC 9112 section 5).
func parseField(line []byte) (Field, error) {
	if line[0] == ' ' || line[0] == '\t' {
		return Field{}, bad("a folded header line")
	}
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok {
		return Field{}, bad("a header line without a colon")
	}
	if !isToken(name) {
		return Field{}, bad("invalid header name")
	}
	value = bytes.Trim(value, " \t")
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return Field{}, bad("byte 0x%02x in header %s", c, name)
		}
	}
	return Field{name, value}, nil
}

// framing reads the fields that describe the body and the connection.
func (h *Head) framing() error {
	var seen framing
	for i := range h.Fields {
		f := &h.Fields[i]
		var err error
		switch len(f.Name) { // skips most fields cheaply
		case len("Host"):
			err = seen.host(h, f)
		case len("Expect"):
			err = h.expect(f)
		case len("Connection"):
			seen.connection(h, f)
		case len("Content-Length"):
			err = seen.length(h, f)
		case len("Transfer-Encoding"):
			err = seen.coding(f)
		}
		if err != nil {
			return err
		}
	}
	return seen.finish(h)
}

// framing counts the fields that describe the body and the connection.
type framing struct {
	hosts, lengths, codings int
	keepAlive               bool
}

func (s *framing) host(h *Head, f *Field) error {
	if !asciiEqual(f.Name, "host") {
		return nil
	}
	s.hosts++
	if !isHost(f.Value) {
		return bad("invalid Host")
	}
	if h.Host == nil {
		h.Host = f.Value
	}
	return nil
}

func (h *Head) expect(f *Field) error {
	if !asciiEqual(f.Name, "expect") {
		return nil
	}
	if !asciiEqual(f.Value, "100-continue") {
		return &RequestError{http.StatusExpectationFailed, "only 100-continue can be expected"}
	}
	h.Expects = h.Minor == 1
	return nil
}

func (s *framing) length(h *Head, f *Field) error {
	if !asciiEqual(f.Name, "content-length") {
		return nil
	}
	s.lengths++
	var ok bool
	if h.Length, ok = decimal(f.Value); !ok {
		return bad("Content-Length is not a number")
	}
	return nil
}

func (s *framing) coding(f *Field) error {
	if !asciiEqual(f.Name, "transfer-encoding") {
		return nil
	}
	s.codings++
	if !asciiEqual(f.Value, "chunked") {
		return &RequestError{http.StatusNotImplemented, "the only transfer coding is chunked, once"}
	}
	return nil
}

func (s *framing) connection(h *Head, f *Field) {
	if asciiEqual(f.Name, "connection") {
		eachToken(f.Value, func(t []byte) {
			h.Close = h.Close || asciiEqual(t, "close")
			s.keepAlive = s.keepAlive || asciiEqual(t, "keep-alive")
			h.Upgrade = h.Upgrade || asciiEqual(t, "upgrade")
		})
	}
}

func (s *framing) finish(h *Head) error {
	if err := s.check(h); err != nil {
		return err
	}
	if s.codings > 0 {
		h.Length = -1
	}
	if h.Minor == 0 {
		h.Close = h.Close || !s.keepAlive
	}
	h.Expects = h.Expects && h.Length != 0
	return nil
}

// check refuses a head whose fields leave the end of the body, or the host, open.
func (s *framing) check(h *Head) error {
	switch {
	case s.hosts > 1:
		return bad("several Host headers")
	case s.hosts == 0 && h.Minor == 1:
		return bad("no Host")
	case s.lengths > 1:
		return bad("several Content-Length headers")
	case s.codings > 1:
		return &RequestError{http.StatusNotImplemented, "the only transfer coding is chunked, once"}
	case s.codings > 0 && s.lengths > 0:
		return bad("both Content-Length and Transfer-Encoding")
	case s.codings > 0 && h.Minor == 0:
		return bad("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

// Get returns the value of the first field with the name, in lower case; nil if absent.
func (h *Head) Get(name string) []byte {
	for i := range h.Fields {
		if asciiEqual(h.Fields[i].Name, name) {
			return h.Fields[i].Value
		}
	}
	return nil
}

// Field returns the values of all fields with the name, in any case, joined by ", "; "" if
// absent.
func (h *Head) Field(name string) string {
	var value []byte
	joined := false
	for i := range h.Fields {
		if len(h.Fields[i].Name) != len(name) || !bytes.EqualFold(h.Fields[i].Name, []byte(name)) {
			continue
		}
		if value == nil {
			value = h.Fields[i].Value
			continue
		}
		if !joined {
			value, joined = bytes.Clone(value), true
		}
		value = append(append(value, ", "...), h.Fields[i].Value...)
	}
	return string(value)
}

// eachToken calls f for every element of a list (RFC 9110 section 5.6.1).
func eachToken(list []byte, f func([]byte)) {
	for len(list) > 0 {
		var t []byte
		t, list, _ = bytes.Cut(list, []byte{','})
		if t = bytes.Trim(t, " \t"); len(t) > 0 {
			f(t)
		}
	}
}

// decimal parses 1*DIGIT up to 2^63-1 (RFC 9110 section 8.6).
func decimal(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = n*10 + int64(c-'0'); n < 0 {
			return 0, false
		}
	}
	return n, true
}

// asciiEqual compares b with the lower-case s, ignoring the case of b.
func asciiEqual(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

// isToken matches a token of RFC 9110 section 5.6.2.
func isToken(b []byte) bool {
	for _, c := range b {
		if !tokenBytes[c] {
			return false
		}
	}
	return len(b) > 0
}

// isHost allows the bytes of a host with port (RFC 3986 section 3.2), without user information,
// and the empty host (RFC 9112 section 3.2).
func isHost(b []byte) bool {
	for _, c := range b {
		if !hostBytes[c] {
			return false
		}
	}
	return true
}

var tokenBytes, hostBytes = func() (token, host [256]bool) {
	for c := range 256 {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		token[c] = letter || bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
		host[c] = letter || bytes.IndexByte([]byte("-._~!$&'()*+,;=:[]%"), byte(c)) >= 0
	}
	return token, host
}()
