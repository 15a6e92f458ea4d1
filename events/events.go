package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
)

// Engine is the part of *engine.Engine that the package needs.
type Engine interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
	Function(name string) (*engine.Function, error)
	Room(name string) int // how many more events of the function the engine can run now
}

// Defaults of [Config].
const (
	DefaultStoreBytes = 8 << 30
	DefaultQueueBytes = 1 << 30
)

// Config wires a Service. Engine, Log and Dir are required.
type Config struct {
	Engine  Engine
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: none
	Dir     string                // for the streams, and for bodies too large for a message

	// For an external server or cluster, instead of the server in this process.
	URL         string // nats://host:4222, several separated by commas; "": the server in the process
	Credentials string // path of a credentials file of the nats tools; "": none
	Replicas    int    // of streams that FRE creates in the cluster; default 1

	// For the server in the process. Without Listen the server has no socket.
	Listen   string // HOST:PORT
	User     string // required with Listen
	Password string // required with Listen

	StoreBytes   int64         // of all streams in the in-process server; default DefaultStoreBytes
	MinFreeBytes int64         // with less space free below Dir, Publish refuses events; default 64 MiB
	MaxEvent     int64         // bytes of an event's body; default 64 MiB
	MaxQueue     int64         // waiting events of each tenant; default 100,000
	QueueBytes   int64         // of each stream of a tenant, without large bodies; default DefaultQueueBytes
	BodyBytes    int64         // of all large bodies; default 4 GiB
	Concurrency  int           // events that run at once; default 32 for each CPU
	MaxResults   int64         // most results, and most dead letters, of each tenant; default 100,000
	KeepDead     time.Duration // how long dead letters are kept; default 7 days
	Patience     time.Duration // how long a request to NATS, or one write, may take; default 10 seconds
	Callbacks    Callbacks
	Subjects     Subjects // of NATS that tenants' triggers may subscribe to

	// Elsewhere reports whether another node on the same URL has a function that Engine does not
	// have. Events of the function then wait for the node and do not become dead letters. nil: the
	// engine is the only node.
	Elsewhere func(function string) bool

	making *sync.Mutex // see Service; nodes of one test share it, as their server is in the process
}

func (c *Config) setDefaults() {
	c.StoreBytes = cmp.Or(c.StoreBytes, DefaultStoreBytes)
	c.MinFreeBytes = cmp.Or(c.MinFreeBytes, 64<<20)
	c.MaxEvent = cmp.Or(c.MaxEvent, 64<<20)
	c.MaxQueue = cmp.Or(c.MaxQueue, 100_000)
	c.QueueBytes = cmp.Or(c.QueueBytes, DefaultQueueBytes)
	c.BodyBytes = cmp.Or(c.BodyBytes, 4<<30)
	c.MaxResults = cmp.Or(c.MaxResults, 100_000)
	c.Concurrency = cmp.Or(c.Concurrency, 32*runtime.GOMAXPROCS(0))
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.KeepDead = cmp.Or(c.KeepDead, 7*24*time.Hour)
	c.Patience = cmp.Or(c.Patience, 10*time.Second)
}

// external reports whether other nodes may share the server.
func (c *Config) external() bool { return c.URL != "" }

// elsewhere reports whether another node has a function that Engine does not have.
func (c *Config) elsewhere(function string) bool {
	if c.Elsewhere == nil {
		return false
	}
	_, err := c.Engine.Function(function)
	return err != nil && c.Elsewhere(function)
}

// settings returns the settings for events, and the time limit, of the function's current
// deployment.
func (c *Config) settings(function string) (template.Events, time.Duration, error) {
	f, err := c.Engine.Function(function)
	if err != nil {
		return template.Events{}, 0, err
	}
	return f.Config.EventSettings(), f.Config.Resources.Timeout, nil
}

// Callbacks says where results may be sent. The zero value forbids callbacks.
type Callbacks struct {
	Hosts    []string       // NAME or *.NAME, as far as the name leads to public addresses
	Networks []netip.Prefix // allowed addresses, private ones too
	Secret   []byte         // signs callbacks, at least 16 bytes; required with Hosts or Networks

	timeout time.Duration // of one try; 0 means callbackTimeout
}

// Errors of the package. An error meant for a client is also a *RefusedError.
var (
	ErrTooLarge    = failure.New(failure.BodyTooLarge, "the event is too large", "")
	ErrFull        = failure.New(failure.QueueFull, "the queue is full", "")
	ErrUnavailable = failure.New(failure.EventsUnavailable, "the engine cannot store events now", "")
	ErrStorage     = failure.New(failure.EventsStorage, "the disk space for events is used up", "")
	ErrNotFound    = failure.New(failure.NotFound, "no such event", "results expire (events.results in the template), dead letters after a week")
	ErrNotDead     = failure.New(failure.InUse, "the event is not a dead letter", "list dead letters with fre events ls --state dead")
	ErrCallback    = failure.New(failure.CallbackNotAllowed, "the callback is not allowed", "")
	ErrBadEvent    = failure.New(failure.BadEvent, "the event is not valid", "")
)

// RefusedError says that an event was refused, or that the store of events cannot be used now, and
// when to try again. Its code is the code of Err.
type RefusedError struct {
	Err   error
	After time.Duration // 0: a retry is no use
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Code returns the code of Err.
func (e *RefusedError) Code() failure.Code { return failure.Of(e.Err) }

// Next returns the next step of Err.
func (e *RefusedError) Next() string { return failure.Next(e.Err) }

// RetryAfter returns After.
func (e *RefusedError) RetryAfter() time.Duration { return e.After }

// refuse wraps one of the package's errors, with a detail, in a RefusedError.
func refuse(fault error, format string, args ...any) *RefusedError {
	e := &RefusedError{Err: fault}
	if format != "" {
		e.Err = fmt.Errorf("%w: "+format, append([]any{fault}, args...)...)
	}
	switch {
	case errors.Is(fault, ErrUnavailable):
		e.After = time.Second
	case errors.Is(fault, ErrFull):
		e.After = 5 * time.Second
	case errors.Is(fault, ErrStorage):
		e.After = 10 * time.Second
	}
	return e
}

func errStopping() error { return refuse(ErrUnavailable, "the engine is stopping") }

// Final reports whether err refuses an event for good: a retry is no use.
func Final(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && refused.After == 0
}

// State is a stage in an event's life.
type State string

// The states.
const (
	StateQueued  State = "queued"  // waits for a turn
	StateRunning State = "running" // the function handles the event
	StateWaiting State = "waiting" // failed, and waits for the next attempt
	StateDone    State = "done"    // the result is known
	StateDead    State = "dead"    // no further attempt
)

// Priority decides the share of turns that a queue gets (see weights).
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
	Function string // qualified name
	Tenant   string
	Priority Priority
	State    State
	Source   string // how the event came: "http", or a trigger as TYPE/NAME
	Accepted time.Time
	Changed  time.Time // when the event entered State
	Attempts int       // attempts begun
	Status   int       // of the answer, 0 without an answer
	Error    string    // of the last attempt, "" after success
	Size     int64     // bytes of the body

	seq uint64 // sequence in the tenant's queue
}

// Options are the settings of one publication. The zero value takes the template's.
type Options struct {
	Key      string // chosen by the caller; the same key means the same event; "": none
	Priority Priority
	Callback string // URL to which the result is posted
	Source   string // see [Entry]; default "http"
	Repeated bool   // requires Key: the engine itself publishes the event again until accepted
}

// Receipt says that an event is on disk.
type Receipt struct {
	ID        string
	Duplicate bool // the event was known before
}

// eventID returns an event's id, 32 hexadecimal digits: a hash of function and key, or random.
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

// validID reports whether id has the form of an event's id.
func validID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && id == hex.EncodeToString(b)
}
