package adapter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// execRequest is the first line of an exec event's body; the rest of the body is the command's
// stdin.
type execRequest struct {
	Args      []string          `json:"args,omitempty"`       // the program and its arguments; or
	Shell     string            `json:"shell,omitempty"`      // a line for /bin/sh
	Dir       string            `json:"dir,omitempty"`        // "": /work
	Env       map[string]string `json:"env,omitempty"`        // added to the sandbox's own
	TimeoutMS int64             `json:"timeout_ms,omitempty"` // 0: ten minutes
}

const (
	maxRequest     = 1 << 20
	defaultTimeout = 10 * time.Minute
	maxTimeout     = time.Hour
)

// parseExec reads a request strictly.
func parseExec(line []byte) (*execRequest, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	r := new(execRequest)
	if err := d.Decode(r); err != nil {
		return nil, refuse("the command: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, refuse("the command: several JSON values on the line; stdin begins on the next line")
	}
	switch {
	case len(r.Args) > 0 && r.Shell != "":
		return nil, refuse("give args or shell, not both")
	case r.Shell != "":
		r.Args = []string{"/bin/sh", "-c", r.Shell}
	case len(r.Args) == 0 || r.Args[0] == "":
		return nil, refuse(`name a command: {"args": ["python3", "main.py"]} or {"shell": "ls | wc -l"}`)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

// check checks the limit of the time and the characters of the words.
func (r *execRequest) check() error {
	if r.TimeoutMS < 0 || r.TimeoutMS > maxTimeout.Milliseconds() {
		return refuse("timeout_ms is %d: must be from 1 to %d", r.TimeoutMS, maxTimeout.Milliseconds())
	}
	words := slices.Concat(r.Args, []string{r.Dir})
	for name, value := range r.Env {
		if name == "" || strings.Contains(name, "=") {
			return refuse("env: %q is no variable's name", name)
		}
		words = append(words, name, value)
	}
	if slices.ContainsFunc(words, func(s string) bool { return strings.ContainsRune(s, 0) }) {
		return refuse("the command holds a NUL byte")
	}
	return nil
}

// environ is the command's environment.
func (r *execRequest) environ() []string {
	env := slices.DeleteFunc(environment(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, over := r.Env[name]
		return over || strings.HasPrefix(name, "FRE_")
	})
	for name, value := range r.Env {
		env = append(env, name+"="+value)
	}
	return env
}

// exec starts a command and streams its output as lines of JSON,
//
//	{"stdout": "text"}  {"stdout_base64": "…"}   likewise stderr
//	{"exit": {…}}                                the last
//
// The command leads a process group. The agent kills the whole group at the time limit or when the
// client has gone. If the command ends by itself, its background processes run on.
func (a *agent) exec(ctx context.Context, e *channel.Event) (_ *channel.Answer, err error) {
	in := bufio.NewReaderSize(e.Body, 32<<10)
	line, err := readLine(in)
	if err != nil {
		return nil, err
	}
	r, err := parseExec(line)
	if err != nil {
		return nil, err
	}
	select {
	case a.running <- struct{}{}:
	default:
		return nil, &refusal{503, "overloaded", fmt.Sprintf("%d commands are running in the sandbox, the most allowed", mostCommands), "wait for a command to end"}
	}
	c, err := a.start(r)
	if err != nil {
		<-a.running
		return nil, err
	}
	out := newOutput()
	go func() {
		defer func() { <-a.running }()
		c.run(ctx, r, in, out)
	}()
	return &channel.Answer{Headers: [][2]string{{"content-type", "application/x-ndjson"}}, Body: out}, nil
}

// readLine reads the request's line, with or without a newline at its end.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case len(line) > maxRequest:
			return nil, refuse("the command's line has more than %d bytes: write a file and run the file", maxRequest)
		case err == nil || errors.Is(err, io.EOF):
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// command is a running command.
type command struct {
	*child
	begun                 time.Time
	stdin, stdout, stderr *os.File // our ends
}

func (a *agent) start(r *execRequest) (_ *command, err error) {
	dir := a.path(r.Dir)
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, refuse("dir: %s is no directory", dir)
	}
	program := r.Args[0]
	if !strings.Contains(program, "/") {
		if program, err = exec.LookPath(program); err != nil {
			return nil, &refusal{422, "command_not_found", fmt.Sprintf("%s is not in the sandbox's PATH (%s)", r.Args[0], os.Getenv("PATH")), "name a program of the image, or make the sandbox of another image"}
		}
	}
	c := &command{begun: time.Now()}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			c.closeOurs()
		}
	}()
	var files []uintptr
	for i, ours := range []**os.File{&c.stdin, &c.stdout, &c.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if *ours = r; i == 0 {
			*ours, w = w, r
		}
		theirs = append(theirs, w)
		files = append(files, w.Fd()) // Fd makes the pipe blocking, as programs expect
	}
	c.child, err = a.children.start(program, r.Args, &syscall.ProcAttr{Dir: dir, Env: r.environ(), Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}})
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil, &refusal{422, "command_not_found", fmt.Sprintf("%s does not exist, or its interpreter does not exist", program), "list the directory, or name a program of the image"}
	case errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EACCES):
		return nil, &refusal{422, "command_not_exec", fmt.Sprintf("%s cannot be executed: %v", program, err), "set the mode 755 and write a first line with #!, or run the interpreter"}
	case err != nil:
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	// If memory runs out, the kernel shall kill the command, not the agent.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.pid), []byte("1000"), 0) // the command may have ended
	return c, nil
}

func (c *command) closeOurs() {
	for _, f := range []*os.File{c.stdin, c.stdout, c.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// exit is the last line.
type exit struct {
	Code       int    `json:"code"`             // as in shells: 128 and the signal's number
	Signal     string `json:"signal,omitempty"` // the signal that ended the command
	TimedOut   bool   `json:"timed_out,omitempty"`
	DurationMS int64  `json:"duration_ms"`
}

// run follows the command to its end.
func (c *command) run(ctx context.Context, r *execRequest, in io.Reader, out *output) {
	go func() {
		src := &input{r: in}
		_, _ = io.Copy(c.stdin, src) // a command that does not read stdin has ended, or will end
		if src.err != nil {
			<-c.exited // it is killed for this error, and must not see an end of input before
		}
		_ = c.stdin.Close()
	}()
	var copies sync.WaitGroup
	for name, f := range map[string]*os.File{"stdout": c.stdout, "stderr": c.stderr} {
		copies.Go(func() { out.copy(name, f, c.exited) })
	}
	limit := defaultTimeout
	if r.TimeoutMS > 0 {
		limit = time.Duration(r.TimeoutMS) * time.Millisecond
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	timedOut := false
	select {
	case <-c.exited:
	case <-timer.C:
		timedOut = true
		c.signal(syscall.SIGKILL)
	case <-ctx.Done():
		c.signal(syscall.SIGKILL)
		out.fail(context.Cause(ctx))
	case <-out.gone: // the client has gone
		c.signal(syscall.SIGKILL)
	}
	<-c.exited
	_ = c.stdin.Close()
	stop := context.AfterFunc(ctx, func() { out.fail(context.Cause(ctx)) })
	defer stop()
	copies.Wait()
	end := exit{Code: c.status.ExitStatus(), TimedOut: timedOut, DurationMS: time.Since(c.begun).Milliseconds()}
	if c.status.Signaled() {
		end.Code, end.Signal = 128+int(c.status.Signal()), unix.SignalName(c.status.Signal())
	}
	out.line(map[string]exit{"exit": end})
	out.fail(nil)
}

// input remembers why a command's stdin broke off.
type input struct {
	r   io.Reader
	err error
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		i.err = err
	}
	return n, err
}

// output is an answer's body: pieces of output, each a line of JSON, at the engine's pace.
type output struct {
	r    *io.PipeReader
	w    *io.PipeWriter
	gone chan struct{} // closed by Close
	once sync.Once
	mu   sync.Mutex // held over a line
}

func newOutput() *output {
	l := &output{gone: make(chan struct{})}
	l.r, l.w = io.Pipe()
	return l
}

// Read implements io.Reader.
func (l *output) Read(p []byte) (int, error) { return l.r.Read(p) }

// Close tells run that the reader has gone.
func (l *output) Close() error {
	l.once.Do(func() { close(l.gone) })
	return l.r.Close()
}

// fail ends the body with an error, or normally with nil.
func (l *output) fail(err error) { _ = l.w.CloseWithError(err) }

func (l *output) line(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		return // our own types always encode
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(append(b, '\n')) // fails after Close
}

// copy sends a stream until its end, or until all bytes that were written before the command's
// exit. Later output of background processes is read and dropped: they keep running.
func (l *output) copy(name string, f *os.File, exited <-chan struct{}) {
	stopped := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-exited:
			_ = f.SetReadDeadline(time.Unix(1, 0))
		case <-stopped:
		}
	}()
	buf := make([]byte, 32<<10)
	kept := 0 // bytes at the beginning of buf: an incomplete character
	var err error
	for err == nil {
		var n int
		n, err = f.Read(buf[kept:])
		kept = l.piece(name, buf[:kept+n], buf)
	}
	close(stopped)
	<-watched
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = f.SetReadDeadline(time.Time{})
		for left := waiting(f); left > 0; {
			n, err := f.Read(buf[kept:min(len(buf), kept+left)])
			if err != nil {
				break
			}
			left -= n
			kept = l.piece(name, buf[:kept+n], buf)
		}
		go func() {
			_, _ = io.Copy(io.Discard, f)
			_ = f.Close()
		}()
	} else {
		_ = f.Close()
	}
	l.send(name, buf[:kept])
}

// waiting is the number of bytes in a pipe.
func waiting(f *os.File) (n int) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}

// piece sends b without an incomplete character at its end, and moves that to the beginning of buf.
func (l *output) piece(name string, b, buf []byte) (kept int) {
	whole := len(b)
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				whole -= i
			}
			break
		}
	}
	l.send(name, b[:whole])
	return copy(buf, b[whole:])
}

func (l *output) send(name string, b []byte) {
	switch {
	case len(b) == 0:
	case utf8.Valid(b):
		l.line(map[string]string{name: string(b)})
	default:
		l.line(map[string][]byte{name + "_base64": b})
	}
}
