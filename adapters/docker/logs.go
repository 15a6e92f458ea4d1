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

	"github.com/fre-engine/fre/engine/live"
)

// Media types of the two kinds of streams; clients distinguish the kinds by media type.
const (
	rawStream         = "application/vnd.docker.raw-stream"
	multiplexedStream = "application/vnd.docker.multiplexed-stream"
)

// Stream ids of a multiplexed stream. A frame is
//
//	stream (1 byte) · 0 0 0 · length (4 bytes, big endian) · payload
const (
	stdout = 1
	stderr = 2
)

// frames writes frames of one stream to w. Several frames may share w and mu.
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

// logOptions holds the query parameters of the logs route.
type logOptions struct {
	live.LogOptions
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

// printed returns the bytes printed by a line's writer.
func printed(l live.LogLine) string {
	if l.Partial {
		return l.Text
	}
	return l.Text + "\n"
}

// containerLogs answers GET /containers/ID/logs. Log entries of a handler appear as stderr.
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
		return leftOut("log of a run", "the output went to the client that started the run; only functions and containers have logs")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	tty := c.record != nil && c.record.Config.TTY
	w.Header().Set("Content-Type", streamType(r, tty))
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		return nil // the client has disconnected
	}
	if c.record == nil && o.Follow { // the function's log continues after the instance ends
		go s.cancelAtEnd(ctx, c.ID, cancel)
	}
	out := logWriter{logOptions: o, tty: tty, Writer: bufio.NewWriter(w), flush: flush.Flush}
	if err := s.readLog(ctx, c, o.LogOptions, out.line); err != nil && r.Context().Err() == nil {
		_, _ = io.WriteString(out.stream(stderr), "error reading the log: "+err.Error()+"\n") // the status was already sent
	}
	_ = out.Flush() // the client may have disconnected
	return nil
}

// cancelAtEnd calls cancel once the sandbox has ended.
func (s *server) cancelAtEnd(ctx context.Context, id string, cancel func()) {
	if _, err := s.engine.Wait(ctx, id); err == nil {
		cancel()
	}
}

// readLog calls emit for the lines of c's log. The engine keeps one log per function, so for an
// instance readLog selects lines by sandbox.
func (s *server) readLog(ctx context.Context, c shownContainer, o live.LogOptions, emit func(live.LogLine) error) error {
	if c.record != nil {
		return s.engine.ContainerLogs(ctx, c.ID, o, emit)
	}
	o.Sandbox = c.ID
	return s.engine.Logs(ctx, c.Function, o, emit)
}

// streamType returns the media type of a stream for the client's API version.
func streamType(r *http.Request, tty bool) string {
	if tty || versionOf(r) < 42 {
		return rawStream
	}
	return multiplexedStream
}

// logWriter sends the wanted lines of a log to a client.
type logWriter struct {
	logOptions
	tty bool // one stream without frames
	*bufio.Writer
	flush func() error // sends to the client at once
	mu    sync.Mutex   // of the frames
}

// stream returns the writer of one of the two streams.
func (w *logWriter) stream(id byte) io.Writer {
	if w.tty {
		return w.Writer
	}
	return frames{&w.mu, w.Writer, id}
}

// line sends a line if the client wants its stream; at once if the client follows the log.
func (w *logWriter) line(l live.LogLine) error {
	id, wanted := byte(stderr), w.stderr
	if l.Stream == "stdout" {
		id, wanted = stdout, w.stdout
	}
	if !wanted {
		return nil
	}
	line := printed(l)
	if w.timestamps {
		line = l.Time.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + line
	}
	if _, err := io.WriteString(w.stream(id), line); err != nil || !w.Follow {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return w.flush()
}
