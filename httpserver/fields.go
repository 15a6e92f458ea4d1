package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"golang.org/x/net/http2/hpack"
)

// errMalformed means a malformed HTTP/2 request, whose stream is reset (RFC 9113 section 8.1.1).
var errMalformed = errors.New("a malformed request")

// fieldReader builds a Head from the decompressed fields of a header block.
type fieldReader struct {
	limits *Limits
	h      *Head
	text   []byte // memory of the head's slices
	size   int    // as SETTINGS_MAX_HEADER_LIST_SIZE counts
	err    error  // of the first invalid field

	trailer bool // trailer of a body: fields are checked and discarded
	regular bool // a regular field has arrived
	cookies int  // index of the cookie field, -1 for none

	method, scheme, path, authority []byte // nil until received
}

// begin directs the fields of the next block to h. Trailers are discarded.
func (r *fieldReader) begin(h *Head, text []byte, trailer bool) {
	if h != nil {
		*h = Head{Fields: h.Fields[:0], Minor: 1}
	}
	*r = fieldReader{limits: r.limits, h: h, text: text[:0], trailer: trailer, cookies: -1}
}

// keep copies s, which belongs to the decoder.
func (r *fieldReader) keep(s string) []byte {
	n := len(r.text)
	r.text = append(r.text, s...)
	return r.text[n:len(r.text):len(r.text)]
}

// add takes a field. It returns false once no further field matters.
func (r *fieldReader) add(f hpack.HeaderField) bool {
	if r.err != nil {
		return false
	}
	r.size += int(f.Size())
	switch {
	case r.size > r.limits.Head:
		r.err = &RequestError{http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the head is larger than %d bytes", r.limits.Head)}
	case f.IsPseudo():
		r.err = r.pseudo(f)
	default:
		r.regular = true
		r.err = r.field(f)
	}
	return r.err == nil
}

// pseudo takes a pseudo-header field (RFC 9113 section 8.3.1).
func (r *fieldReader) pseudo(f hpack.HeaderField) error {
	if r.regular || r.trailer {
		return errMalformed
	}
	var to *[]byte
	switch f.Name {
	case ":method":
		to = &r.method
	case ":path":
		to = &r.path
	case ":scheme":
		to = &r.scheme
	case ":authority":
		to = &r.authority
	default:
		return errMalformed
	}
	if *to != nil {
		return errMalformed // sent twice
	}
	if *to = r.keep(f.Value); *to == nil {
		*to = []byte{}
	}
	return nil
}

// field takes a regular field (RFC 9113 section 8.2).
func (r *fieldReader) field(f hpack.HeaderField) error {
	if !validName(f.Name) || !validValue(f.Value) {
		return errMalformed
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return errMalformed
	case "te":
		if f.Value != "trailers" {
			return errMalformed
		}
	}
	if r.trailer {
		return nil
	}
	h := r.h
	if f.Name == "cookie" { // clients split cookies into several fields
		if r.cookies >= 0 {
			at := &h.Fields[r.cookies]
			joined := make([]byte, 0, len(at.Value)+2+len(f.Value))
			at.Value = append(append(append(joined, at.Value...), "; "...), f.Value...)
			return nil
		}
		r.cookies = len(h.Fields)
	}
	if len(h.Fields) == r.limits.Fields {
		return &RequestError{http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("more than %d header fields", r.limits.Fields)}
	}
	h.Fields = append(h.Fields, Field{r.keep(f.Name), r.keep(f.Value)})
	return nil
}

// validName reports whether name is a token without capital letters.
func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; !tokenBytes[c] || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return name != ""
}

// validValue reports whether v has neither control characters nor white space at its ends.
func validValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	if n := len(v); n > 0 {
		return v[0] != ' ' && v[0] != '\t' && v[n-1] != ' ' && v[n-1] != '\t'
	}
	return true
}

// finish completes the head. ended means that no body follows. The error is errMalformed, or a
// *[RequestError] to answer.
func (r *fieldReader) finish(ended bool) error {
	if r.trailer {
		if !ended || errors.Is(r.err, errMalformed) {
			return errMalformed
		}
		return nil // oversized trailers do no harm: they are discarded
	}
	h := r.h
	h.Method, h.Target = r.method, r.path
	if r.err != nil {
		return r.err
	}
	if err := r.requestLine(); err != nil {
		return err
	}
	if err := r.host(); err != nil {
		return err
	}
	if err := h.framing(); err != nil {
		if refused, ok := errors.AsType[*RequestError](err); ok && refused.Status != http.StatusBadRequest {
			return err
		}
		return errMalformed
	}
	switch {
	case ended && h.Length > 0:
		return errMalformed
	case ended:
		h.Expects = false
	case h.Get("content-length") == nil:
		h.Length = -1
		h.Expects = h.Get("expect") != nil
	}
	return nil
}

// requestLine checks the pseudo-header fields, except the host.
func (r *fieldReader) requestLine() error {
	h := r.h
	if len(h.Method) == 0 || len(h.Method) > 32 || !isToken(h.Method) {
		return errMalformed
	}
	if string(h.Method) == http.MethodConnect {
		return &RequestError{http.StatusNotImplemented, "not a proxy: CONNECT is not supported"}
	}
	if string(r.scheme) != "http" && string(r.scheme) != "https" {
		return errMalformed
	}
	if len(r.path) == 0 || r.path[0] != '/' && (string(r.path) != "*" || string(h.Method) != http.MethodOptions) {
		return errMalformed
	}
	if len(h.Target) > r.limits.Target {
		return &RequestError{http.StatusRequestURITooLong, fmt.Sprintf("the target is longer than %d bytes", r.limits.Target)}
	}
	if h.target() != nil {
		return errMalformed
	}
	return nil
}

// host adds the pseudo-header field of the host to the fields: handlers look there, as in HTTP/1.1.
func (r *fieldReader) host() error {
	if r.authority == nil {
		return nil
	}
	if host := r.h.Get("host"); host == nil {
		r.h.Fields = append(r.h.Fields, Field{hostName, r.authority})
	} else if !bytes.Equal(host, r.authority) {
		return errMalformed
	}
	return nil
}

var hostName = []byte("host")

// appendHead compresses the head of an answer (RFC 7541) with the static table only. A dynamic
// table would have to follow the order of sending, and a client could make it large.
func appendHead(b []byte, status int, fields []byte, length int64) []byte {
	if i := staticStatus(status); i > 0 {
		b = append(b, 0x80|i)
	} else {
		b = append(b, nameStatus, 3, byte('0'+status/100), byte('0'+status/10%10), byte('0'+status%10))
	}
	d := date()
	b = appendName(b, nameDate)
	b = append(b, byte(len(d)))
	b = append(b, d...)
	for len(fields) > 0 {
		var line []byte
		line, fields, _ = bytes.Cut(fields, crlf)
		colon := bytes.IndexByte(line, ':')
		b = appendField(b, line[:colon], line[colon+2:])
	}
	if length >= 0 {
		b = appendName(b, nameContentLength)
		var digits [20]byte
		n := strconv.AppendInt(digits[:0], length, 10)
		b = append(b, byte(len(n)))
		b = append(b, n...)
	}
	return b
}

const (
	nameStatus        = 8
	nameContentLength = 28
	nameDate          = 33
)

// continueBlock is the head of 100 (Continue).
var continueBlock = []byte{nameStatus, 3, '1', '0', '0'}

// appendField appends a literal field without indexing (RFC 7541 section 6.2.2). It skips fields
// that exist only in HTTP/1.1.
func appendField(b, name, value []byte) []byte {
	var low [64]byte
	lower := low[:0]
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		lower = append(lower, c)
	}
	switch string(lower) {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return b
	}
	if i := staticNames[string(lower)]; i > 0 {
		b = appendName(b, i)
	} else {
		b = append(b, 0)
		b = appendVarint(b, 0, 7, len(lower))
		b = append(b, lower...)
	}
	value = bytes.Trim(value, " \t")
	b = appendVarint(b, 0, 7, len(value))
	return append(b, value...)
}

func appendName(b []byte, static uint8) []byte { return appendVarint(b, 0, 4, int(static)) }

// appendVarint encodes an integer as in RFC 7541 section 5.1.
func appendVarint(b []byte, first byte, bits uint, n int) []byte {
	limit := 1<<bits - 1
	if n < limit {
		return append(b, first|byte(n))
	}
	b = append(b, first|byte(limit))
	for n -= limit; n >= 0x80; n >>= 7 {
		b = append(b, 0x80|byte(n))
	}
	return append(b, byte(n))
}

// staticStatus returns the index of a status in the static table (RFC 7541 appendix A), 0 for
// none.
func staticStatus(status int) uint8 {
	switch status {
	case 200:
		return 8
	case 204:
		return 9
	case 206:
		return 10
	case 304:
		return 11
	case 400:
		return 12
	case 404:
		return 13
	case 500:
		return 14
	}
	return 0
}

// staticNames maps the names of the static table, from index 15 on.
var staticNames = func() map[string]uint8 {
	names := map[string]uint8{}
	for i, name := range []string{
		"accept-charset", "accept-encoding", "accept-language", "accept-ranges", "accept", "access-control-allow-origin",
		"age", "allow", "authorization", "cache-control", "content-disposition", "content-encoding", "content-language",
		"content-length", "content-location", "content-range", "content-type", "cookie", "date", "etag", "expect", "expires",
		"from", "host", "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified",
		"link", "location", "max-forwards", "proxy-authenticate", "proxy-authorization", "range", "referer", "refresh",
		"retry-after", "server", "set-cookie", "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via",
		"www-authenticate",
	} {
		names[name] = uint8(15 + i)
	}
	return names
}()
