package adapter

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// cgi starts a program for each event (RFC 3875): the request in its environment and on its stdin,
// its answer on stdout.
type cgi struct {
	children *children
	program  string // absolute
	args     []string
}

// runCGI serves the events.
func runCGI(conn *net.UnixConn, args []string) int {
	begun := time.Now()
	program, err := lookCode(args[0])
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil {
		return fail(conn, &channel.Failure{Type: "StartError", Message: err.Error()})
	}
	concurrency, err := strconv.Atoi(os.Getenv("FRE_CONCURRENCY"))
	if err != nil {
		return fail(conn, &channel.Failure{Type: "StartError", Message: "FRE_CONCURRENCY: " + err.Error()})
	}
	c := &cgi{newChildren(), program, args}
	ready := channel.Ready{Runtime: "cgi", Concurrency: concurrency, LoadMicros: time.Since(begun).Microseconds()}
	return exitCode(channel.Serve(context.Background(), conn, ready, c.handle))
}

// script is one running program.
type script struct {
	*server
	out   *bufio.Reader
	pipe  *os.File      // the pipe below out
	sent  chan struct{} // closed after the program's stdin
	stop  func() bool
	whole bool // stdout has ended
	once  sync.Once
}

func (c *cgi) handle(ctx context.Context, e *channel.Event) (_ *channel.Answer, err error) {
	s, err := c.start(ctx, e)
	if err != nil {
		return nil, err
	}
	a := &channel.Answer{Body: s}
	if err := s.head(a); err != nil {
		_ = s.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.waitCopied()
		return nil, &channel.Failure{Type: "CGIError", Message: fmt.Sprintf("the program's answer: %s; the program ended with %s", err, s.end()), Stack: s.words.String()}
	}
	return a, nil
}

// start starts the program and sends it the body.
func (c *cgi) start(ctx context.Context, e *channel.Event) (_ *script, err error) {
	body, length, err := sized(e)
	if err != nil {
		return nil, err
	}
	undo := []io.Closer{body}
	defer func() {
		if err != nil {
			for _, c := range undo {
				_ = c.Close()
			}
		}
	}()
	theirStdin, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirStdin.Close()
	undo = append(undo, stdin)
	stdout, theirStdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirStdout.Close()
	undo = append(undo, stdout)
	s := &script{server: &server{listener: -1, group: true}, out: bufio.NewReaderSize(stdout, lineSize), pipe: stdout, sent: make(chan struct{})}
	env := append(environment(), c.environment(e, length)...)
	if err := s.spawn(c.children, c.program, c.args, env, []uintptr{theirStdin.Fd(), theirStdout.Fd(), 2}); err != nil {
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, func() { s.signal(syscall.SIGKILL) })
	go func() { // the program may answer before it has read the whole body
		_, _ = io.Copy(stdin, body) // a program that does not read stdin has ended, or will end
		_, _ = stdin.Close(), body.Close()
		close(s.sent)
	}()
	return s, nil
}

// sized returns the event's body with its length, which CONTENT_LENGTH requires.
func sized(e *channel.Event) (body io.ReadCloser, length int64, err error) {
	if e.Length < 0 {
		return spool(e.Body)
	}
	return io.NopCloser(e.Body), e.Length, nil
}

// spool writes a body to an unlinked file and returns its length.
func spool(body io.Reader) (_ io.ReadCloser, length int64, err error) {
	f, err := os.CreateTemp("", "fre-cgi-")
	if err != nil {
		return nil, 0, err
	}
	if err = os.Remove(f.Name()); err == nil {
		if length, err = io.Copy(f, body); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, length, nil
}

// environment returns the variables of RFC 3875 section 4.1, and Apache's additional variables that
// programs expect.
func (c *cgi) environment(e *channel.Event, length int64) []string {
	mount := cmp.Or(header(e, "X-Forwarded-Prefix"), "/function/"+e.Function)
	script := mount // only REQUEST_URI is escaped
	if p, err := url.PathUnescape(mount); err == nil && !strings.Contains(p, "\x00") {
		script = p
	}
	env := []string{
		"GATEWAY_INTERFACE=CGI/1.1", "SERVER_SOFTWARE=FRE", "SERVER_PROTOCOL=HTTP/1.1",
		"REQUEST_METHOD=" + e.Method, "QUERY_STRING=" + e.Query,
		"SCRIPT_NAME=" + script, "SCRIPT_FILENAME=" + c.program, "DOCUMENT_ROOT=/function",
		"REQUEST_URI=" + mount + e.Path + question(e.Query),
		"REMOTE_ADDR=" + clientAddress(header(e, "X-Forwarded-For")), "UNIQUE_ID=" + e.ID,
	}
	if p, err := url.PathUnescape(e.Path); err == nil && p != "" && !strings.Contains(p, "\x00") {
		env = append(env, "PATH_INFO="+p)
	}
	if length > 0 {
		env = append(env, "CONTENT_LENGTH="+strconv.FormatInt(length, 10))
	}
	if kind := header(e, "Content-Type"); kind != "" {
		env = append(env, "CONTENT_TYPE="+kind)
	}
	return slices.Concat(env, serverVariables(e), headerVariables(e))
}

// serverVariables name the address that the client asked for.
func serverVariables(e *channel.Event) (env []string) {
	host, port := header(e, "Host"), "80"
	if header(e, "X-Forwarded-Proto") == "https" {
		port = "443"
		env = append(env, "HTTPS=on", "REQUEST_SCHEME=https")
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	return append(env, "SERVER_NAME="+cmp.Or(host, "localhost"), "SERVER_PORT="+port)
}

// headerVariables are the variables HTTP_… of the event's headers.
func headerVariables(e *channel.Event) (env []string) {
	seen := map[string]bool{"CONTENT_LENGTH": true, "CONTENT_TYPE": true, "PROXY": true} // PROXY would become HTTP_PROXY, which configures HTTP clients
	for _, h := range e.Headers {
		name := strings.ToUpper(strings.ReplaceAll(h[0], "-", "_"))
		if plain(h[0]) && !seen[name] {
			seen[name] = true
			env = append(env, "HTTP_"+name+"="+header(e, h[0]))
		}
	}
	return env
}

// plain reports whether a name has only letters, digits and dashes: with further characters two
// headers could share a variable (X_Forwarded_For).
func plain(name string) bool {
	return name != "" && !strings.ContainsFunc(name, odd)
}

func question(query string) string {
	if query == "" {
		return ""
	}
	return "?" + query
}

// maxHead bounds the head of a program's answer.
const maxHead, lineSize = 256 << 10, 64 << 10

// head reads the head of the answer (RFC 3875 section 6.3): at least one line.
func (s *script) head(a *channel.Answer) error {
	lines, err := s.headLines()
	if err != nil {
		return err
	}
	a.Status = 200
	location, said := false, false
	for _, line := range lines {
		name, value, err := parseHeader(line)
		if err != nil {
			return err
		}
		switch lower := strings.ToLower(name); {
		case lower == "status":
			if a.Status, err = parseStatus(value); err != nil {
				return err
			}
			said = true
		case !hopByHopLower[lower]:
			location = location || lower == "location"
			a.Headers = append(a.Headers, [2]string{name, value})
		}
	}
	if location && !said {
		a.Status = 302
	}
	return countHeaders(lines, a)
}

func parseHeader(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	value = textproto.TrimString(value)
	if !ok || !token(name) || strings.ContainsFunc(value, control) {
		return "", "", fmt.Errorf("%.100q is not a header", line)
	}
	return name, value, nil
}

// countHeaders refuses an answer without headers, and with too many.
func countHeaders(lines []string, a *channel.Answer) error {
	switch {
	case len(lines) == 0:
		return errors.New("no headers: write at least Content-Type")
	case len(a.Headers) > channel.MaxHeaders:
		return fmt.Errorf("%d headers, at most %d", len(a.Headers), channel.MaxHeaders)
	}
	return nil
}

// headLines reads the lines up to the empty line.
func (s *script) headLines() ([]string, error) {
	var lines []string
	for size := 0; ; {
		b, err := s.out.ReadSlice('\n')
		size += len(b)
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("no empty line after the headers")
		case errors.Is(err, bufio.ErrBufferFull) || size > maxHead:
			return nil, fmt.Errorf("the headers are longer than %d bytes, or a line is longer than %d", maxHead, lineSize)
		case err != nil:
			return nil, err
		}
		line := strings.TrimRight(string(b), "\r\n")
		if line == "" {
			return lines, nil
		}
		lines = append(lines, line)
	}
}

// parseStatus parses "404 Not Found".
func parseStatus(value string) (int, error) {
	status, err := strconv.Atoi(value[:min(3, len(value))])
	if err != nil || status < 200 || status > 599 {
		return 0, fmt.Errorf("the status %.100q is not from 200 to 599", value)
	}
	return status, nil
}

func (s *script) Read(p []byte) (int, error) {
	n, err := s.out.Read(p)
	s.whole = err == io.EOF
	return n, err
}

// Close waits for the program's end. It kills the program if the answer is not whole.
func (s *script) Close() error {
	s.once.Do(func() {
		if !s.whole {
			s.signal(syscall.SIGKILL)
		}
		<-s.exited
		s.stop()
		_ = s.pipe.Close()
		<-s.sent
	})
	return nil
}
