package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Read emits the lines that o selects, oldest first, from one goroutine. With o.Follow it continues
// until ctx ends, stop closes, or the log is paused or closed, and returns nil. Errors: those of
// emit, ctx.Err() if ctx ends while stored lines are read.
func (l *Log) Read(ctx context.Context, stop <-chan struct{}, o LogOptions, emit func(LogLine) error) error {
	// Nothing is written under the lock. So the present content of the files and all later lines
	// of the follower are the whole log, each line once.
	l.mu.Lock()
	files, err := l.openAllLocked()
	var news chan LogLine
	if err == nil && o.Follow && !l.closed && !l.paused {
		news = make(chan LogLine, followBuffer)
		f := &follower{lines: news}
		l.followers[f] = struct{}{}
		defer l.unfollow(f)
	}
	l.mu.Unlock()
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err != nil {
		return err
	}

	var tail []LogLine // a ring once full
	oldest := 0
	lines := joiner{most: l.maxBytes, emit: func(line LogLine) error {
		switch {
		case !o.selects(&line), o.ends(&line):
		case o.Tail < 0:
			return emit(line)
		case o.Tail > 0:
			if len(tail) < o.Tail {
				tail = append(tail, line)
				break
			}
			tail[oldest] = line
			oldest = (oldest + 1) % o.Tail
		}
		return ctx.Err()
	}}
	for _, f := range files {
		if err := l.readFile(f.File, f.size, lines.add); err != nil {
			return err
		}
	}
	if news == nil { // with a follower, the rest of a line may still come
		if err := lines.flush(); err != nil {
			return err
		}
	}
	for i := range tail {
		if err := emit(tail[(oldest+i)%len(tail)]); err != nil {
			return err
		}
	}
	if news == nil {
		return nil
	}
	lines.emit = func(line LogLine) error {
		switch {
		case o.ends(&line):
			return errUntil
		case o.selects(&line):
			return emit(line)
		}
		return nil
	}
	for {
		select {
		case line, ok := <-news:
			err := errUntil
			if ok {
				err = lines.add(line)
			} else if flushed := lines.flush(); flushed != nil {
				err = flushed
			}
			switch {
			case errors.Is(err, errUntil):
				return nil
			case err != nil:
				return err
			}
		case <-ctx.Done():
			return nil
		case <-stop:
			return nil
		}
	}
}

// errUntil ends the following of a log: later lines are after LogOptions.Until.
var errUntil = errors.New("end of the requested lines")

// joiner joins the pieces of long lines and emits whole lines. A line has the time of its first
// piece and the position of its last.
type joiner struct {
	emit func(LogLine) error
	most int64 // limit of the bytes in open lines together; beyond it, a line is emitted incomplete

	open  map[source]*openLine
	bytes int64
}

// source is the origin of a line's pieces. Each source has at most one open line.
type source struct{ sandbox, stream, invocation string }

// openLine is a line without its last piece.
type openLine struct {
	first LogLine
	text  strings.Builder
}

// add takes the next piece, or a whole line.
func (j *joiner) add(line LogLine) error {
	from := source{line.Sandbox, line.Stream, line.Invocation}
	open := j.open[from]
	if open != nil && !line.Rest { // the end of the open line was dropped
		if err := j.emitOpen(from, false); err != nil {
			return err
		}
		open = nil
	}
	if open == nil && !line.More {
		line.Rest = false
		return j.emit(line)
	}
	if open == nil {
		open = &openLine{first: line}
		if j.open == nil {
			j.open = make(map[source]*openLine)
		}
		j.open[from] = open
	}
	open.text.WriteString(line.Text)
	j.bytes += int64(len(line.Text))
	if line.More && j.bytes < j.most {
		return nil
	}
	return j.emitOpen(from, line.Partial)
}

// emitOpen emits the pieces of an open line as one line.
func (j *joiner) emitOpen(from source, partial bool) error {
	open := j.open[from]
	delete(j.open, from)
	j.bytes -= int64(open.text.Len())
	line := open.first
	line.Text, line.Partial, line.More, line.Rest = open.text.String(), partial, false, false
	return j.emit(line)
}

// flush emits the open lines, oldest first. No further piece may come.
func (j *joiner) flush() error {
	left := slices.SortedFunc(maps.Keys(j.open), func(a, b source) int {
		return j.open[a].first.Time.Compare(j.open[b].first.Time)
	})
	for _, from := range left {
		if err := j.emitOpen(from, true); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) unfollow(f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.followers, f)
}

type sizedFile struct {
	*os.File
	size int64
}

// openAllLocked opens the log's files, oldest first, with their present sizes.
func (l *Log) openAllLocked() ([]sizedFile, error) {
	var out []sizedFile
	for i := l.files; i >= 0; i-- {
		name := currentLog
		if i > 0 {
			name = fmt.Sprintf("%d.ndjson", i)
		}
		f, err := os.Open(filepath.Join(l.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			var st os.FileInfo
			if st, err = f.Stat(); err == nil {
				out = append(out, sizedFile{f, st.Size()})
				continue
			}
			_ = f.Close()
		}
		for _, f := range out {
			_ = f.Close()
		}
		return nil, fmt.Errorf("read log: %w", err)
	}
	return slices.Clip(out), nil
}

func (l *Log) readFile(f *os.File, size int64, each func(LogLine) error) error {
	sc := bufio.NewScanner(io.LimitReader(f, size))
	sc.Buffer(nil, 8*maxLogLine) // JSON escapes make a line up to six times longer
	for sc.Scan() {
		var line LogLine
		if json.Unmarshal(sc.Bytes(), &line) != nil {
			continue // cut off by a crash
		}
		line.Function = l.function
		if err := each(line); err != nil {
			return err
		}
	}
	return sc.Err()
}
