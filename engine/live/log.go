package live

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"
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
