package wire

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Usual metadata of events and answers is written and parsed by hand: encoding/json costs as much
// as all other work for a small event.

// Append appends the metadata as json.Marshal writes it.
func (m *Invocation) Append(b []byte) []byte {
	b = appendString(append(b, `{"function":`...), m.Function)
	b = appendString(append(b, `,"id":`...), m.ID)
	b = appendString(append(b, `,"tenant":`...), m.Tenant)
	b = strconv.AppendInt(append(b, `,"deadline_ms":`...), m.DeadlineMS, 10)
	b = appendHeaders(m.append(b), m.Headers)
	if m.Upgrade != "" {
		b = appendString(append(b, `,"upgrade":`...), m.Upgrade)
	}
	if m.Socket {
		b = append(b, `,"socket":true`...)
	}
	return append(b, '}')
}

// append appends the fields that INVOKE and CALL share, up to the name "headers".
func (r *Request) append(b []byte) []byte {
	b = appendString(append(b, `,"method":`...), r.Method)
	b = appendString(append(b, `,"path":`...), r.Path)
	b = appendString(append(b, `,"query":`...), r.Query)
	return append(b, `,"headers":`...)
}

// Append appends the metadata of CALL.
func (m *CallMeta) Append(b []byte) []byte {
	b = strconv.AppendUint(append(b, `{"of":`...), m.Of, 10)
	b = appendString(append(b, `,"function":`...), m.Function)
	b = m.append(b)
	if m.Headers == nil {
		return append(b, `[]}`...)
	}
	return append(appendHeaders(b, m.Headers), '}')
}

// Parse parses the metadata of CALL.
func (m *CallMeta) Parse(p []byte) error {
	if len(p) <= MaxMeta {
		in := cursor{rest: string(p)}
		of := in.after(`{"of":`).number()
		got := Called{Function: in.after(`,"function":`).text(), Request: in.request()}
		if in.ended() {
			m.Of, m.Called = uint64(of), got
			return nil
		}
	}
	var slow struct {
		Of       uint64     `json:"of"`
		Function string     `json:"function"`
		Method   string     `json:"method"`
		Path     string     `json:"path"`
		Query    string     `json:"query"`
		Headers  [][]string `json:"headers"`
	}
	if err := Unmarshal(p, &slow); err != nil {
		return err
	}
	m.Of = slow.Of
	m.Called = Called{Function: slow.Function, Request: Request{Method: slow.Method, Path: slow.Path, Query: slow.Query}}
	for _, h := range slow.Headers {
		if len(h) != 2 {
			return badHeader(h)
		}
		m.Headers = append(m.Headers, [2]string(h))
	}
	return nil
}

// AppendResponse appends the metadata of RESPONSE as json.Marshal writes it, except that nil
// Headers become [].
func AppendResponse(b []byte, status int, headers [][2]string) []byte {
	b = strconv.AppendInt(append(b, `{"status":`...), int64(status), 10)
	b = append(b, `,"headers":`...)
	if headers == nil {
		return append(b, `[]}`...)
	}
	return append(appendHeaders(b, headers), '}')
}

// JSON returns the second JSON of FD.
func (m *FileMeta) JSON() []byte {
	b := make([]byte, 0, 80)
	b = strconv.AppendInt(append(b, `{"offset":`...), m.Offset, 10)
	b = strconv.AppendInt(append(b, `,"length":`...), m.Length, 10)
	if m.Kept != 0 {
		b = strconv.AppendInt(append(b, `,"kept":`...), int64(m.Kept), 10)
	}
	return append(b, '}')
}

// Parse parses the second JSON of FD and FILE.
func (m *FileMeta) Parse(p []byte) error {
	in := cursor{rest: string(p)}
	got := FileMeta{Offset: in.after(`{"offset":`).number(), Length: in.after(`,"length":`).number()}
	if in.has(`,"name":`) {
		got.Name = in.text()
	}
	if in.has(`,"kept":`) {
		got.Kept = int(in.number())
	}
	if !in.ended() {
		return Unmarshal(p, m)
	}
	*m = got
	return nil
}

func appendHeaders(b []byte, headers [][2]string) []byte {
	if headers == nil {
		return append(b, `null`...)
	}
	b = append(b, '[')
	for i, h := range headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, '['), h[0])
		b = appendString(append(b, ','), h[1])
		b = append(b, ']')
	}
	return append(b, ']')
}

// plain marks the bytes that json.Marshal writes unescaped; itself marks the bytes that need no
// unescaping when read.
var plain, itself = func() (written, read [256]bool) {
	for c := byte(' '); c < utf8.RuneSelf; c++ {
		read[c] = c != '"' && c != '\\'
		written[c] = read[c] && c != '<' && c != '>' && c != '&'
	}
	return written, read
}()

// appendString appends s as json.Marshal writes it.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	begun := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				b = append(append(b, s[begun:i]...), `\ufffd`...)
			case r == '\u2028' || r == '\u2029':
				b = append(append(b, s[begun:i]...), `\u202`...)
				b = append(b, hex[r&15])
			default:
				i += size
				continue
			}
		} else {
			b = append(b, s[begun:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\b':
				b = append(b, '\\', 'b')
			case '\f':
				b = append(b, '\\', 'f')
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
		}
		i += size
		begun = i
	}
	return append(append(b, s[begun:]...), '"')
}

// Parse parses the metadata of INVOKE.
func (m *Invocation) Parse(p []byte) error {
	if len(p) <= MaxMeta && m.parseUsual(string(p)) {
		return nil
	}
	return Unmarshal(p, m)
}

// parseUsual parses metadata in the form that [Invocation.Append] writes. It returns false for
// any other form.
func (m *Invocation) parseUsual(p string) bool {
	in := cursor{rest: p}
	got := Invocation{
		Function:   in.after(`{"function":`).text(),
		ID:         in.after(`,"id":`).text(),
		Tenant:     in.after(`,"tenant":`).text(),
		DeadlineMS: in.after(`,"deadline_ms":`).number(),
		Request:    in.request(),
	}
	got.Socket = in.has(`,"socket":true`)
	if !in.ended() {
		return false
	}
	*m = got
	return true
}

// Parse parses the metadata of RESPONSE.
func (m *ResponseMeta) Parse(p []byte) error {
	if len(p) <= MaxMeta && m.parseUsual(string(p)) {
		return nil
	}
	var slow struct {
		Status  int        `json:"status"`
		Headers [][]string `json:"headers"`
	}
	if err := Unmarshal(p, &slow); err != nil {
		return err
	}
	m.Status, m.Headers = slow.Status, make([][2]string, len(slow.Headers))
	for i, h := range slow.Headers {
		if len(h) != 2 {
			return badHeader(h)
		}
		m.Headers[i] = [2]string(h)
	}
	return nil
}

// parseUsual parses metadata in the form that [appendResponse] and the bootstraps write. It
// returns false for any other form.
func (m *ResponseMeta) parseUsual(p string) bool {
	in := cursor{rest: p}
	status, headers := in.after(`{"status":`).number(), in.after(`,"headers":`).pairs()
	if !in.ended() {
		return false
	}
	m.Status, m.Headers = int(status), headers
	return true
}

// cursor reads JSON as FRE and the bootstraps write it: fields in a fixed order, without spaces.
// Any other input sets lost for good, valid JSON or not. Strings with bytes that are not plain go
// to encoding/json.
type cursor struct {
	rest string
	lost bool
}

// after consumes the required text what.
func (c *cursor) after(what string) *cursor {
	if len(c.rest) < len(what) || c.rest[:len(what)] != what {
		c.lost = true
		return c
	}
	c.rest = c.rest[len(what):]
	return c
}

// has consumes the optional text what, and reports whether it was present.
func (c *cursor) has(what string) bool {
	if c.lost || !strings.HasPrefix(c.rest, what) {
		return false
	}
	c.rest = c.rest[len(what):]
	return true
}

func (c *cursor) next(b byte) bool {
	if c.lost || c.rest == "" || c.rest[0] != b {
		return false
	}
	c.rest = c.rest[1:]
	return true
}

func (c *cursor) text() string {
	if !c.next('"') {
		c.lost = true
		return ""
	}
	n, usual := 0, true
	for ; n < len(c.rest) && c.rest[n] != '"'; n++ {
		if b := c.rest[n]; !itself[b] {
			usual = false
			if b == '\\' {
				n++
			}
		}
	}
	if n >= len(c.rest) {
		c.lost = true
		return ""
	}
	s := c.rest[:n]
	if !usual {
		s = c.unquote(s)
	}
	c.rest = c.rest[n+1:]
	return s
}

// unquote decodes the inside of a JSON string.
func (c *cursor) unquote(written string) (s string) {
	if json.Unmarshal([]byte(`"`+written+`"`), &s) != nil {
		c.lost = true
	}
	return s
}

// number reads a number of up to 18 digits.
func (c *cursor) number() int64 {
	var n int64
	i := 0
	for i < len(c.rest) && '0' <= c.rest[i] && c.rest[i] <= '9' && i < 18 {
		n = n*10 + int64(c.rest[i]-'0')
		i++
	}
	if i == 0 || i > 1 && c.rest[0] == '0' {
		c.lost = true
		return 0
	}
	c.rest = c.rest[i:]
	return n
}

// request reads the fields that INVOKE and CALL share.
func (c *cursor) request() Request {
	r := Request{
		Method: c.after(`,"method":`).text(),
		Path:   c.after(`,"path":`).text(),
		Query:  c.after(`,"query":`).text(),
	}
	if !c.after(`,"headers":`).has("null") {
		r.Headers = c.pairs()
	}
	return r
}

func (c *cursor) pairs() [][2]string {
	if c.after("["); c.lost {
		return nil
	}
	all := [][2]string{}
	for first := true; !c.next(']') && !c.lost; first = false {
		if !first {
			c.after(",")
		}
		if len(all) == cap(all) {
			all = slices.Grow(all, 8)
		}
		name := c.after("[").text()
		value := c.after(",").text()
		all = append(all, [2]string{name, value})
		c.after("]")
	}
	return all
}

// ended reports whether the object ends here and the whole input was read.
func (c *cursor) ended() bool {
	c.after("}")
	return !c.lost && c.rest == ""
}
