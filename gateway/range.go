package gateway

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// choose applies the conditions and ranges of a request (RFC 9110 sections 13 and 14). It applies
// to a 200 to GET or HEAD whose body is a file, or has a known length and a tag or date. a
// becomes the whole body, an empty answer (304, 412, 416) or one range. Several ranges of a file
// are returned.
func (a *reply) choose(r *request) (several []httpserver.Range) {
	if a.size < 0 || !a.selectable(r) {
		return nil
	}
	of := httpserver.Validators{Tag: a.get("Etag"), Modified: a.get("Last-Modified")}
	if a.file == nil && of == (httpserver.Validators{}) {
		return nil
	}
	if !a.holds(r, of) || !a.acceptsRanges() || r.Method != http.MethodGet {
		return nil
	}
	parts, ok := of.Ranges(r, a.size)
	switch {
	case !ok:
		a.refuse(failure.RangeNotSatisfiable, fmt.Sprintf("the body has %d bytes", a.size))
	case len(parts) == 1:
		a.status = http.StatusPartialContent
		a.set("Content-Range", parts[0].ContentRange(a.size))
		a.cut(parts[0])
	case a.file != nil:
		return parts
	}
	return nil
}

// selectable reports whether conditions apply to the answer at all.
func (a *reply) selectable(r *request) bool {
	return a.status == http.StatusOK && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// holds reports whether the condition of the request holds. If not, a becomes the empty answer.
func (a *reply) holds(r *request, of httpserver.Validators) bool {
	switch status := of.Precondition(r); status {
	case http.StatusNotModified:
		a.replace(status, "")
		a.remove(func(name string) bool {
			return strings.HasPrefix(name, "Content-") && name != "Content-Location" || name == "Last-Modified" && of.Tag != ""
		})
		return false
	case http.StatusPreconditionFailed:
		a.refuse(failure.PreconditionFailed, "the condition of the request does not hold")
		return false
	}
	return true
}

// acceptsRanges says in the header that ranges are answered, unless the function refuses ranges.
func (a *reply) acceptsRanges() bool {
	if accepts := a.get("Accept-Ranges"); accepts != "" && accepts != "bytes" {
		return false
	}
	a.set("Accept-Ranges", "bytes")
	return true
}

// cut reduces the body to one range.
func (a *reply) cut(p httpserver.Range) {
	switch {
	case a.file != nil:
		a.offset += p.First
	case a.bytes != nil:
		a.bytes = a.bytes[p.First : p.First+p.Length]
	default:
		a.body = &rangeReader{body: a.body, skip: p.First, left: p.Length}
	}
	a.size = p.Length
}

// rangeReader skips the first skip bytes of body and reads left bytes.
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

// multipart turns a into the answer with several ranges (RFC 9110 section 14.6). It returns the
// delimiter before each range and the final one, and the total length.
func (a *reply) multipart(parts []httpserver.Range) (heads []string, length int64) {
	boundary := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	kind := ""
	if k := a.get("Content-Type"); k != "" {
		kind = "Content-Type: " + k + "\r\n"
	}
	for _, p := range parts {
		head := "\r\n--" + boundary + "\r\n" + kind + "Content-Range: " + p.ContentRange(a.size) + "\r\n\r\n"
		heads = append(heads, head)
		length += int64(len(head)) + p.Length
	}
	end := "\r\n--" + boundary + "--\r\n"
	a.status = http.StatusPartialContent
	a.set("Content-Type", "multipart/byteranges; boundary="+boundary)
	return append(heads, end), length + int64(len(end))
}

// sendParts answers with several ranges. It copies them through a buffer, since they are rare.
func (a *reply) sendParts(f front, r *request, resp *engine.Response, parts []httpserver.Range) (begun bool, err error) {
	b, err := f.Buffer(copySize)
	if err != nil {
		return false, err
	}
	defer b.Release()
	heads, length := a.multipart(parts)
	a.setFields(f, r, resp)
	if err := f.Begin(a.status, length); err != nil {
		return true, err
	}
	for i, p := range parts {
		if _, err := io.WriteString(f, heads[i]); err != nil {
			return true, err
		}
		n, err := io.CopyBuffer(writerOnly{f}, readerOnly{io.NewSectionReader(a.file, a.offset+p.First, p.Length)}, b.Bytes())
		if err == nil && n < p.Length {
			err = io.ErrUnexpectedEOF // the file has become shorter
		}
		if err != nil {
			return true, err
		}
	}
	_, err = io.WriteString(f, heads[len(parts)])
	return true, err
}
