package adapter

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

// requestHead is the head of e's request; chunked reports the transfer coding of the body. An
// invalid target is an error; an invalid header is left out.
func requestHead(e *channel.Event) (head []byte, chunked bool, err error) {
	target, err := requestTarget(e)
	if err != nil {
		return nil, false, err
	}
	var b bytes.Buffer
	_, _ = fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", e.Method, target)
	host, length := writeFields(&b, e)
	_, _ = fmt.Fprintf(&b, "Host: %s\r\n", host)
	if token(e.ID) {
		_, _ = fmt.Fprintf(&b, "X-Fre-Id: %s\r\n", e.ID)
	}
	chunked = writeFraming(&b, e, length)
	b.WriteString("\r\n")
	return b.Bytes(), chunked, nil
}

// writeFields writes the event's end-to-end fields. It returns the host and the length of the body
// that the adapter names itself.
func writeFields(b *bytes.Buffer, e *channel.Event) (host string, length int64) {
	host, length = "localhost", e.Length
	for _, h := range e.Headers {
		name := textproto.CanonicalMIMEHeaderKey(h[0])
		if !token(h[0]) || strings.ContainsFunc(h[1], control) {
			continue
		}
		switch {
		case name == "Host":
			host = cmp.Or(h[1], host)
		case name == "Content-Length":
			if n, err := strconv.ParseInt(h[1], 10, 64); err == nil && n >= 0 && length < 0 {
				length = n
			}
		case !hopByHop[name] && !hopByHop[dashed(h[0])]:
			_, _ = fmt.Fprintf(b, "%s: %s\r\n", h[0], h[1])
		}
	}
	return host, length
}

// requestTarget returns the target of e's request.
func requestTarget(e *channel.Event) (string, error) {
	target := e.Path
	if e.Query != "" {
		target += "?" + e.Query
	}
	if !token(e.Method) || !strings.HasPrefix(target, "/") || strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return "", fmt.Errorf("%q cannot be the target of a request", e.Method+" "+target)
	}
	return target, nil
}

// writeFraming writes the headers that say how the request ends. A negative length is unknown.
func writeFraming(b *bytes.Buffer, e *channel.Event, length int64) (chunked bool) {
	switch {
	case e.Upgrade != "" && !strings.ContainsFunc(e.Upgrade, control):
		_, _ = fmt.Fprintf(b, "Connection: Upgrade\r\nUpgrade: %s\r\n", e.Upgrade)
	case length < 0:
		b.WriteString("Transfer-Encoding: chunked\r\n")
		return true
	case length > 0 || e.Method == "POST" || e.Method == "PUT" || e.Method == "PATCH":
		_, _ = fmt.Fprintf(b, "Content-Length: %d\r\n", length)
	}
	return false
}

// dashed is the name that web frameworks see for a header with unusual characters: X_Fre_Id becomes
// X-Fre-Id.
func dashed(name string) string {
	return textproto.CanonicalMIMEHeaderKey(strings.Map(func(c rune) rune {
		if odd(c) {
			return '-'
		}
		return c
	}, name))
}

// sendBody sends a request's body after its head.
func sendBody(w io.Writer, body io.Reader, chunked bool) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			var werr error
			if chunked {
				_, werr = fmt.Fprintf(w, "%x\r\n%s\r\n", n, buf[:n])
			} else {
				_, werr = w.Write(buf[:n])
			}
			if werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF) && chunked:
			_, err := io.WriteString(w, "0\r\n\r\n")
			return err
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func idempotent(method string) bool {
	return slices.Contains([]string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"}, method)
}
