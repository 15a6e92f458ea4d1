package function

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"reflect"
	"strings"

	"github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/internal/failure"
)

// Response is an answer with its own status and headers.
type Response struct {
	Status int    // 200 to 599; 0 means 200
	Header Header // a content-type here replaces the default of the body
	Body   any    // any value that a [Handler] may return, except a Response; nil for none
}

// AnswerError means that a handler's value cannot be an answer.
type AnswerError struct{ Message string }

func (e *AnswerError) Error() string { return e.Message }

// refused makes an AnswerError.
func refused(format string, args ...any) error { return &AnswerError{fmt.Sprintf(format, args...)} }

const (
	typeText  = "text/plain; charset=utf-8"
	typeBytes = "application/octet-stream"
	typeJSON  = "application/json"
)

// answerOf converts a handler's value for the channel.
func answerOf(value any) (*channel.Answer, error) {
	r, ok := value.(Response)
	if p, isPointer := value.(*Response); isPointer && p != nil {
		r, ok = *p, true
	}
	if !ok {
		if r.Body = value; value == nil {
			r.Status = 204
		}
	}
	if r.Status == 0 {
		r.Status = 200
	}
	body, contentType, err := bodyOf(r.Body)
	if err != nil {
		return nil, err
	}
	r.Header = withType(r.Header, contentType)
	if err := check(r); err != nil {
		if c, ok := body.(io.Closer); ok {
			_ = c.Close()
		}
		return nil, err
	}
	a := &channel.Answer{Status: r.Status, Headers: r.Header, Body: body}
	switch v := r.Body.(type) {
	case *Sealed:
		a.File, a.Length, a.Sealed = v.file, v.length, true
	case *os.File:
		if offset, length, ok := restOf(v); ok {
			a.File, a.Offset, a.Length = v, offset, length
		}
	}
	return a, nil
}

// withType returns h, with contentType added if h has no content-type.
func withType(h Header, contentType string) Header {
	if contentType != "" && len(h.Values("content-type")) == 0 {
		h = append(h[:len(h):len(h)], [2]string{"content-type", contentType})
	}
	return h
}

// Sealed is an immutable body in memory. A handler may return it any number of times, from
// several goroutines at once. The engine sends it without a copy.
type Sealed struct {
	file   *os.File
	length int64
}

// Seal copies b. The engine keeps the last eight returned bodies open, none longer than a 32nd of
// the sandbox's memory. Their memory is freed once other bodies replace them.
func Seal(b []byte) (*Sealed, error) {
	file, err := channel.Seal(b)
	if err != nil {
		return nil, err
	}
	return &Sealed{file, int64(len(b))}, nil
}

// Close frees the body. Unfinished answers keep the memory for as long as they need it.
func (s *Sealed) Close() error { return s.file.Close() }

// restOf returns the unread part of a regular file.
func restOf(file *os.File) (offset, length int64, ok bool) {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, 0, false
	}
	offset, err = file.Seek(0, io.SeekCurrent)
	length = info.Size() - offset
	return offset, length, err == nil && length > 0 // files of /proc have no size
}

// bodyOf converts value to a body; nil for no body.
func bodyOf(value any) (body io.Reader, contentType string, err error) {
	switch v := value.(type) {
	case nil:
		return nil, "", nil
	case string:
		return strings.NewReader(v), typeText, nil
	case []byte:
		return bytes.NewReader(v), typeBytes, nil
	case *Sealed:
		return io.NewSectionReader(v.file, 0, v.length), typeBytes, nil
	case io.Reader:
		return v, typeBytes, nil
	case iter.Seq2[[]byte, error]:
		return newSequence(v), typeBytes, nil
	case func(func([]byte, error) bool):
		return newSequence(v), typeBytes, nil
	case iter.Seq2[string, error]:
		return newSequence(v), typeText, nil
	case func(func(string, error) bool):
		return newSequence(v), typeText, nil
	case Response, *Response:
		return nil, "", refused("the handler returned a Response within a Response")
	case error:
		return nil, "", refused("the handler returned the error %q as its answer: return it as the second value", v.Error())
	}
	if k := reflect.TypeOf(value).Kind(); k == reflect.Func || k == reflect.Chan {
		return nil, "", refused("the handler returned a %T: see function.Handler for what it may return", value)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, "", refused("the handler's answer is no JSON: %v", err)
	}
	return bytes.NewReader(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), typeJSON, nil
}

// check refuses answers that would violate the channel's protocol.
func check(r Response) error {
	if r.Status < 200 || r.Status > 599 {
		return refused("status %d is not one of 200 to 599", r.Status)
	}
	if len(r.Header) > channel.MaxHeaders {
		return refused("%d headers, at most %d", len(r.Header), channel.MaxHeaders)
	}
	size := 0
	for _, f := range r.Header {
		if !isToken(f[0]) {
			return refused("header name %q is no HTTP token", f[0])
		}
		if strings.ContainsFunc(f[1], func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return refused("header %s: control characters in %q", f[0], f[1])
		}
		size += len(f[0]) + len(f[1])
	}
	if size > channel.MaxMeta/2 { // JSON may need two bytes for one byte, and five more per field
		return refused("%d bytes of headers, at most %d", size, channel.MaxMeta/2)
	}
	return nil
}

// isToken matches a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// sequence reads the pieces of an iterator. A panic of the iterator becomes a failure with the
// iterator's own stack.
type sequence[T ~string | ~[]byte] struct {
	next func() (T, error, bool)
	stop func()
	rest T
	err  error
}

func newSequence[T ~string | ~[]byte](seq iter.Seq2[T, error]) *sequence[T] {
	s := &sequence[T]{}
	s.next, s.stop = iter.Pull2(func(yield func(T, error) bool) {
		f := failure.Catch(func() { seq(yield) })
		if f != nil {
			var none T
			_ = yield(none, f) // the last value: the reader stops
		}
	})
	return s
}

// Read returns bytes of one piece at a time.
func (s *sequence[T]) Read(p []byte) (int, error) {
	for len(s.rest) == 0 && s.err == nil {
		piece, err, ok := s.next()
		if s.rest = piece; !ok {
			err = io.EOF
		}
		s.err = err
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	if len(s.rest) > 0 {
		return n, nil
	}
	return n, s.err
}

func (s *sequence[T]) Close() error {
	s.stop()
	return nil
}
