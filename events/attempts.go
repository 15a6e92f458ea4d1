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

// attempts counts, in a file, the attempts of events, callbacks and triggers: each before it
// begins, so that one that ends the engine counts. The file is a table of slots of 32 bytes:
//
//	key       16 bytes  what is tried: a kind, and a hash
//	begun      8 bytes  when its last attempt began, in seconds since 1970
//	attempts   3 bytes  begun so far
//	state      1 byte   slotRuns or slotWaits; 0 in a slot that was never used
//	crc        4 bytes  CRC-32C of what is before it
//
// JetStream counts deliveries too, but writes its count up to 100 ms after a delivery, and counts
// those that begin no attempt. A slot is written by one pwrite(2), about a microsecond. A kill of
// the engine leaves what was written; the end of the machine need not. So what an engine before
// this one has taken on is synced to disk as well: an event that ends the machine has ended an
// engine by then, and at most one of its attempts does not count.
//
// It is safe for concurrent use.
type attempts struct {
	f *os.File

	mu    sync.Mutex
	slots map[attemptKey]*slot
	free  []int64 // places in the file
	size  int64   // places in the file, free ones too
	over  []endedSlot
}

// attemptKey is a kind of attempt, and a hash of what is tried.
type attemptKey [16]byte

const (
	attemptEvent    = 'e'
	attemptCallback = 'c'
	attemptPublish  = 'p'
)

type slot struct {
	place int64
	count int
	state slotState
	found bool // in the file, and not begun since
}

// endedSlot is a slot of what is tried no more. It is free settleTime later: whatever the attempt
// has left behind may end the engine before JetStream has written the acknowledgement.
type endedSlot struct {
	key attemptKey
	at  time.Time
}

const settleTime = time.Second

type slotState byte

const (
	slotRuns  slotState = 1 // an attempt is under way; in a file that is opened: an engine's end has broken it off
	slotWaits slotState = 2 // the last attempt has ended, and there may be another one
)

const (
	slotSize = 32
	maxCount = 1<<24 - 1
	// keepAttempts is how long a count is kept of what nobody tries any more.
	keepAttempts = 30 * 24 * time.Hour
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keyOfMessage is the key of a message of a queue, or of the stream of callbacks.
func keyOfMessage(meta *jetstream.MsgMetadata) attemptKey {
	return keyOfQueued(meta.Stream, meta.Sequence.Stream, meta.Timestamp)
}

// keyOfQueued tells streams of one name apart by the time: one that was made anew counts from 1.
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

// openAttempts reads the file that an engine before this one has left, or makes it. Slots that
// are not whole are free.
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
	for place := range a.size {
		key, s, begun, ok := readSlot(all[place*slotSize:][:slotSize])
		s.place, s.found = place, true
		if !ok || a.slots[key] != nil || now.Sub(begun) > keepAttempts {
			a.free = append(a.free, place)
			continue
		}
		a.slots[key] = &s
	}
	return a, nil
}

func appendSlot(b []byte, key attemptKey, s *slot, begun time.Time) []byte {
	b = append(b, key[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(begun.Unix())) //nolint:gosec // read back as it was
	b = binary.LittleEndian.AppendUint32(b, uint32(s.count)|uint32(s.state)<<24)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readSlot reads a slot; false where it is free or not whole.
func readSlot(b []byte) (key attemptKey, s slot, begun time.Time, ok bool) {
	copy(key[:], b)
	word := binary.LittleEndian.Uint32(b[24:])
	s.count, s.state = int(word&maxCount), slotState(word>>24)
	begun = time.Unix(int64(binary.LittleEndian.Uint64(b[16:])), 0) //nolint:gosec // likewise
	whole := crc32.Checksum(b[:28], castagnoli) == binary.LittleEndian.Uint32(b[28:])
	return key, s, begun, whole && (s.state == slotRuns || s.state == slotWaits)
}

// begin counts an attempt, on disk before it returns, with sync even if the machine ends. It
// returns which attempt of its key this is, 1 for the first, and whether the one before it was
// broken off by an engine's end. Each begin is followed by end, or by wait.
func (a *attempts) begin(key attemptKey, sync bool) (n int, broken bool, err error) {
	a.mu.Lock()
	a.freeLocked(time.Now())
	s := a.slots[key]
	if s == nil {
		s = &slot{place: a.size}
		if last := len(a.free) - 1; last >= 0 {
			s.place, a.free = a.free[last], a.free[:last]
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

// write writes a slot that the caller alone writes: nobody begins what is under way.
func (a *attempts) write(key attemptKey, s *slot) error {
	var room [slotSize]byte
	_, err := a.f.WriteAt(appendSlot(room[:0], key, s, time.Now()), s.place*slotSize)
	return err
}

// wait notes that an attempt has ended, n of them count, and there may be another one.
func (a *attempts) wait(key attemptKey, n int) error {
	a.mu.Lock()
	s := a.slots[key]
	if s == nil { // another one of the key has ended meanwhile
		a.mu.Unlock()
		return nil
	}
	s.count, s.state = n, slotWaits
	now := *s
	a.mu.Unlock()
	return a.write(key, &now)
}

// end notes that an attempt has ended, and that there will be no other one.
func (a *attempts) end(key attemptKey) error {
	a.mu.Lock()
	s := a.slots[key]
	if s == nil { // likewise
		a.mu.Unlock()
		return nil
	}
	s.state = slotWaits
	now := *s
	a.over = append(a.over, endedSlot{key, time.Now()})
	a.mu.Unlock()
	return a.write(key, &now)
}

// freeLocked frees the slots of what has ended for a while, unless it was begun again.
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
	a.free = append(a.free, s.place)
}

// prune forgets the events that were found in the file and are in no queue.
func (a *attempts) prune(queued map[attemptKey]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, s := range a.slots {
		if s.found && key[0] == attemptEvent && !queued[key] {
			a.dropLocked(key, s)
		}
	}
}

func (a *attempts) close() error { return a.f.Close() }
