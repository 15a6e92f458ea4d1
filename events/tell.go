package events

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"
)

// A message between nodes is a byte, wireVersion, followed by changes, each
//
//	id                               16 bytes
//	state, priority                  1 byte each, indices into wireStates and wirePriorities
//	seq, attempts, status, size      uvarint
//	accepted, changed                varint, microseconds since 1970
//	function, tenant, source, error  uvarint length and bytes
//
// Every node hears three times of every event that runs anywhere. As JSON, with a message for each
// change, the messages took a fifth of a node's time with three nodes (make bench-nodes).
const wireVersion = 1

// Append only: other nodes know the indices.
var (
	wireStates     = []State{StateQueued, StateRunning, StateWaiting, StateDone, StateDead}
	wirePriorities = []Priority{High, Normal, Low}
)

var errChange = errors.New("not a change of an event")

// appendChange appends e in wire format; e.ID must be valid (validID).
func appendChange(b []byte, e *Entry) []byte {
	b, _ = hex.AppendDecode(b, []byte(e.ID)) // never fails
	b = append(b, byte(slices.Index(wireStates, e.State)), byte(slices.Index(wirePriorities, e.Priority)))
	for _, n := range []uint64{e.seq, uint64(e.Attempts), uint64(e.Status), uint64(e.Size)} {
		b = binary.AppendUvarint(b, n)
	}
	for _, t := range []time.Time{e.Accepted, e.Changed} {
		b = binary.AppendVarint(b, t.UnixMicro())
	}
	for _, s := range []string{e.Function, e.Tenant, e.Source, e.Error} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

// readChange decodes a change and returns the rest of b. Strings equal to those of like share their
// memory.
func readChange(b []byte, like *Entry) (e Entry, rest []byte, err error) {
	if len(b) < 18 || int(b[16]) >= len(wireStates) || int(b[17]) >= len(wirePriorities) {
		return e, nil, errChange
	}
	e.ID, e.State, e.Priority = hex.EncodeToString(b[:16]), wireStates[b[16]], wirePriorities[b[17]]
	b = b[18:]
	good := true
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			good, n = false, 0
		}
		b = b[n:]
		return v
	}
	signed := func() int64 {
		v := number()
		if v > 1<<63-1 {
			good = false
		}
		return int64(v) //nolint:gosec // checked above
	}
	e.seq, e.Attempts, e.Status, e.Size = number(), int(signed()), int(signed()), signed()
	for _, t := range []*time.Time{&e.Accepted, &e.Changed} {
		us, n := binary.Varint(b)
		if n <= 0 {
			return e, nil, errChange
		}
		b, *t = b[n:], time.UnixMicro(us).UTC()
	}
	e.Function, e.Tenant, e.Source, e.Error = like.Function, like.Tenant, like.Source, like.Error
	for _, s := range []*string{&e.Function, &e.Tenant, &e.Source, &e.Error} {
		n := number()
		if n > uint64(len(b)) {
			return e, nil, errChange
		}
		if string(b[:n]) != *s {
			*s = string(b[:n])
		}
		b = b[n:]
	}
	if !good || e.Function == "" || e.Tenant == "" {
		return e, nil, errChange
	}
	return e, b, nil
}

const (
	// tellEvery is how long changes are gathered after a message was sent.
	tellEvery = 20 * time.Millisecond
	// tellMost bounds the gathered changes, in bytes.
	tellMost = 64 << 10
)

// teller sends changes to the other nodes. After a pause a change goes at once; the changes of the
// next tellEvery go in one message, because each message costs time on every node.
type teller struct {
	send func([]byte) // must not block, nor keep its argument

	mu      sync.Mutex
	waiting []byte
	paused  bool // until resume: gather, and send only when tellMost is reached
}

func (t *teller) tell(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.waiting = append(t.waiting, wireVersion)
	}
	t.waiting = appendChange(t.waiting, &e)
	if !t.paused || len(t.waiting) >= tellMost {
		t.flushLocked()
	}
}

func (t *teller) flushLocked() {
	if len(t.waiting) == 0 {
		return
	}
	t.send(t.waiting)
	t.waiting = t.waiting[:0]
	if !t.paused {
		t.paused = true
		time.AfterFunc(tellEvery, t.resume)
	}
}

func (t *teller) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused = false
	t.flushLocked()
}

// flush sends the gathered changes.
func (t *teller) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLocked()
}
