package events

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

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
