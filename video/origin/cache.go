package origin

import (
	"container/list"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/api"
)

// errBusy reports that the queue of segments and playlists to make is full.
var errBusy = &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeOverloaded, Message: "too many segments and playlists are being made", Next: "ask again in 1 s"}

// errFull reports that segments in use take all the memory of the cache.
var errFull = &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeOverloaded, Message: "the segments that are being sent leave no memory for another", Next: "ask again in 1 s"}

// cache makes segments on demand, each only once at a time, and keeps the most recently used in
// files in memory, from which the kernel sends. All files together take at most c.most bytes,
// including files dropped from the cache but still in use. Idle files make room for a new
// segment. Files in use do not: then the new segment is refused. A segment larger than c.most is
// made while no other file exists, and is not kept. Bytes in socket buffers do not count. Its
// methods are safe for concurrent use.
type cache struct {
	most   int64        // bytes
	admit  func() error // refuses a new segment when memory is short
	makers *makers

	mu    sync.Mutex
	made  map[string]*made // by tag: kept segments, and segments being made
	idle  list.List        // of *made: kept and unused segments, the most recently used in front
	bytes int64            // of the pages of all files, kept or not
}

// made is a segment, ready or being made.
type made struct {
	tag   string
	ready chan struct{} // closed once the fields below are set
	file  *os.File
	size  int64
	err   error

	// Guarded by the cache's mutex.
	bytes int64         // of the file's pages
	place *list.Element // in idle; nil: in use, or not kept
	users int           // exchanges waiting for the file or sending it
}

func newCache(most int64, places int, admit func() error) *cache {
	return &cache{most: most, admit: admit, makers: newMakers(places, admission.QueueConfig{Target: 200 * time.Millisecond, Interval: time.Second}), made: map[string]*made{}}
}

// maker makes a segment.
type maker interface {
	// open reads the input and returns the most bytes of the result. The caller calls close even
	// if open fails.
	open() (most int64, err error)
	append(dst []byte) ([]byte, error)
	close() error
}

// get returns the segment of an entity tag; by makes the segment if the cache lacks it. The
// caller releases the result. Errors are errBusy, errFull, and errors of admit and by.
func (c *cache) get(tag string, by maker) (*made, error) {
	c.mu.Lock()
	m := c.made[tag]
	if m != nil {
		m.users++
		if m.place != nil {
			c.idle.Remove(m.place)
			m.place = nil
		}
		c.mu.Unlock()
		<-m.ready
	} else {
		m = &made{tag: tag, ready: make(chan struct{}), users: 1}
		c.made[tag] = m
		c.mu.Unlock()
		if m.err = c.admit(); m.err == nil {
			m.err = c.makers.enter()
		}
		if m.err == nil {
			began := time.Now()
			m.file, m.size, m.err = c.makeFile(m, by)
			c.makers.leave(time.Since(began))
		}
		c.settle(m)
		close(m.ready)
	}
	if m.err != nil {
		c.release(m)
		return nil, m.err
	}
	return m, nil
}

// pages returns the memory of a file of a size, in bytes of whole pages.
func pages(bytes int64) int64 {
	page := int64(os.Getpagesize())
	return (bytes + page - 1) / page * page
}

// reserve takes memory for a segment to be made, and drops idle segments if necessary. The error
// is errFull.
func (c *cache) reserve(m *made, bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := pages(bytes)
	for c.bytes > 0 && c.bytes+n > c.most {
		last := c.idle.Back()
		if last == nil {
			return errFull
		}
		c.forgetLocked(last.Value.(*made)) // idle holds *made only
	}
	c.bytes += n
	m.bytes = n
	return nil
}

// settle returns the unused part of a reservation. A failed or oversized segment is dropped.
func (c *cache) settle(m *made) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := int64(0)
	if m.err == nil {
		taken = pages(m.size)
	}
	c.bytes += taken - m.bytes
	m.bytes = taken
	if m.err != nil || m.bytes > c.most {
		c.forgetLocked(m)
	}
}

// forgetLocked drops m from the cache. Exchanges in progress still send the file.
func (c *cache) forgetLocked(m *made) {
	if c.made[m.tag] == m {
		delete(c.made, m.tag)
	}
	if m.place != nil {
		c.idle.Remove(m.place)
		m.place = nil
		c.closeLocked(m)
	}
}

// closeLocked closes the file and frees its memory.
func (c *cache) closeLocked(m *made) {
	if m.file != nil {
		_ = m.file.Close() // a file in memory
	}
	c.bytes -= m.bytes
}

// release ends a use of m.
func (c *cache) release(m *made) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.users--; {
	case m.users > 0:
	case c.made[m.tag] == m:
		m.place = c.idle.PushFront(m)
	default:
		c.closeLocked(m)
	}
}

// drop drops the segments whose tags gone accepts. A nil gone accepts all.
func (c *cache) drop(gone func(tag string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tag, m := range c.made {
		if gone == nil || gone(tag) {
			c.forgetLocked(m)
		}
	}
}

// makeFile returns a file in memory with the segment that by makes.
func (c *cache) makeFile(m *made, by maker) (file *os.File, length int64, err error) {
	defer func() {
		if err != nil && file != nil {
			err = errors.Join(err, file.Close())
			file = nil
		}
	}()
	// by reads a mapped file: a disk error is a memory fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("a segment's file cannot be read, or is shorter than it was: %v", p)
		default: // other goroutines wait for the segment and the slot
			err = fmt.Errorf("a segment cannot be made: %v\n%s", p, debug.Stack())
		}
	}()
	defer func() { err = errors.Join(err, by.close()) }()
	most, err := by.open()
	if err == nil {
		err = c.reserve(m, most)
	}
	if err != nil {
		return nil, 0, err
	}
	fd, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, 0, os.NewSyscallError("memfd_create", err)
	}
	file = os.NewFile(uintptr(fd), "segment")
	length, err = fill(file, most, by)
	return file, length, err
}

// fill has by write into file and returns the file's size.
func fill(file *os.File, most int64, by maker) (n int64, err error) {
	if err := file.Truncate(most); err != nil {
		return 0, err
	}
	dst, err := unix.Mmap(int(file.Fd()), 0, int(most), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(dst))) }()
	b, err := by.append(dst[:0])
	if err != nil {
		return 0, err
	}
	if n = int64(len(b)); n > most || n == 0 || &b[0] != &dst[0] {
		return 0, fmt.Errorf("a segment of %d bytes was to have %d at most", n, most)
	}
	return n, file.Truncate(n)
}

// makers bounds how many segments and playlists are made at a time. The rest wait in a queue.
type makers struct {
	mu      sync.Mutex
	places  int
	busy    int
	waiting []chan struct{} // first in, first out; closed by the previous holder of the slot
	queue   admission.Queue
}

func newMakers(places int, cfg admission.QueueConfig) *makers {
	return &makers{places: places, queue: admission.NewQueue(cfg)}
}

// enter takes a slot, or waits for a free slot. The error is errBusy.
func (m *makers) enter() error {
	m.mu.Lock()
	if m.busy < m.places {
		m.busy++
		m.queue.Clear()
		m.mu.Unlock()
		return nil
	}
	if m.queue.Full(len(m.waiting), m.places) != "" {
		m.mu.Unlock()
		return errBusy
	}
	turn := make(chan struct{})
	m.waiting = append(m.waiting, turn)
	m.mu.Unlock()
	began := time.Now()
	<-turn
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue.Served(time.Now(), time.Since(began))
	return nil
}

// leave frees a slot after a use of duration kept.
func (m *makers) leave(kept time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue.Kept(kept)
	if len(m.waiting) == 0 {
		m.busy--
		return
	}
	close(m.waiting[0])
	m.waiting = append(m.waiting[:0], m.waiting[1:]...)
}
