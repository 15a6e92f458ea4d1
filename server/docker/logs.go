package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine"
)

// The media types of the two kinds of streams, which clients tell by them.
const (
	rawStream         = "application/vnd.docker.raw-stream"
	multiplexedStream = "application/vnd.docker.multiplexed-stream"
)

// The streams of a multiplexed one:
//
//	stream (1 byte) · 0 0 0 · length (4 bytes, big endian) · payload
const (
	stdout = 1
	stderr = 2
)

// frames writes to one stream of a multiplexed one; several may share a writer
// and its mutex.
type frames struct {
	mu     *sync.Mutex
	w      io.Writer
	stream byte
}

func (f frames) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	header := [8]byte{f.stream}
	binary.BigEndian.PutUint32(header[4:], uint32(len(p)))
	if _, err := f.w.Write(header[:]); err != nil {
		return 0, err
	}
	return f.w.Write(p)
}

// logOptions are the parameters of a container's log.
type logOptions struct {
	engine.LogOptions
	stdout, stderr, timestamps bool
}

func logOptionsOf(r *http.Request) (logOptions, error) {
	q := r.URL.Query()
	o := logOptions{stdout: boolOf(r, "stdout"), stderr: boolOf(r, "stderr"), timestamps: boolOf(r, "timestamps")}
	o.Follow, o.Tail = boolOf(r, "follow"), -1
	if !o.stdout && !o.stderr {
		return o, badRequest("Bad parameters: you must choose at least one stream")
	}
	if v := q.Get("tail"); v != "" && v != "all" {
		n, err := strconv.Atoi(v)
		if err != nil {
			return o, badRequest("tail: %q is not a number of lines, or all", v)
		}
		o.Tail = max(n, -1)
	}
	now := time.Now()
	for key, at := range map[string]*time.Time{"since": &o.Since, "until": &o.Until} {
		if v := q.Get(key); v != "" && v != "0" {
			parse := parseTime
			if key == "until" {
				parse = parseUntil
			}
			t, err := parse(v, now)
			if err != nil {
				return o, badRequest("%s: %v", key, err)
			}
			*at = t
		}
	}
	return o, nil
}

// printed is what a line was made of.
func printed(l engine.LogLine) string {
	if l.Partial {
		return l.Text
	}
	return l.Text + "\n"
}

// containerLogs answers GET /containers/ID/logs. What a handler logs comes as
// stderr. The engine keeps a function's log as one; here it is told apart by
// sandbox.
func (s *server) containerLogs(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	o, err := logOptionsOf(r)
	if err != nil {
		return err
	}
	if c.Function == "" && c.record == nil {
		return leftOut("log of a run", "its output went to whoever started it; functions have logs, and containers")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	read := func(emit func(engine.LogLine) error) error {
		return s.engine.ContainerLogs(ctx, c.ID, o.LogOptions, emit)
	}
	if c.record == nil {
		o.Sandbox = c.ID
		read = func(emit func(engine.LogLine) error) error { return s.engine.Logs(ctx, c.Function, o.LogOptions, emit) }
		if o.Follow { // the function's log goes on
			go func() {
				if _, err := s.engine.Wait(ctx, c.ID); err == nil {
					cancel()
				}
			}()
		}
	}
	w.Header().Set("Content-Type", multiplexedStream)
	tty := c.record != nil && c.record.Config.TTY
	if tty || versionOf(r) < 42 {
		w.Header().Set("Content-Type", rawStream)
	}
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		return nil // the client has gone
	}
	out := bufio.NewWriter(w)
	var mu sync.Mutex
	stream := func(id byte) io.Writer {
		if tty {
			return out
		}
		return frames{&mu, out, id}
	}
	err = read(func(l engine.LogLine) error {
		id, wanted := byte(stderr), o.stderr
		if l.Stream == "stdout" {
			id, wanted = stdout, o.stdout
		}
		if !wanted {
			return nil
		}
		line := printed(l)
		if o.timestamps {
			line = l.Time.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + line
		}
		_, err := io.WriteString(stream(id), line)
		if err == nil && o.Follow {
			if err = out.Flush(); err == nil {
				err = flush.Flush()
			}
		}
		return err
	})
	if err != nil && r.Context().Err() == nil {
		_, _ = io.WriteString(stream(stderr), "error reading the log: "+err.Error()+"\n") // the status is sent
	}
	_ = out.Flush() // a client that has gone is no failure of ours
	return nil
}
