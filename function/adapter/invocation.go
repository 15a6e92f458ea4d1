package adapter

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httputil"
	"strconv"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// invocation is an event on its way through the client.
type invocation struct {
	e       *channel.Event
	payload []byte    // beginning of the event, or all of it
	rest    io.Reader // the rest of the event; nil without a rest
	length  int64     // of both, -1 if unknown
	answer  chan answered
	gone    chan struct{} // closed when the answer is no longer wanted
}

// fields are the headers of /next for an event.
func (inv *invocation) fields() [][2]string {
	e := inv.e
	out := [][2]string{
		{"Content-Type", "application/json"}, // without it clients take the event for bytes
		{"Lambda-Runtime-Aws-Request-Id", e.ID},
		{"Lambda-Runtime-Deadline-Ms", strconv.FormatInt(e.DeadlineMS, 10)},
		{"Lambda-Runtime-Invoked-Function-Arn", arn(e)},
		{"Lambda-Runtime-Trace-Id", traceID(e)},
	}
	if c, err := base64.StdEncoding.DecodeString(header(e, "X-Amz-Client-Context")); err == nil && len(c) > 0 {
		var line bytes.Buffer
		if json.Compact(&line, c) == nil {
			out = append(out, [2]string{"Lambda-Runtime-Client-Context", line.String()})
		}
	}
	if inv.length >= 0 {
		out = append(out, [2]string{"Content-Length", strconv.FormatInt(inv.length, 10)})
	}
	return out
}

// send answers /next, by one write for a short payload. It returns buf, grown.
func (inv *invocation) send(w io.Writer, buf []byte) ([]byte, error) {
	buf = append(buf, "HTTP/1.1 200 OK\r\n"...)
	for _, f := range inv.fields() {
		buf = append(append(append(append(buf, f[0]...), ": "...), f[1]...), "\r\n"...)
	}
	if inv.length < 0 {
		buf = append(buf, "Transfer-Encoding: chunked\r\n"...)
	}
	buf = append(buf, "\r\n"...)
	if inv.length >= 0 {
		_, err := w.Write(append(buf, inv.payload...))
		if err == nil && inv.rest != nil {
			_, err = io.Copy(w, inv.rest)
		}
		return buf, err
	}
	if _, err := w.Write(buf); err != nil {
		return buf, err
	}
	chunks := httputil.NewChunkedWriter(w)
	_, err := io.Copy(chunks, io.MultiReader(bytes.NewReader(inv.payload), inv.rest))
	if err == nil {
		err = chunks.Close()
	}
	if err == nil {
		_, err = io.WriteString(w, "\r\n")
	}
	return buf, err
}

// arn is AWS's name of a function, with a fixed region and account.
func arn(e *channel.Event) string {
	name := "arn:aws:lambda:us-east-1:000000000000:function:" + e.Function
	if q := header(e, "X-Fre-Lambda-Qualifier"); q != "" {
		name += ":" + q
	}
	return name
}

// traceID is the client's, or an unsampled id.
func traceID(e *channel.Event) string {
	if id := header(e, "X-Amzn-Trace-Id"); id != "" {
		return id
	}
	return fmt.Sprintf("Root=1-%08x-%024x;Parent=%016x;Sampled=0", time.Now().Unix(), hash(e.ID), hash(e.ID))
}

// hash is FNV-1a over an id.
func hash(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	return h
}
