package adapter

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
)

// FuzzResponse: A server's response becomes a valid answer or an error.
func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("HTTP/1.1 103 Early\r\n\r\nHTTP/1.0 204 \r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		resp, err := readResponse(bufio.NewReader(bytes.NewReader(text)), "GET") //nolint:bodyclose // there is no connection
		if err != nil {
			return
		}
		headers, err := answerHeaders(resp)
		if err != nil {
			return
		}
		for _, h := range headers {
			if !token(h[0]) || strings.ContainsFunc(h[1], control) {
				t.Errorf("header %q", h)
			}
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode < 200 || resp.StatusCode > 599 {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
}
