package events

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
)

// Engine is what events need of *engine.Engine.
type Engine interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
	Function(name string) (*engine.Function, error)
	Room(name string) int // for further events of the function
}

// The defaults of [Config].
const (
	DefaultStoreBytes = 8 << 30
	DefaultQueueBytes = 1 << 30
)

// Config wires a Service. Engine, Log and Dir are required.
type Config struct {
	Engine  Engine
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: none
	Dir     string                // for the streams, and for bodies that are too large for them

	// Of an external server instead of the one in this process.
	URL         string // nats://host:4222, several with commas; "" for the one in the process
	Credentials string // file that the nats tools call a credentials file; "" for none
	Replicas    int    // of streams that are created there; default 1

	// Of the server in the process: "" and it has no socket at all.
	Listen   string // HOST:PORT
	User     string // required with Listen
	Password string // likewise

	StoreBytes   int64         // of all streams of the server in the process; default DefaultStoreBytes
	MinFreeBytes int64         // less than this free below Dir, and nothing is taken on; default 64 MiB
	MaxEvent     int64         // bytes of an event's body; default 64 MiB
	MaxQueue     int64         // events that wait, of each tenant; default 100,000
	QueueBytes   int64         // what they take, without large bodies, and as much results and dead letters each; default DefaultQueueBytes
	BodyBytes    int64         // of all large bodies; default 4 GiB
	Concurrency  int           // events at once; default 32 for each CPU
	MaxResults   int64         // results and dead letters that are kept at most, of each, of each tenant; default 100,000
	KeepDead     time.Duration // how long dead letters are kept; default 7 days
	Callbacks    Callbacks
	Subjects     Subjects // that tenants' triggers may be told of

	// Elsewhere says of a function that Engine does not have whether other nodes of the
	// same URL do: its events are theirs then, and not dead. nil: there are no others.
	Elsewhere func(function string) bool
}

// Callbacks says where results may be sent. The zero value: nowhere.
type Callbacks struct {
	Hosts    []string       // names and *.names, where they lead to public addresses
	Networks []netip.Prefix // addresses that are allowed, private ones too
	Secret   []byte         // signs what is sent (X-Fre-Signature-256); required where anything is allowed
}

// The faults of events. Those that a client is to be told are a *RefusedError too.
var (
	ErrTooLarge    = errors.New("the event is too large")
	ErrFull        = errors.New("the queue is full")
	ErrUnavailable = errors.New("events cannot be kept now")
	ErrStorage     = errors.New("there is no room on disk for events")
	ErrNotFound    = errors.New("no such event")
	ErrNotDead     = errors.New("the event is no dead letter")
	ErrCallback    = errors.New("the callback is not allowed")
	ErrBadEvent    = errors.New("the event is not understood")
)

// RefusedError is an event that was not taken on.
type RefusedError struct {
	Err        error
	Code       string        // for programs
	Status     int           // of HTTP
	RetryAfter time.Duration // 0: trying again is no use
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Refusal is what an HTTP answer says beside the message.
func (e *RefusedError) Refusal() (status int, code string, retryAfter time.Duration) {
	return e.Status, e.Code, e.RetryAfter
}

// refuse makes a RefusedError of one of the package's faults, and what there is to say of it.
func refuse(fault error, format string, args ...any) *RefusedError {
	e := &RefusedError{Err: fault, Status: 503, Code: "events_unavailable", RetryAfter: time.Second}
	if format != "" {
		e.Err = fmt.Errorf("%w: "+format, append([]any{fault}, args...)...)
	}
	switch {
	case errors.Is(fault, ErrTooLarge):
		e.Status, e.Code, e.RetryAfter = 413, "body_too_large", 0
	case errors.Is(fault, ErrFull):
		e.Status, e.Code, e.RetryAfter = 429, "queue_full", 5*time.Second
	case errors.Is(fault, ErrStorage):
		e.Code, e.RetryAfter = "events_storage", 10*time.Second
	case errors.Is(fault, ErrCallback):
		e.Status, e.Code, e.RetryAfter = 403, "callback_not_allowed", 0
	case errors.Is(fault, ErrBadEvent):
		e.Status, e.Code, e.RetryAfter = 400, "bad_event", 0
	}
	return e
}

// State says where an event is in its life.
type State string

// The states.
const (
	StateQueued  State = "queued"  // waits for its turn
	StateRunning State = "running" // the function has it
	StateWaiting State = "waiting" // has failed, and waits to be tried again
	StateDone    State = "done"    // has its result
	StateDead    State = "dead"    // is tried no more
)

// Priority is a queue's part of the turns that there are (see weights).
type Priority string

// The priorities.
const (
	High   Priority = "high"
	Normal Priority = "normal"
	Low    Priority = "low"
)

// Entry is an event as lists show it.
type Entry struct {
	ID       string
	Function string // as the engine knows it
	Tenant   string
	Priority Priority
	State    State
	Source   string // what it came by: "http", or a trigger as TYPE/NAME
	Accepted time.Time
	Changed  time.Time // into its state
	Attempts int       // begun so far
	Status   int       // of the answer, 0 without one
	Error    string    // of the last attempt, "" if it was well
	Size     int64     // bytes of the body

	seq uint64 // in the tenant's queue
}

// Options are how one event is published. The zero value is the template's.
type Options struct {
	Key      string // of the caller's: the same again is the same event; "" for none
	Priority Priority
	Callback string // URL that the result is posted to
	Source   string // of [Entry]; default "http"
	Repeated bool   // with a key: the engine itself publishes it again until it is taken on
}

// Receipt says that an event is on disk.
type Receipt struct {
	ID        string
	Duplicate bool // it was there before
}

// eventID is an event's id: 32 hexadecimal digits.
func eventID(function, key string) string {
	var b [16]byte
	if key == "" {
		_, _ = rand.Read(b[:]) // never fails
	} else {
		sum := sha256.Sum256([]byte(function + "\x00" + key))
		copy(b[:], sum[:])
	}
	return hex.EncodeToString(b[:])
}

// validID says whether id can be an event's.
func validID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && id == hex.EncodeToString(b)
}
