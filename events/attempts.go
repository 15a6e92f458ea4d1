package events

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// attempts counts the attempts of events, callbacks and triggers in a file. An attempt is counted
// before the attempt begins, so that an attempt that kills the engine counts too. The file is a
// table of slots of 32 bytes:
//
//	key       16 bytes  kind of attempt, and a hash of the object
//	begun      8 bytes  start of the last attempt, in seconds since 1970
//	attempts   3 bytes  begun so far
//	state      1 byte   slotRuns or slotWaits; 0 in a slot that was never used
//	crc        4 bytes  CRC-32C of the bytes before
//
// JetStream counts deliveries too, but writes its count up to 100 ms after a delivery, and includes
// deliveries that begin no attempt. One pwrite(2), about a microsecond, writes a slot. The slot
// survives a kill of the engine, but perhaps not a crash of the machine. For events that an earlier
// engine accepted, the slot is therefore also synced to disk. An event that crashes the machine has
// ended an engine by then, so at most one attempt of the event goes uncounted.
//
// attempts is safe for concurrent use.
type attempts struct {
	f *os.File

	mu    sync.Mutex
	slots map[attemptKey]*slot
	free  []int64 // slot numbers
	size  int64   // slots in the file, free ones included
	over  []endedSlot
}

// attemptKey is a kind of attempt, and a hash of the object (an event, a callback, a publication).
type attemptKey [16]byte

const (
	attemptEvent    = 'e'
	attemptCallback = 'c'
	attemptPublish  = 'p'
)

type slot struct {
	index int64
	count int
	state slotState
	found bool // read from the file, and no attempt begun since
}

// endedSlot is the slot of finished work. The slot is freed settleTime later: leftovers of the
// attempt may still end the engine before JetStream has written the acknowledgement.
type endedSlot struct {
	key attemptKey
	at  time.Time
}

const settleTime = time.Second

type slotState byte

const (
	slotRuns  slotState = 1 // an attempt runs or, in a file just opened, was broken off
	slotWaits slotState = 2 // the last attempt has ended, and another may follow
)

const (
	slotSize = 32
	maxCount = 1<<24 - 1
	// keepAttempts is how long an abandoned count is kept.
	keepAttempts = 30 * 24 * time.Hour
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keyOfMessage returns the key of a message in a queue or in a stream of callbacks.
func keyOfMessage(meta *jetstream.MsgMetadata) attemptKey {
	return keyOfQueued(meta.Stream, meta.Sequence.Stream, meta.Timestamp)
}

// keyOfQueued hashes the time too: a stream that is made anew reuses name and sequence numbers.
func keyOfQueued(stream string, seq uint64, at time.Time) attemptKey {
	kind := byte(attemptEvent)
	if k, _, _ := kindOf(stream); k == kindOrders {
		kind = attemptCallback
	}
	return keyOfText(kind, stream+"\x00"+strconv.FormatUint(seq, 10)+"\x00"+strconv.FormatInt(at.UnixNano(), 10))
}

func keyOfText(kind byte, s string) (key attemptKey) {
	sum := sha256.Sum256([]byte(s))
	copy(key[:], sum[:])
	key[0] = kind
	return key
}

// openAttempts reads the file that an earlier engine left, or creates the file. Slots that are
// damaged or older than keepAttempts become free.
func openAttempts(path string, now time.Time) (*attempts, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	a := &attempts{f: f, slots: map[attemptKey]*slot{}, size: int64(len(all) / slotSize)}
	for index := range a.size {
		key, s, begun, ok := readSlot(all[index*slotSize:][:slotSize])
		s.index, s.found = index, true
		if !ok || a.slots[key] != nil || now.Sub(begun) > keepAttempts {
			a.free = append(a.free, index)
			continue
		}
		a.slots[key] = &s
	}
	return a, nil
}

func appendSlot(b []byte, key attemptKey, s *slot, begun time.Time) []byte {
	b = append(b, key[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(begun.Unix())) //nolint:gosec // readSlot converts back
	b = binary.LittleEndian.AppendUint32(b, uint32(s.count)|uint32(s.state)<<24)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readSlot decodes a slot. ok is false for a free or damaged slot.
func readSlot(b []byte) (key attemptKey, s slot, begun time.Time, ok bool) {
	copy(key[:], b)
	word := binary.LittleEndian.Uint32(b[24:])
	s.count, s.state = int(word&maxCount), slotState(word>>24)
	begun = time.Unix(int64(binary.LittleEndian.Uint64(b[16:])), 0) //nolint:gosec // appendSlot wrote an int64
	whole := crc32.Checksum(b[:28], castagnoli) == binary.LittleEndian.Uint32(b[28:])
	return key, s, begun, whole && (s.state == slotRuns || s.state == slotWaits)
}

// begin counts an attempt in the file. With sync the count also survives a crash of the machine.
// begin returns the attempt's number among those of its key, from 1, and whether the end of an
// engine broke off the attempt before. After each begin the caller calls end or wait.
func (a *attempts) begin(key attemptKey, sync bool) (n int, broken bool, err error) {
	a.mu.Lock()
	a.freeLocked(time.Now())
	s := a.slots[key]
	if s == nil {
		s = &slot{index: a.size}
		if last := len(a.free) - 1; last >= 0 {
			s.index, a.free = a.free[last], a.free[:last]
		} else {
			a.size++
		}
		a.slots[key] = s
	}
	broken = s.found && s.state == slotRuns
	s.count, s.state, s.found = min(s.count+1, maxCount), slotRuns, false
	n = s.count
	now := *s
	a.mu.Unlock()
	if err = a.write(key, &now); err == nil && sync {
		err = unix.Fdatasync(int(a.f.Fd()))
	}
	if err != nil {
		err = fmt.Errorf("count the attempt in %s: %w", a.f.Name(), err)
	}
	return n, broken, err
}

// write writes a slot, without a.mu: a message has one attempt at a time (see hands).
func (a *attempts) write(key attemptKey, s *slot) error {
	var room [slotSize]byte
	_, err := a.f.WriteAt(appendSlot(room[:0], key, s, time.Now()), s.index*slotSize)
	return err
}

// wait notes that an attempt has ended, that n attempts count, and that another may follow.
func (a *attempts) wait(key attemptKey, n int) error {
	a.mu.Lock()
	s := a.slots[key]
	if s == nil { // another attempt with the same key has ended meanwhile
		a.mu.Unlock()
		return nil
	}
	s.count, s.state = n, slotWaits
	now := *s
	a.mu.Unlock()
	return a.write(key, &now)
}

// end notes that an attempt has ended, and that no other follows. A trigger may repeat a publication
// all the same, for example while the queue is full: its next attempt is the first again, because
// only attempts that ended an engine count.
func (a *attempts) end(key attemptKey) error {
	a.mu.Lock()
	s := a.slots[key]
	if s == nil { // as in wait
		a.mu.Unlock()
		return nil
	}
	s.state = slotWaits
	if key[0] == attemptPublish {
		s.count = 0
	}
	now := *s
	a.over = append(a.over, endedSlot{key, time.Now()})
	a.mu.Unlock()
	return a.write(key, &now)
}

// freeLocked frees the slots of work that ended settleTime ago and has not begun again.
func (a *attempts) freeLocked(now time.Time) {
	n := 0
	for ; n < len(a.over) && now.Sub(a.over[n].at) >= settleTime; n++ {
		if s := a.slots[a.over[n].key]; s != nil && s.state != slotRuns {
			a.dropLocked(a.over[n].key, s)
		}
	}
	if a.over = a.over[n:]; len(a.over) == 0 {
		a.over = nil
	}
}

func (a *attempts) dropLocked(key attemptKey, s *slot) {
	delete(a.slots, key)
	a.free = append(a.free, s.index)
}

// prune forgets events from an earlier engine that are no longer in any queue.
func (a *attempts) prune(queued map[attemptKey]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, s := range a.slots {
		if s.found && key[0] == attemptEvent && !queued[key] {
			a.dropLocked(key, s)
		}
	}
}

// Close closes the file.
func (a *attempts) Close() error { return a.f.Close() }
