package httpserver

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Range is a part of a body: Length bytes, at least one, from First on.
type Range struct{ First, Length int64 }

// Fields gives access to a request's header. Field returns the value of the field with the
// canonical name; several values as one list; "" if absent.
type Fields interface{ Field(name string) string }

// Validators are the ETag and Last-Modified of an answer, each "" if absent. Conditions and
// ranges of requests are compared with them (RFC 9110 sections 13 and 14).
type Validators struct{ Tag, Modified string }

// maxParts limits the ranges of one request. For more ranges the whole body is sent.
const maxParts = 64

// Precondition evaluates a request's conditions in the order of RFC 9110 section 13.2.2. It
// returns 200 if they hold, else 304 or 412.
func (v Validators) Precondition(r Fields) int {
	modified, dated := parseTime(v.Modified)
	before := func(name string) (earlier, ok bool) { // earlier: the condition's date is before Last-Modified
		if !dated {
			return false, false
		}
		t, ok := parseTime(r.Field(name))
		return t.Before(modified), ok
	}
	if match := r.Field("If-Match"); match != "" {
		if !matches(match, v.Tag, strongly) {
			return http.StatusPreconditionFailed
		}
	} else if earlier, ok := before("If-Unmodified-Since"); ok && earlier {
		return http.StatusPreconditionFailed
	}
	if match := r.Field("If-None-Match"); match != "" {
		if matches(match, v.Tag, weakly) {
			return http.StatusNotModified
		}
	} else if earlier, ok := before("If-Modified-Since"); ok && !earlier {
		return http.StatusNotModified
	}
	return http.StatusOK
}

// parseTime parses a date. It checks for "" first: http.ParseTime takes long to fail.
func parseTime(s string) (t time.Time, ok bool) {
	if s == "" {
		return t, false
	}
	t, err := http.ParseTime(s)
	return t, err == nil
}

// Ranges returns the parts of a body of size bytes that a GET asks for, in the request's order,
// at most 64 and together at most size bytes. No parts mean the whole body: the request has no
// range, or its If-Range does not match, or its range is to be ignored. ok is false if no
// requested byte exists: 416.
func (v Validators) Ranges(r Fields, size int64) (parts []Range, ok bool) {
	ranges := r.Field("Range")
	if ranges == "" || !v.inRange(r.Field("If-Range")) {
		return nil, true
	}
	parts, ok = parseRanges(ranges, size)
	return parts, !ok || len(parts) > 0
}

// inRange reports whether If-Range allows a range: the field is absent or names the current
// answer (RFC 9110 section 13.1.5).
func (v Validators) inRange(condition string) bool {
	if condition == "" {
		return true
	}
	if tag, rest, ok := cutTag(condition); ok && rest == "" {
		return strongly(tag, v.Tag)
	}
	t, ok := parseTime(condition)
	modified, dated := parseTime(v.Modified)
	// A date is a strong validator only after its second is over.
	return ok && dated && t.Equal(modified) && time.Since(modified) > time.Second
}

// strongly and weakly compare entity tags (RFC 9110 section 8.8.3.2).
func strongly(a, b string) bool { return a == b && strings.HasPrefix(a, `"`) }

func weakly(a, b string) bool {
	a, b = strings.TrimPrefix(a, "W/"), strings.TrimPrefix(b, "W/")
	return strongly(a, b)
}

// matches reports whether tag is in a list of If-Match or If-None-Match, or the list is "*".
// Elements after a malformed tag are ignored.
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

// cutTag splits the entity tag off the start of s.
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

// parseRanges parses a Range field (RFC 9110 section 14.1.2) for a body of size bytes. It returns
// the selected parts in the request's order, none if the range is not satisfiable. ok is false if
// the field is to be ignored: it is malformed, has another unit, too many ranges, or more bytes
// in total than size.
func parseRanges(field string, size int64) (parts []Range, ok bool) {
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
		p, ok := parseRange(spec, size)
		if !ok {
			return nil, false
		}
		if p.Length <= 0 {
			continue // beyond the end
		}
		total += p.Length
		if parts = append(parts, p); len(parts) > maxParts || total > size {
			return nil, false
		}
	}
	return parts, strings.Trim(set, " \t,") != ""
}

// parseRange parses first-last, first- or -length. The Length is not positive if the range is
// beyond the end.
func parseRange(spec string, size int64) (p Range, ok bool) {
	first, last, found := strings.Cut(spec, "-")
	if !found {
		return p, false
	}
	if first == "" { // the last n bytes
		n, ok := position(last)
		n = min(n, size)
		return Range{size - n, n}, ok
	}
	from, ok := position(first)
	if last == "" {
		return Range{from, size - from}, ok
	}
	to, ok2 := position(last)
	return Range{from, min(to, size-1) - from + 1}, ok && ok2 && from <= to
}

// position parses 1*DIGIT and caps it at 2^59, longer than any body.
func position(s string) (int64, bool) {
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

// ContentRange returns the Content-Range field for p of a body of size bytes.
func (p Range) ContentRange(size int64) string {
	return "bytes " + strconv.FormatInt(p.First, 10) + "-" + strconv.FormatInt(p.First+p.Length-1, 10) + "/" + strconv.FormatInt(size, 10)
}

// AcceptedCoding returns the index of the coding that an Accept-Encoding field prefers (RFC 9110
// section 12.5.3), the first of equals, -1 for none. It accepts at most eight codings.
func AcceptedCoding(field string, codings []string) int {
	if field == "" {
		return -1
	}
	var known [8]int // weights in thousandths; -1: not named
	weights := known[:len(codings)]
	for i := range weights {
		weights[i] = -1
	}
	others := 0
	for item := range strings.SplitSeq(field, ",") {
		name, params, _ := strings.Cut(item, ";")
		name = strings.ToLower(strings.Trim(name, " \t"))
		q := weight(params)
		if name == "*" {
			others = q
		}
		for i, c := range codings {
			if name == c || name == "x-gzip" && c == "gzip" {
				weights[i] = q
			}
		}
	}
	return heaviest(weights, others)
}

// heaviest returns the index of the largest weight, the first of equals, -1 if none is positive.
// others replaces negative weights.
func heaviest(weights []int, others int) int {
	best, most := -1, 0
	for i, q := range weights {
		if q < 0 {
			q = others
		}
		if q > most {
			best, most = i, q
		}
	}
	return best
}

// weight parses a quality value (RFC 9110 section 12.4.2) into thousandths: 1000 if absent, 0 if
// malformed.
func weight(params string) int {
	name, value, found := strings.Cut(strings.Trim(params, " \t"), "=")
	if !found && name == "" {
		return 1000
	}
	whole, fraction, _ := strings.Cut(value, ".")
	if !strings.EqualFold(name, "q") || whole != "0" && whole != "1" || len(fraction) > 3 {
		return 0
	}
	q := 0
	for _, c := range []byte((fraction + "000")[:3]) {
		if c < '0' || c > '9' {
			return 0
		}
		q = q*10 + int(c-'0')
	}
	if whole == "1" {
		return 1000
	}
	return q
}
