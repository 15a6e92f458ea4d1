package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Logs emits the log lines of a function, of one revision (NAME@REVISION), or else of a
// container, oldest first,
// from one goroutine. It returns when they are out, or with Follow when ctx ends
// (nil), the container does, or the function is removed or the engine stops (nil);
// an error of emit ends it too.
func (e *Engine) Logs(ctx context.Context, name string, o LogOptions, emit func(LogLine) error) error {
	qualified, revision, asked := strings.Cut(name, "@")
	d, err := e.find(qualified)
	if err == nil && asked {
		o.Revision, err = d.spec.resolve(d.name, revision)
	}
	if err != nil {
		if c, other := e.containers.find(name); other == nil {
			return c.log.read(ctx, e.closed, o, emit)
		}
		return err
	}
	return d.logs.read(ctx, e.closed, o, emit)
}

func (l *functionLog) read(ctx context.Context, stop <-chan struct{}, o LogOptions, emit func(LogLine) error) error {
	// Under the lock nothing is written, so what the files hold now and what
	// the follower receives from now on is the whole log, each line once.
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

	var tail []LogLine // a ring once it is full
	oldest := 0
	for _, f := range files {
		err := l.readFile(f.File, f.size, func(line LogLine) error {
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
		})
		if err != nil {
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
	for {
		select {
		case line, ok := <-news:
			if !ok || o.ends(&line) {
				return nil
			}
			if !o.selects(&line) {
				continue
			}
			if err := emit(line); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-stop:
			return nil
		}
	}
}

func (l *functionLog) unfollow(f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.followers, f)
}

type sizedFile struct {
	*os.File
	size int64
}

// openAllLocked opens the log's files oldest first with the sizes they have now.
func (l *functionLog) openAllLocked() ([]sizedFile, error) {
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

func (l *functionLog) readFile(f *os.File, size int64, each func(LogLine) error) error {
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
