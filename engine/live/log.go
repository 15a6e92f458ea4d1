package live

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// LogLine is one line of a function's log, on disk and in answers.
type LogLine struct {
	Time       time.Time `json:"time"`
	Function   string    `json:"function,omitempty"`
	Revision   int       `json:"revision,omitempty"`
	Sandbox    string    `json:"sandbox"`
	Invocation string    `json:"invocation,omitempty"`
	Stream     string    `json:"stream"`          // "stdout", "stderr", "log" (context.logger and the engine)
	Level      string    `json:"level,omitempty"` // of stream "log"
	Text       string    `json:"text"`
	Partial    bool      `json:"partial,omitempty"` // no newline followed: more comes, or the program has ended

	// On disk a long line is several pieces: all but the last have More, all but the first have
	// Rest. Logs joins the pieces and sets neither.
	More bool `json:"more,omitempty"`
	Rest bool `json:"rest,omitempty"`
}

// LogOptions select lines for Logs.
type LogOptions struct {
	Tail     int       // number of last lines; -1 for all
	Since    time.Time // zero for all
	Until    time.Time // zero for all; following ends with the first later line
	Sandbox  string    // only lines of this sandbox; "" for all
	Revision int       // only lines of this revision; 0 for all
	Follow   bool      // wait for new lines until ctx ends
}

// ends reports whether a line is later than Until.
func (o *LogOptions) ends(line *LogLine) bool {
	return !o.Until.IsZero() && line.Time.After(o.Until)
}

func (o *LogOptions) selects(line *LogLine) bool {
	return !line.Time.Before(o.Since) && (o.Sandbox == "" || line.Sandbox == o.Sandbox) && (o.Revision == 0 || line.Revision == o.Revision)
}

const (
	// maxLogLine is the longest piece of a line, in bytes; a longer line is written in pieces.
	maxLogLine = 16 << 10
	// maxLogLevel is longer than the name of any level.
	maxLogLevel = 16
	// LogBurst bounds the bytes that a function writes to its log within a second. The rest of
	// the second's output is dropped and counted.
	LogBurst = 1 << 20
	// DrainBytes is how much of the dropped output the engine reads per second, of all sandboxes
	// of a function together. A faster program blocks: otherwise the engine would spend a CPU on
	// output for no reader.
	DrainBytes = 64 << 20
	// LeastDrained is the least that a read of dropped output counts: short reads cost as much as
	// longer ones.
	LeastDrained = 4 << 10
	// LogCost is how many bytes a line of a logger or of the engine counts beside its text,
	// because each such line is decoded and written separately.
	LogCost = 64
	// followBuffer is how many lines a slow follower may lag behind.
	followBuffer = 4096
)

// Log keeps the output of a function's sandboxes as lines of JSON in current.ndjson,
// rotated by size to 1.ndjson, 2.ndjson, …
type Log struct {
	dir      string
	function string
	maxBytes int64
	files    int

	mu        sync.Mutex
	closed    bool
	paused    bool     // the function prints nothing now, so Logs cannot follow
	file      *os.File // nil if the file could not be opened; append tries again
	size      int64
	second    int64 // the second of budget
	budget    int
	dropped   int64     // bytes, since the budget ran out
	drained   time.Time // the time up to which DrainBytes is spent
	followers map[*follower]struct{}
	buf       []byte
}

// follower receives new lines as they are written.
type follower struct {
	lines  chan LogLine
	missed int // lines lost since the channel was full
}

const currentLog = "current.ndjson"

// OpenLog opens the log in dir, which it makes if missing. It rotates a file beyond maxBytes and
// keeps that many rotated files.
func OpenLog(dir, function string, maxBytes int64, files int) (*Log, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	l := &Log{dir: dir, function: function, maxBytes: maxBytes, files: files, followers: make(map[*follower]struct{})}
	return l, l.openLocked()
}

func (l *Log) openLocked() error {
	f, err := os.OpenFile(filepath.Join(l.dir, currentLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	l.file, l.size = f, st.Size()
	return nil
}

// Close ends followers and closes the file; later lines are dropped.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.restLocked()
}

// Pause ends followers and closes the file, because little or nothing is printed until resume.
func (l *Log) Pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = true
	l.restLocked()
}

func (l *Log) restLocked() {
	l.closeFileLocked()
	for f := range l.followers {
		close(f.lines)
	}
	clear(l.followers)
}

func (l *Log) closeFileLocked() {
	if l.file != nil {
		_ = l.file.Close() // as with a write: a full disk loses log lines
		l.file = nil
	}
}

// Resume ends a pause.
func (l *Log) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = false
}

// Append writes lines by one write(2). A full disk loses log lines, never an invocation.
func (l *Log) Append(lines ...LogLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.file == nil && l.openLocked() != nil {
		return
	}
	l.buf = l.buf[:0]
	for i := range lines {
		l.appendLocked(lines[i])
	}
	if len(l.buf) == 0 {
		return
	}
	if l.size > 0 && l.size+int64(len(l.buf)) > l.maxBytes {
		l.rotateLocked()
		if l.file == nil {
			return
		}
	}
	n, _ := l.file.Write(l.buf)
	l.size += int64(n)
	if l.paused { // leave no file open after late output
		l.closeFileLocked()
	}
}

// appendLocked writes a line, in pieces if it is longer than maxLogLine. copyLines passes long
// lines in pieces already.
func (l *Log) appendLocked(line LogLine) {
	text, partial, more := line.Text, line.Partial, line.More
	if len(line.Level) > maxLogLevel {
		line.Level = line.Level[:maxLogLevel]
	}
	for split := true; split; line.Rest = true {
		line.Text, text = text, ""
		if split = len(line.Text) > maxLogLine; split {
			n := maxLogLine
			for n > maxLogLine-utf8.UTFMax && !utf8.RuneStart(line.Text[n]) {
				n--
			}
			line.Text, text = line.Text[:n], line.Text[n:]
		}
		line.Partial, line.More = split || partial, split || more
		if l.affordLocked(&line) {
			l.encodeLocked(line)
		}
	}
}

// affordLocked reports whether the line fits into the budget of its second; if not, it counts the
// line as dropped. The first line of a later second is preceded by a note of the loss.
func (l *Log) affordLocked(line *LogLine) bool {
	if sec := line.Time.Unix(); sec != l.second {
		if l.dropped > 0 {
			l.encodeLocked(LogLine{Time: line.Time, Sandbox: line.Sandbox, Stream: "log", Level: "warning", Text: fmt.Sprintf("%d bytes of output dropped: more than %d in a second", l.dropped, LogBurst)})
		}
		l.second, l.budget, l.dropped = sec, LogBurst, 0
	}
	if line.Stream == "log" {
		l.budget -= LogCost
	}
	l.budget -= len(line.Text) + 1
	if l.budget < 0 {
		l.dropped += int64(len(line.Text)) + 1
	}
	return l.budget >= 0
}

func (l *Log) encodeLocked(line LogLine) {
	b, err := json.Marshal(line)
	if err != nil {
		return // strings and times always encode
	}
	l.buf = append(append(l.buf, b...), '\n')
	line.Function = l.function
	for f := range l.followers {
		f.send(line)
	}
}

// send never blocks: a slow follower loses lines, and gets a line with the number lost.
func (f *follower) send(line LogLine) {
	if f.missed > 0 {
		told := LogLine{Time: line.Time, Function: line.Function, Sandbox: line.Sandbox, Stream: "log", Level: "warning", Text: fmt.Sprintf("%d lines left out here: read too slowly", f.missed)}
		select {
		case f.lines <- told:
			f.missed = 0
		default:
		}
	}
	select {
	case f.lines <- line:
	default:
		f.missed++
	}
}

// rotateLocked renames current to 1, 1 to 2 and so on; the oldest file is overwritten.
func (l *Log) rotateLocked() {
	l.closeFileLocked()
	for i := l.files; i > 0; i-- {
		from := currentLog
		if i > 1 {
			from = fmt.Sprintf("%d.ndjson", i-1)
		}
		_ = os.Rename(filepath.Join(l.dir, from), filepath.Join(l.dir, fmt.Sprintf("%d.ndjson", i)))
	}
	_ = l.openLocked()
}

// Output is one stream of a sandbox on its way to the function's log.
type Output struct {
	Stream   string
	R, W     *os.File
	Revision int // of the function
}

// Pipes makes the outputs of a sandbox that is about to start. The caller ends with settle.
func (l *Log) Pipes(revision int, streams ...string) ([]Output, error) {
	outputs := make([]Output, 0, len(streams))
	for _, stream := range streams {
		r, w, err := OutputPipe()
		if err != nil {
			err = fmt.Errorf("make %s: %w", stream, err)
			l.Settle(nil, outputs, "", err)
			return nil, err
		}
		outputs = append(outputs, Output{Stream: stream, R: r, W: w, Revision: revision})
	}
	return outputs, nil
}

// Settle follows the outputs of a sandbox that has started, and closes the outputs if the start
// failed with err. Following from the start would cost the start one goroutine's wake-up per
// output.
func (l *Log) Settle(life *Life, outputs []Output, sandbox string, err error) {
	for _, o := range outputs {
		_ = o.W.Close()
		if err != nil {
			_ = o.R.Close()
		} else {
			l.Follow(life, o, sandbox)
		}
	}
}

// Follow writes the lines of a pipe to the log until every holder of the write end has closed it.
// Follow owns o.R.
func (l *Log) Follow(life *Life, o Output, sandbox string) {
	life.Spawn(func() {
		defer o.R.Close()
		if prints(o.R) {
			l.CopyLines(o.R, LogLine{Revision: o.Revision, Sandbox: sandbox, Stream: o.Stream})
		}
	})
}

// prints waits until a pipe has data, or returns false if the pipe ends first. Most programs
// print nothing, and need no buffer.
func prints(r *os.File) bool {
	conn, err := r.SyscallConn()
	if err != nil {
		return false
	}
	p := []unix.PollFd{{Events: unix.POLLIN}}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		p[0].Fd = int32(fd)
		_, failed = unix.Poll(p, 0)
		return failed != nil || p[0].Revents != 0
	})
	return err == nil && (failed != nil || p[0].Revents&unix.POLLIN != 0)
}

// OutputPipe makes a pipe. The poller watches the read end; the write end blocks, as programs
// expect. os.Pipe makes both ends for Go, at twice the system calls.
func OutputPipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// CopyLines writes the lines of r to the log. Lines longer than maxLogLine become pieces that end
// between characters.
func (l *Log) CopyLines(r io.Reader, of LogLine) {
	br := bufio.NewReaderSize(r, maxLogLine)
	var batch []LogLine
	var held []byte // the end of a piece, moved to the next piece
	for {
		text, err := br.ReadSlice('\n')
		of.More = errors.Is(err, bufio.ErrBufferFull)
		ended := err != nil && !of.More
		if len(held) > 0 {
			text = append(held, text...)
			held = nil
		}
		if of.More {
			n := wholeCharacters(text)
			text, held = text[:n], bytes.Clone(text[n:])
		}
		if len(text) > 0 || ended && of.Rest {
			of.Time, of.Text = time.Now(), strings.ToValidUTF8(string(bytes.TrimRight(text, "\r\n")), "\uFFFD")
			of.Partial = len(text) == 0 || text[len(text)-1] != '\n'
			batch = append(batch, of)
			of.Rest = of.More
		}
		if len(batch) > 0 && (ended || br.Buffered() == 0 || len(batch) == 64) {
			l.Append(batch...)
			batch = batch[:0]
			if !ended {
				dropped, err := l.drain(br)
				if dropped { // with the rest of the line
					of.Rest, held = false, nil
				}
				ended = err != nil
			}
		}
		if ended {
			return
		}
	}
}

// wholeCharacters returns the length of text without an incomplete character at the end: in
// UTF-8, or CR without LF.
func wholeCharacters(text []byte) int {
	n := len(text)
	if n > 0 && text[n-1] == '\r' {
		return n - 1
	}
	for i := n - 1; i >= 0 && n-i < utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return i
			}
			break
		}
	}
	return n
}

// drain returns at once while budget is left. Otherwise drain drops all input of this second, at
// the pace of DrainBytes, and then the rest of the line begun. dropped reports any loss.
func (l *Log) drain(br *bufio.Reader) (dropped bool, err error) {
	if drop, _ := l.Drop(0); !drop {
		return false, nil
	}
	whole := true // no part of the next line was dropped
	for {
		if _, err := br.Peek(1); err != nil { // waits
			return dropped, err
		}
		text, _ := br.Peek(br.Buffered())
		drop, wait := l.Drop(len(text))
		if !drop {
			break
		}
		if wait > 0 {
			<-time.After(wait)
		}
		dropped, whole = true, text[len(text)-1] == '\n'
		_, _ = br.Discard(len(text)) // buffered, so never fails
	}
	for !whole {
		_, err := br.ReadSlice('\n')
		whole = !errors.Is(err, bufio.ErrBufferFull)
		if err != nil && whole {
			return dropped, err
		}
	}
	return dropped, nil
}

// Drop reports whether the budget of this second is spent. If so, drop counts n bytes as dropped
// and returns how long the reader must wait to keep to DrainBytes.
func (l *Log) Drop(n int) (drop bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Unix() != l.second || l.budget >= 0 {
		return false, 0
	}
	l.dropped += int64(n)
	if l.drained.Before(now) {
		l.drained = now
	}
	l.drained = l.drained.Add(time.Duration(max(n, LeastDrained)) * time.Second / DrainBytes)
	if wait = l.drained.Sub(now); wait <= time.Millisecond { // a timer is no finer
		wait = 0
	}
	return true, wait
}

// Dir returns the directory of the log.
func (l *Log) Dir() string { return l.dir }
