package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/server/listing"
)

// reply sends v as JSON.
func reply(w http.ResponseWriter, status int, v any) error {
	body, err := appendJSON(nil, v)
	if err != nil {
		return err
	}
	listing.Send(w, status, body)
	return nil
}

func appendJSON(buf []byte, v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return append(buf, raw...), nil
}

// lines writes newline-delimited JSON and flushes each line. The first line also sends the
// status, so an earlier failure can still set a status.
type lines struct {
	w        http.ResponseWriter
	log      *slog.Logger
	mu       sync.Mutex    // report may run on another goroutine than the handler
	on       bool          // a line was sent
	patience time.Duration // write timeout for a client that does not read; 0: maxPatience
}

// maxPatience is the default write timeout for a client that does not read. The timeout matters
// to other requests: a check or a pull keeps objects from removal while it runs.
const maxPatience = time.Minute

func (l *lines) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on
}

func (l *lines) report(e image.Progress) { l.send(api.BuildLine{Progress: progressOf(e)}) }

// send ignores errors: net/http ends the request's context when a client disconnects or does not
// read.
func (l *lines) send(v any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.on {
		l.on = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	_ = http.NewResponseController(l.w).SetWriteDeadline(time.Now().Add(cmp.Or(l.patience, maxPatience)))
	_ = writeLine(l.w, v)
}

// end reports err. If lines were sent, end sends err as the last line and returns nil; otherwise
// end returns err.
func (l *lines) end(r *http.Request, err error) error {
	if !l.started() {
		return err
	}
	e := errorOf(err)
	if e.Code == api.CodeInternal {
		l.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	noteFailure(r, e)
	l.send(api.BuildLine{Error: e})
	return nil
}

func writeLine(w http.ResponseWriter, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
