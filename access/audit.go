package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
)

// Result is the end of an action.
type Result string

// The results.
const (
	Done    Result = "done"
	Failed  Result = "failed"
	Refused Result = "refused" // not allowed
)

// Entry is a line of the audit log.
type Entry struct {
	Time   time.Time  `json:"time"`
	Who    string     `json:"who,omitempty"`    // "" if unknown
	Tenant string     `json:"tenant,omitempty"` // tenant of Who
	Client netip.Addr `json:"client,omitzero"`  // address of a TCP client
	Action string     `json:"action"`           // "POST /v1/functions", "authenticate"
	On     string     `json:"on,omitempty"`     // the object of the action
	Result Result     `json:"result"`
	Status int        `json:"status,omitempty"` // of the answer
	Reason string     `json:"reason,omitempty"` // of a refusal or failure
	Missed int        `json:"missed,omitempty"` // lost entries before this one
}

// ClientOf returns the address of a request's client, the zero address over a Unix socket.
func ClientOf(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

// audit appends lines to a file of mode 0600, and rotates the file.
type audit struct {
	log   *slog.Logger
	now   func() time.Time
	path  string
	limit int64
	files int

	reading chan struct{} // full while a reader is at work

	mu      sync.Mutex
	f       *os.File
	size    int64
	missed  int
	closed  bool
	watches map[*auditWatch]struct{}
}

func openAudit(path string, cfg *Config) (*audit, error) {
	a := &audit{log: cfg.Log, now: cfg.Now, path: path, limit: cfg.AuditBytes, files: cfg.AuditFiles, reading: make(chan struct{}, 1), watches: map[*auditWatch]struct{}{}}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return a, nil
}

func (a *audit) open() error {
	f, err := os.OpenFile(a.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && size > 0 {
		last := make([]byte, 1)
		if _, err = f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			// A crash has torn the last line: start a new one.
			_, err = f.Write([]byte{'\n'})
			size++
		}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	a.f, a.size = f, size
	return nil
}

// Record writes an entry to the audit log. Actions are on disk when Record returns; refusals, which
// anybody can cause, are not synced. Lost entries are counted in the next entry written, and
// reported in the engine's log.
func (a *audit) Record(e Entry) {
	if e.Time.IsZero() {
		e.Time = a.now().UTC().Truncate(time.Millisecond)
	}
	if err := a.append(e); err != nil {
		a.log.Error("audit log not written", "action", e.Action, "on", e.On, "who", e.Who, "error", err)
	}
}

func (a *audit) append(e Entry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.On, e.Reason = shortened(e.On), shortened(e.Reason)
	e.Missed = a.missed
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if a.closed {
		return os.ErrClosed
	}
	if err := a.writeLocked(line, e.Result != Refused); err != nil {
		a.missed++
		return err
	}
	a.missed = 0
	a.publishLocked(e)
	return nil
}

// writeLocked writes a line to the current file, which it opens or rotates first.
func (a *audit) writeLocked(line []byte, sync bool) (err error) {
	if a.f == nil {
		err = a.open()
	} else if a.size > 0 && a.size+int64(len(line)) > a.limit {
		err = a.rotateLocked()
	}
	if err != nil {
		return err
	}
	n, err := a.f.Write(line)
	a.size += int64(n)
	if err == nil && sync {
		err = unix.Fdatasync(int(a.f.Fd()))
	}
	if err != nil && n > 0 && n < len(line) { // full disk: remove the partial line
		err = errors.Join(err, a.f.Truncate(a.size-int64(n)))
		a.size -= int64(n)
	}
	return err
}

// shortened keeps text chosen by clients from filling the log.
func shortened(s string) string {
	const most = 1 << 10
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// name returns the path of the file that is i rotations old.
func (a *audit) name(i int) string {
	if i == 0 {
		return a.path
	}
	return fmt.Sprintf("%s.%d", a.path, i)
}

// rotateLocked renames each file to the next number, and drops the oldest.
func (a *audit) rotateLocked() error {
	err := a.f.Close()
	a.f = nil
	for i := a.files; i > 0; i-- {
		err = errors.Join(err, ignoreMissing(os.Rename(a.name(i-1), a.name(i))))
	}
	if err != nil {
		return err
	}
	return a.open()
}

// Close ends the followers and closes the file.
func (a *audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for w := range a.watches {
		a.endLocked(w, nil)
	}
	if a.f == nil {
		return nil
	}
	f := a.f
	a.f = nil
	return f.Close()
}

// AuditOptions select entries of the audit log.
type AuditOptions struct {
	Since  time.Time        // zero: from the oldest entry on
	Tail   int              // how many of the newest existing entries, at most MaxAuditTail
	Keep   func(Entry) bool // nil: all. Record calls Keep too, so Keep must be quick
	Follow bool             // also entries written from now on, until ctx ends
	Done   <-chan struct{}  // ends following, as ctx does
}

func (o *AuditOptions) wants(e *Entry) bool {
	return !e.Time.Before(o.Since) && (o.Keep == nil || o.Keep(*e))
}

// auditWatch is a follower.
type auditWatch struct {
	o       *AuditOptions
	entries chan Entry // closed at the end
	err     error      // the reason, set before entries is closed
}

const (
	auditLine    = 64 << 10 // longest line in bytes; a longer one is not an entry
	auditBacklog = 1024     // how many entries a follower may lag
)

// ErrBehind says that a follower took entries too slowly.
var ErrBehind = failure.New(failure.Gone, "the reader is too slow for the audit log", "read on from the last entry (--since)")

// MaxAuditTail is the most entries that one reading returns.
const MaxAuditTail = 10_000

// publishLocked sends an entry to the followers. A follower that lags too far is ended, because
// Record must not wait.
func (a *audit) publishLocked(e Entry) {
	for w := range a.watches {
		if !w.o.wants(&e) {
			continue
		}
		select {
		case w.entries <- e:
		default:
			a.endLocked(w, ErrBehind)
		}
	}
}

func (a *audit) endLocked(w *auditWatch, err error) {
	if _, ok := a.watches[w]; ok {
		delete(a.watches, w)
		w.err = err
		close(w.entries)
	}
}

func (a *audit) unwatch(w *auditWatch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endLocked(w, nil)
}
