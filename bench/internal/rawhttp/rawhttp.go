// Package rawhttp is an HTTP/1.1 client so cheap that a benchmark does not measure the client:
// prepared request bytes, a kept-alive connection, a reused buffer. The client supports neither
// trailers nor answers that end with the connection.
package rawhttp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"time"
)

// Conn is a connection to a server. Only one goroutine at a time may use a Conn.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
	head []byte
	body []byte
}

// Response is an answer. Head and Body are valid until the next use of the connection.
type Response struct {
	Status int
	Head   []byte // header lines, each ending in CR LF
	Body   []byte
}

// ErrUnknownLength reports an answer that ends with the connection.
var ErrUnknownLength = errors.New("the answer has neither Content-Length nor chunks")

// Dial connects to a server, "host:port".
func Dial(addr string) (*Conn, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	return &Conn{conn: c, r: bufio.NewReader(c)}, nil
}

// DialUnix connects to a server on a Unix socket.
func DialUnix(path string) (*Conn, error) {
	c, err := net.DialTimeout("unix", path, 10*time.Second)
	if err != nil {
		return nil, err
	}
	return &Conn{conn: c, r: bufio.NewReaderSize(c, 64<<10)}, nil
}

// Post returns the bytes of a request for Send.
func Post(host, path string, body []byte) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", path, host, len(body), body)
}

// Get returns the bytes of a request for Send, with further header lines.
func Get(host, path string, header ...string) []byte {
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n", path, host)
	for _, line := range header {
		request = append(append(request, line...), "\r\n"...)
	}
	return append(request, "\r\n"...)
}

// Send writes a request. Receive must follow.
func (c *Conn) Send(request []byte) error {
	_, err := c.conn.Write(request)
	return err
}

// Receive reads the answer to a request.
func (c *Conn) Receive() (Response, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return Response{}, fmt.Errorf("read the status line: %w", err)
	}
	// "HTTP/1.1 200 OK"
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return Response{}, fmt.Errorf("not a status line: %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return Response{}, fmt.Errorf("not a status line: %q", line)
	}
	c.head = c.head[:0]
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return Response{}, fmt.Errorf("read a header: %w", err)
		}
		if len(line) <= 2 {
			break
		}
		c.head = append(c.head, line...)
	}
	resp := Response{Status: status, Head: c.head}
	if coding, ok := resp.Header("Transfer-Encoding"); ok && coding == "chunked" {
		return c.chunked(resp)
	}
	if resp.Status == http.StatusNotModified || resp.Status == http.StatusNoContent {
		return resp, nil // has no body, regardless of the header
	}
	length, ok := resp.Header("Content-Length")
	if !ok {
		return resp, ErrUnknownLength
	}
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return resp, fmt.Errorf("content-length %q", length)
	}
	if cap(c.body) < n {
		c.body = make([]byte, n)
	}
	resp.Body = c.body[:n]
	if _, err := io.ReadFull(c.r, resp.Body); err != nil {
		return resp, fmt.Errorf("read the body: %w", err)
	}
	return resp, nil
}

func (c *Conn) chunked(resp Response) (Response, error) {
	body := bytes.NewBuffer(c.body[:0])
	if _, err := body.ReadFrom(httputil.NewChunkedReader(c.r)); err != nil {
		return resp, fmt.Errorf("read the body: %w", err)
	}
	if _, err := c.r.Discard(len("\r\n")); err != nil { // the empty line after the last chunk
		return resp, fmt.Errorf("read the body: %w", err)
	}
	c.body = body.Bytes()
	resp.Body = c.body
	return resp, nil
}

// Do calls Send and Receive.
func (c *Conn) Do(request []byte) (Response, error) {
	if err := c.Send(request); err != nil {
		return Response{}, err
	}
	return c.Receive()
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Header returns the value of the first header with the name, ignoring case.
func (r Response) Header(name string) (string, bool) {
	for line := range bytes.Lines(r.Head) {
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return string(bytes.TrimSpace(line[len(name)+1:])), true
		}
	}
	return "", false
}
