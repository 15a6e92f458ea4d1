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

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/admission"
)

// errBusy says that too many wait already for segments or playlists to be made.
var errBusy = &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeOverloaded, Message: "too many segments and playlists are being made", Next: "ask again in 1 s"}

// errFull says that what is made and sent already takes all the memory there is for it.
var errFull = &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeOverloaded, Message: "the segments that are being sent leave no memory for another", Next: "ask again in 1 s"}

// cache has segments made when they are asked for, each by one at a time, and keeps them in
// files in memory, of which the kernel sends: those that were asked for last, as far as they
// have room. All that are there have no more than that together: what nobody is sent any more
// makes room for others, and what is being sent does not, kept or not, so that others are
// refused. One that is larger is made alone. What a socket has taken is the socket's. Its
// methods may be called from several goroutines.
type cache struct {
	most   int64        // bytes
	admit  func() error // whether there is memory for another
	makers *makers

	mu    sync.Mutex
	made  map[string]*made // those that are kept, and those being made
	idle  list.List        // of *made that are kept and nobody uses, the one used last in front
	bytes int64            // of the pages of all, those that are not kept included
}

// made is a segment that has been made, or is being so.
type made struct {
	tag   string
	ready chan struct{} // closed once the following are set
	file  *os.File
	size  int64
	err   error

	// Below the cache's lock.
	bytes int64         // of its pages
	place *list.Element // nil: it is used, or not kept
	users int           // who wait for it or send of it
}

func newCache(most int64, places int, admit func() error) *cache {
	return &cache{most: most, admit: admit, makers: newMakers(places, admission.QueueConfig{Target: 200 * time.Millisecond, Interval: time.Second}), made: map[string]*made{}}
}

// maker makes a segment.
type maker interface {
	// open reads what it is made of, and returns how many bytes it has at most; close
	// follows, whatever open returns.
	open() (most int64, err error)
	append(dst []byte) ([]byte, error)
	close() error
}

// get is what has the entity tag, which by makes if it is not there. The caller releases it,
// unless there is an error: errBusy, errFull, admit's, or by's.
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

// pages is how many bytes of memory a file of so many takes.
func pages(bytes int64) int64 {
	page := int64(os.Getpagesize())
	return (bytes + page - 1) / page * page
}

// reserve takes memory for what is being made, which others lose. The error is errFull.
func (c *cache) reserve(m *made, bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := pages(bytes)
	for c.bytes > 0 && c.bytes+n > c.most {
		last := c.idle.Back()
		if last == nil {
			return errFull
		}
		c.forgetLocked(last.Value.(*made)) // the list has nothing else
	}
	c.bytes += n
	m.bytes = n
	return nil
}

// settle gives back what was reserved and is not needed, and keeps what has been made and has
// room.
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

// forgetLocked keeps something no longer. Who sends of it goes on.
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

// closeLocked gives the memory back.
func (c *cache) closeLocked(m *made) {
	if m.file != nil {
		_ = m.file.Close() // memory
	}
	c.bytes -= m.bytes
}

// release ends a use.
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

// drop forgets those whose tags gone says are of no use any more; nil says so of all.
func (c *cache) drop(gone func(tag string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tag, m := range c.made {
		if gone == nil || gone(tag) {
			c.forgetLocked(m)
		}
	}
}

// makeFile is a file in memory with what by makes.
func (c *cache) makeFile(m *made, by maker) (file *os.File, length int64, err error) {
	defer func() {
		if err != nil && file != nil {
			err = errors.Join(err, file.Close())
			file = nil
		}
	}()
	// What it is made of is mapped: a disk that fails is a fault of memory.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("a segment's file cannot be read, or is shorter than it was: %v", p)
		default: // others wait for what is made, and for the place
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

// fill has by write into a file, and returns how many bytes that has then.
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

// makers are places for those who make segments or playlists, and those who wait for one.
type makers struct {
	mu      sync.Mutex
	places  int
	busy    int
	waiting []chan struct{} // the first in front; closed by who gives a place
	queue   admission.Queue
}

func newMakers(places int, cfg admission.QueueConfig) *makers {
	return &makers{places: places, queue: admission.NewQueue(cfg)}
}

// enter takes a place, and waits for one. The error is errBusy.
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

// leave gives a place back that was kept for so long.
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
