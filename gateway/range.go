package gateway

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// part is what a range of a body selects: length bytes, at least one, from first on.
type part struct{ first, length int64 }

// maxParts bounds the ranges of one request; of more, the whole body is sent.
const maxParts = 64

// choose has the conditions and ranges of a request (RFC 9110 sections 13 and 14)
// select what is sent of a body that is a file, or is whole and has a tag or a date: all of
// it, nothing (304, 412, 416), one range, which it makes of a, or, of a file, the several
// that it returns. What is no 200 to GET or HEAD is left alone.
func (a *reply) choose(r *request) (several []part) {
	if a.size < 0 || a.status != http.StatusOK || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil
	}
	if a.file == nil && a.get("Etag") == "" && a.get("Last-Modified") == "" {
		return nil
	}
	switch status := a.precondition(r); status {
	case http.StatusNotModified:
		a.replace(status, "")
		tagged := a.get("Etag") != ""
		a.remove(func(name string) bool {
			return strings.HasPrefix(name, "Content-") && name != "Content-Location" || name == "Last-Modified" && tagged
		})
		return nil
	case http.StatusPreconditionFailed:
		a.refuse(status, "precondition_failed", "what the request is conditional on does not hold")
		return nil
	}
	switch accepts := a.get("Accept-Ranges"); accepts {
	case "", "bytes":
		a.set("Accept-Ranges", "bytes")
	default: // the function does not want it
		return nil
	}
	ranges := r.field("Range")
	if ranges == "" || r.Method != http.MethodGet || !a.inRange(r.field("If-Range")) {
		return nil
	}
	parts, ok := parseRanges(ranges, a.size)
	switch {
	case !ok:
	case len(parts) == 0:
		a.refuse(http.StatusRequestedRangeNotSatisfiable, "range_not_satisfiable", fmt.Sprintf("the body has %d bytes", a.size))
	case len(parts) == 1:
		a.status = http.StatusPartialContent
		a.set("Content-Range", parts[0].contentRange(a.size))
		a.cut(parts[0])
	case a.file != nil:
		return parts
	}
	return nil
}

// cut leaves one part of the body.
func (a *reply) cut(p part) {
	switch {
	case a.file != nil:
		a.offset += p.first
	case a.bytes != nil:
		a.bytes = a.bytes[p.first : p.first+p.length]
	}
	if a.file == nil {
		a.body = &rangeReader{body: a.body, skip: p.first, left: p.length}
	}
	a.size = p.length
}

// rangeReader reads left bytes of a body behind the first skip.
type rangeReader struct {
	body       io.Reader
	skip, left int64
}

func (r *rangeReader) Read(p []byte) (int, error) {
	if r.skip > 0 {
		n, err := io.CopyN(io.Discard, r.body, r.skip)
		if r.skip -= n; err != nil {
			return 0, err
		}
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.body.Read(p[:min(int64(len(p)), r.left)])
	if r.left -= int64(n); err == io.EOF && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// replace has a say something else.
func (a *reply) replace(status int, body string) {
	a.status, a.file, a.bytes, a.body, a.size = status, nil, nil, strings.NewReader(body), int64(len(body))
}

// refuse answers with one of the gateway's errors instead of the body.
func (a *reply) refuse(status int, code, message string) {
	a.remove(func(name string) bool { // what is said of the body, or lets caches keep it
		return strings.HasPrefix(name, "Content-") || name == "Etag" || name == "Last-Modified" || name == "Cache-Control" || name == "Expires"
	})
	if status == http.StatusRequestedRangeNotSatisfiable {
		a.set("Content-Range", fmt.Sprintf("bytes */%d", a.size))
	}
	a.set("Content-Type", "application/json")
	a.replace(status, string(errorBody(code, message)))
}

// precondition is the status that the request's conditions ask for, 200 where they
// hold, in the order of RFC 9110 section 13.2.2.
func (a *reply) precondition(r *request) int {
	tag := a.get("Etag")
	modified, dated := parseTime(a.get("Last-Modified"))
	before := func(name string) (earlier, ok bool) { // the condition is of an earlier time than the answer
		if !dated {
			return false, false
		}
		t, ok := parseTime(r.field(name))
		return t.Before(modified), ok
	}
	if match := r.field("If-Match"); match != "" {
		if !matches(match, tag, strongly) {
			return http.StatusPreconditionFailed
		}
	} else if earlier, ok := before("If-Unmodified-Since"); ok && earlier {
		return http.StatusPreconditionFailed
	}
	if match := r.field("If-None-Match"); match != "" {
		if matches(match, tag, weakly) {
			return http.StatusNotModified
		}
	} else if earlier, ok := before("If-Modified-Since"); ok && !earlier {
		return http.StatusNotModified
	}
	return http.StatusOK
}

// parseTime reads a date. To find that none is one costs more than the rest of choose.
func parseTime(s string) (t time.Time, ok bool) {
	if s == "" {
		return t, false
	}
	t, err := http.ParseTime(s)
	return t, err == nil
}

// inRange says whether If-Range lets a range be sent: there is none, or it names this
// very answer (RFC 9110 section 13.1.5).
func (a *reply) inRange(condition string) bool {
	if condition == "" {
		return true
	}
	if tag, rest, ok := cutTag(condition); ok && rest == "" {
		return strongly(tag, a.get("Etag"))
	}
	t, ok := parseTime(condition)
	modified, dated := parseTime(a.get("Last-Modified"))
	// A date is strong only where the answer cannot have changed twice in its second.
	return ok && dated && t.Equal(modified) && time.Since(modified) > time.Second
}

// strongly and weakly compare entity tags (RFC 9110 section 8.8.3.2).
func strongly(a, b string) bool { return a == b && strings.HasPrefix(a, `"`) }

func weakly(a, b string) bool {
	a, b = strings.TrimPrefix(a, "W/"), strings.TrimPrefix(b, "W/")
	return strongly(a, b)
}

// matches says whether tag is in a list of If-Match or If-None-Match, "*" included.
// What is behind something that is no tag does not count.
func matches(list, tag string, equal func(a, b string) bool) bool {
	if list == "*" {
		return true
	}
	for {
		list = strings.TrimLeft(list, " \t,")
		given, rest, ok := cutTag(list)
		if !ok {
			return false
		}
		if equal(given, tag) {
			return true
		}
		list = rest
	}
}

// cutTag takes an entity tag from the begin of s.
func cutTag(s string) (tag, rest string, ok bool) {
	start := 0
	if strings.HasPrefix(s, "W/") {
		start = 2
	}
	if len(s) <= start || s[start] != '"' {
		return "", "", false
	}
	for i := start + 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[:i+1], s[i+1:], true
		case c < '!' || c == 0x7f:
			return "", "", false
		}
	}
	return "", "", false
}

// parseRanges reads a Range field (RFC 9110 section 14.1.2) for a body of size bytes:
// the parts that it selects, in the order asked for, none where it is not
// satisfiable. ok is false where the field is to be ignored: it is malformed, of
// another unit, asks for more ranges than anybody needs, or for more bytes than there
// are.
func parseRanges(field string, size int64) (parts []part, ok bool) {
	unit, set, found := strings.Cut(field, "=")
	if !found || !strings.EqualFold(unit, "bytes") || size == 0 {
		return nil, false
	}
	total := int64(0)
	for spec := range strings.SplitSeq(set, ",") {
		spec = strings.Trim(spec, " \t")
		if spec == "" {
			continue
		}
		first, last, found := strings.Cut(spec, "-")
		if !found || first == "" && last == "" {
			return nil, false
		}
		var p part
		if first == "" { // the last so many
			n, ok := decimal(last)
			if !ok {
				return nil, false
			}
			p.length = min(n, size)
			p.first = size - p.length
		} else {
			from, ok := decimal(first)
			to, ok2 := size-1, true
			if last != "" {
				to, ok2 = decimal(last)
			}
			if !ok || !ok2 || last != "" && to < from {
				return nil, false
			}
			p.first, p.length = from, min(to, size-1)-from+1
		}
		if p.length <= 0 {
			continue // beyond the end
		}
		total += p.length
		if parts = append(parts, p); len(parts) > maxParts || total > size {
			return nil, false
		}
	}
	return parts, strings.Trim(set, " \t,") != ""
}

// decimal is 1*DIGIT; what no body is large enough for is as good as 2^59.
func decimal(s string) (int64, bool) {
	if s == "" {
		return 0, false
	}
	n := int64(0)
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), 1<<59)
	}
	return n, true
}

// contentRange is the part's Content-Range in a body of size bytes.
func (p part) contentRange(size int64) string {
	return "bytes " + strconv.FormatInt(p.first, 10) + "-" + strconv.FormatInt(p.first+p.length-1, 10) + "/" + strconv.FormatInt(size, 10)
}

// multipart makes of a the answer with several ranges (RFC 9110 section 14.6), and
// returns what stands before each, and behind the last, and the length of it all.
func (a *reply) multipart(parts []part) (heads []string, length int64) {
	boundary := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	kind := ""
	if k := a.get("Content-Type"); k != "" {
		kind = "Content-Type: " + k + "\r\n"
	}
	for _, p := range parts {
		head := "\r\n--" + boundary + "\r\n" + kind + "Content-Range: " + p.contentRange(a.size) + "\r\n\r\n"
		heads = append(heads, head)
		length += int64(len(head)) + p.length
	}
	end := "\r\n--" + boundary + "--\r\n"
	a.status = http.StatusPartialContent
	a.set("Content-Type", "multipart/byteranges; boundary="+boundary)
	return append(heads, end), length + int64(len(end))
}

// sendParts sends what multipart has made. The ranges are copied, through buf: they are
// rare.
func (a *reply) sendParts(f front, parts []part, heads []string, length int64, buf []byte) error {
	if err := f.Begin(a.status, length); err != nil {
		return err
	}
	for i, p := range parts {
		if _, err := io.WriteString(f, heads[i]); err != nil {
			return err
		}
		n, err := io.CopyBuffer(writerOnly{f}, readerOnly{io.NewSectionReader(a.file, a.offset+p.first, p.length)}, buf)
		if err == nil && n < p.length {
			err = io.ErrUnexpectedEOF // it has become shorter
		}
		if err != nil {
			return err
		}
	}
	_, err := io.WriteString(f, heads[len(parts)])
	return err
}

// readerOnly hides what io.CopyBuffer would use instead of its buffer.
type readerOnly struct{ io.Reader }
