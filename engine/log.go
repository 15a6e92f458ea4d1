package engine

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
	Partial    bool      `json:"partial,omitempty"` // no newline followed: the line goes on, or its program had ended

	// On disk a long line is several pieces, each but the last with More and each but
	// the first with Rest. Logs joins them, so that answers have neither.
	More bool `json:"more,omitempty"`
	Rest bool `json:"rest,omitempty"`
}

// LogOptions select what Logs emits.
type LogOptions struct {
	Tail     int       // that many last lines; -1 for all
	Since    time.Time // zero for all
	Until    time.Time // zero for all; following ends with the first line after it
	Sandbox  string    // only lines of that one; "" for all
	Revision int       // only lines of that one; 0 for all
	Follow   bool      // go on with new lines until ctx ends
}

// ends says whether a line is after all that is asked for.
func (o *LogOptions) ends(line *LogLine) bool {
	return !o.Until.IsZero() && line.Time.After(o.Until)
}

func (o *LogOptions) selects(line *LogLine) bool {
	return !line.Time.Before(o.Since) && (o.Sandbox == "" || line.Sandbox == o.Sandbox) && (o.Revision == 0 || line.Revision == o.Revision)
}

const (
	// maxLogLine is the longest piece of a line: longer lines are written in several.
	maxLogLine = 16 << 10
	// maxLogLevel is more than any level's name.
	maxLogLevel = 16
	// logBurst bounds what one function writes to its log within a second; the
	// rest of that second is dropped and counted.
	logBurst = 1 << 20
	// drainBytes is how much of that rest is read in a second, of all of a
	// function's sandboxes together. One that writes faster waits: else the engine
	// would spend a CPU on what nobody will see.
	drainBytes = 64 << 20
	// leastDrained is what is counted of that at least, whenever something is dropped:
	// to read little costs as much.
	leastDrained = 4 << 10
	// logLine is what a line of a logger's, or of the engine's, counts beside its text:
	// each is decoded and written for itself.
	logLine = 64
	// followBuffer is how many lines a slow follower may lag behind.
	followBuffer = 4096
)

// functionLog keeps what a function's sandboxes print as JSON lines in
// current.ndjson, rotated to 1.ndjson, 2.ndjson, … by size.
type functionLog struct {
	dir      string
	function string
	maxBytes int64
	files    int

	mu        sync.Mutex
	closed    bool
	paused    bool     // nothing is being printed: there is nothing to follow
	file      *os.File // nil: could not be opened, is tried again
	size      int64
	second    int64 // the second that budget counts for
	budget    int
	dropped   int64     // bytes, since the budget ran out
	drained   time.Time // up to when drainBytes is spent
	followers map[*follower]struct{}
	buf       []byte
}

// follower gets new lines as they are written.
type follower struct {
	lines  chan LogLine
	missed int // lines since lines was full
}

const currentLog = "current.ndjson"

func openLog(dir, function string, maxBytes int64, files int) (*functionLog, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	l := &functionLog{dir: dir, function: function, maxBytes: maxBytes, files: files, followers: make(map[*follower]struct{})}
	return l, l.openLocked()
}

func (l *functionLog) openLocked() error {
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
func (l *functionLog) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.restLocked()
}

// pause ends followers and closes the file: nothing more is printed until resume,
// or next to nothing.
func (l *functionLog) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = true
	l.restLocked()
}

func (l *functionLog) restLocked() {
	l.closeFileLocked()
	for f := range l.followers {
		close(f.lines)
	}
	clear(l.followers)
}

func (l *functionLog) closeFileLocked() {
	if l.file != nil {
		_ = l.file.Close() // as with a write: a full disk loses log lines
		l.file = nil
	}
}

func (l *functionLog) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = false
}

// append writes lines as one write(2). A full disk loses log lines, never an
// invocation.
func (l *functionLog) append(lines ...LogLine) {
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
	if l.paused { // what came late leaves no file open
		l.closeFileLocked()
	}
}

// appendLocked writes a line, in pieces if it is longer than maxLogLine. copyLines
// hands long lines over in pieces already.
func (l *functionLog) appendLocked(line LogLine) {
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

// affordLocked reports whether the line fits in its second's budget, and counts it as
// dropped if it does not. The first line of a later second tells how much was dropped.
func (l *functionLog) affordLocked(line *LogLine) bool {
	if sec := line.Time.Unix(); sec != l.second {
		if l.dropped > 0 {
			l.encodeLocked(LogLine{Time: line.Time, Sandbox: line.Sandbox, Stream: "log", Level: "warning", Text: fmt.Sprintf("%d bytes of output dropped: more than %d in a second", l.dropped, logBurst)})
		}
		l.second, l.budget, l.dropped = sec, logBurst, 0
	}
	if line.Stream == "log" {
		l.budget -= logLine
	}
	l.budget -= len(line.Text) + 1
	if l.budget < 0 {
		l.dropped += int64(len(line.Text)) + 1
	}
	return l.budget >= 0
}

func (l *functionLog) encodeLocked(line LogLine) {
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

// send does not wait: a follower that lags too far misses lines, and is told.
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

// rotateLocked renames current to 1, 1 to 2 and so on; the oldest goes.
func (l *functionLog) rotateLocked() {
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

// output is one stream of a sandbox that goes to its function's log.
type output struct {
	stream   string
	r, w     *os.File
	revision int // of the function's
}

// pipes makes the outputs of a sandbox that is about to start; settle ends what
// it began.
func (l *functionLog) pipes(streams ...string) ([]output, error) {
	outputs := make([]output, 0, len(streams))
	for _, stream := range streams {
		r, w, err := outputPipe()
		if err != nil {
			err = fmt.Errorf("make %s: %w", stream, err)
			l.settle(nil, outputs, "", err)
			return nil, err
		}
		outputs = append(outputs, output{stream: stream, r: r, w: w})
	}
	return outputs, nil
}

// pipes makes the outputs of one of the function's sandboxes.
func (f *function) pipes(streams ...string) ([]output, error) {
	outputs, err := f.logs.pipes(streams...)
	for i := range outputs {
		outputs[i].revision = f.revision
	}
	return outputs, err
}

// settle follows the outputs of a sandbox that has started, and closes those of
// one that has not. To be followed from the beginning on would cost the start a
// goroutine's wake-up for each.
func (l *functionLog) settle(e *Engine, outputs []output, sandbox string, err error) {
	for _, o := range outputs {
		_ = o.w.Close()
		if err != nil {
			_ = o.r.Close()
		} else {
			l.follow(e, o, sandbox)
		}
	}
}

// follow writes the lines of a pipe to the log until every holder of its other
// end has closed it. It owns o.r.
func (l *functionLog) follow(e *Engine, o output, sandbox string) {
	e.spawn(func() {
		defer o.r.Close()
		if prints(o.r) {
			l.copyLines(o.r, LogLine{Revision: o.revision, Sandbox: sandbox, Stream: o.stream})
		}
	})
}

// prints waits until there is something to be read from a pipe; false if its end
// comes first. Most programs print nothing, and need no buffer.
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

// outputPipe makes a pipe whose reading end the poller watches and whose writing
// end blocks, as programs expect; os.Pipe makes both for Go, at twice the calls.
func outputPipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// copyLines writes what comes from r to the log, a line each, and longer lines than
// maxLogLine in pieces that end between characters.
func (l *functionLog) copyLines(r io.Reader, of LogLine) {
	br := bufio.NewReaderSize(r, maxLogLine)
	var batch []LogLine
	var held []byte // the end of a piece that belongs to the next one
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
			l.append(batch...)
			batch = batch[:0]
			if !ended {
				dropped, err := l.drain(br)
				if dropped { // with what was left of the line
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

// wholeCharacters is the length of text without the beginning of a character at its
// end: of one in UTF-8, or of CR LF.
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

// drain returns at once while there is a budget. Otherwise it drops what comes within
// this second, at the pace of drainBytes, and then the rest of the line that it has begun
// to drop. dropped reports whether it dropped anything.
func (l *functionLog) drain(br *bufio.Reader) (dropped bool, err error) {
	if drop, _ := l.drop(0); !drop {
		return false, nil
	}
	whole := true // nothing of the next line was dropped
	for {
		if _, err := br.Peek(1); err != nil { // waits
			return dropped, err
		}
		text, _ := br.Peek(br.Buffered())
		drop, wait := l.drop(len(text))
		if !drop {
			break
		}
		if wait > 0 {
			<-time.After(wait)
		}
		dropped, whole = true, text[len(text)-1] == '\n'
		_, _ = br.Discard(len(text)) // it is there
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

// drop says whether this second's budget is used up. If so it counts n bytes as
// dropped, and says how long to wait where more has been than may be read in the time.
func (l *functionLog) drop(n int) (drop bool, wait time.Duration) {
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
	l.drained = l.drained.Add(time.Duration(max(n, leastDrained)) * time.Second / drainBytes)
	if wait = l.drained.Sub(now); wait <= time.Millisecond { // a timer is no finer
		wait = 0
	}
	return true, wait
}
