// Package ring carries records between two processes through shared memory: one [Producer], one
// [Consumer], records of any size, no copy and, while both sides are busy, no system call. The
// design is for pipelines of functions (frames, packets); docs/calls.md has the measurements. In
// contrast to package buffer, the memory belongs to two processes that do not trust each other.
//
// The memory is a memfd with a sealed size: a header, then the data, whose size is a power of two.
//
//	   0  magic
//	  64  head       bytes ever committed; only the producer writes
//	 128  tail       bytes ever released; only the consumer writes
//	 192  sleeps     1 while the producer sleeps, waiting for room
//	 256  sleeps     1 while the consumer sleeps, waiting for a record
//	4096  data       records, each at a multiple of 8:
//	                   length, 8 bytes in the machine's order, then the record's bytes;
//	                   a length of all ones: the next record is at the start of the data
//
// Each side keeps its index privately and publishes copies, so the cache line of an index has one
// writer. A side without work sets its word sleeps, checks again, and waits at its end of a socket
// pair, the bell. The peer moves its index, then rings the bell if the word is set:
//
//	producer                        consumer
//	                                sleeps = 1
//	                                head unchanged? then wait at the bell
//	head = …
//	sleeps was 1? sleeps = 0, ring  → awake
//
// The bell is a socket pair because an eventfd would let a hostile peer block a thread for good:
// O_NONBLOCK is a flag of the open file, which both sides would share, and the peer could clear
// the flag. For a socket, each call can ask not to wait (MSG_DONTWAIT). A socket also reports
// that the peer has closed its end.
//
// # A hostile peer
//
// The peer may write any bytes anywhere in the memory at any time. The package reads each index
// and length once, checks the range, and otherwise fails with [ErrCorrupt]. The capacity comes
// from the size of the file. A hostile peer can therefore only send wrong records, wake a waiter
// for no reason, and stay silent until the caller's context ends. The bytes of a record can change
// while the caller reads them: a caller that relies on a check of a record must first copy the
// record. The peer can also punch holes into the memory's file. The pages come back as zeros,
// charged to the process that touches them.
//
// # Sending records on
//
// [Consumer.Forward] copies into the socket (writev). Never send a ring's memory with sendfile,
// splice or MSG_ZEROCOPY: these calls queue references to the pages, and the receiver then reads
// the bytes of later records. TestSpliced shows the effect.
package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// The bounds of a ring's capacity, in bytes.
const (
	MinCapacity = 4 << 10
	MaxCapacity = 1 << 30
)

const (
	magic = 0x31676e6972657266 // "ferring1"

	headAt          = 64
	tailAt          = 128
	producerSleepAt = 192
	consumerSleepAt = 256
	dataAt          = 4096

	align     = 8
	lengthLen = 8
	skip      = ^uint64(0) // as a length: continue at the start of the data

	seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// Errors of both sides. All except ErrFull, ErrEmpty and ErrTooLarge are permanent.
var (
	ErrFull     = errors.New("the ring is full")
	ErrEmpty    = errors.New("the ring is empty")
	ErrTooLarge = errors.New("the record is larger than half of the ring")
	ErrCorrupt  = errors.New("the ring is corrupt: the other side does not keep to its rules")
	ErrGone     = errors.New("the other side of the ring is gone")
	ErrClosed   = errors.New("the ring is closed")
	ErrFiles    = errors.New("not the files of a ring")
)

// Files are the files of one side of a ring, before use. The owner closes both, or passes
// ownership to [NewProducer] or [NewConsumer].
type Files struct {
	Memory *os.File // a memfd, sealed
	Bell   *os.File // one end of a socket pair
}

// Close closes both files.
func (f Files) Close() error { return errors.Join(f.Memory.Close(), f.Bell.Close()) }

// Create creates a ring. capacity is the number of bytes for records and their lengths, rounded up
// to a power of two. The largest record has half the capacity less 8 bytes. Create allocates all
// the memory at once, charged to the caller's cgroup.
func Create(capacity int) (producer, consumer Files, err error) {
	if capacity > MaxCapacity {
		return Files{}, Files{}, fmt.Errorf("create a ring of %d bytes: more than %d", capacity, MaxCapacity)
	}
	size := int64(dataAt + 1<<bits.Len(uint(max(capacity, MinCapacity)-1)))
	fds := make([]int, 0, 4)
	defer func() {
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			err = fmt.Errorf("create a ring of %d bytes: %w", capacity, err)
		}
	}()
	memory, err := unix.MemfdCreate("fre-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		memory, err = unix.MemfdCreate("fre-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return Files{}, Files{}, err
	}
	fds = append(fds, memory)
	if err := unix.Fallocate(memory, 0, 0, size); err != nil {
		return Files{}, Files{}, err
	}
	if _, err := unix.Pwrite(memory, binary.NativeEndian.AppendUint64(nil, magic), 0); err != nil {
		return Files{}, Files{}, err
	}
	if _, err := unix.FcntlInt(uintptr(memory), unix.F_ADD_SEALS, seals); err != nil {
		return Files{}, Files{}, err
	}
	again, err := unix.FcntlInt(uintptr(memory), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return Files{}, Files{}, err
	}
	fds = append(fds, again)
	bell, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return Files{}, Files{}, err
	}
	return Files{os.NewFile(uintptr(memory), "ring"), os.NewFile(uintptr(bell[0]), "bell")},
		Files{os.NewFile(uintptr(again), "ring"), os.NewFile(uintptr(bell[1]), "bell")}, nil
}

// end holds the common fields of Producer and Consumer.
type end struct {
	memory *os.File
	bell   *os.File
	raw    syscall.RawConn // of the bell
	mem    []byte
	data   []byte
	mask   uint64

	head, tail   *atomic.Uint64
	mine, theirs *atomic.Uint64 // words sleeps: of this side, of the peer
	gone         bool           // the peer has closed its end of the bell
	broken       error          // permanent
	scratch      [64]byte
	received     error // by the last recvfrom from the bell
}

// open checks the files and maps the memory. The size must be sealed: access beyond the end of a
// truncated file raises SIGBUS.
func open(f Files) (e end, err error) {
	memory, err := f.Memory.SyscallConn()
	if err != nil {
		return end{}, err
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	var mem []byte
	var fault error
	err = memory.Control(func(raw uintptr) {
		fd := int(raw)
		// hugetlbfs has seals too, but a lack of huge pages raises SIGBUS.
		if fault = errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); fault != nil {
			return
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
			fault = fmt.Errorf("%w: its memory is no memfd", ErrFiles)
			return
		}
		got, err := unix.FcntlInt(raw, unix.F_GET_SEALS, 0)
		if err != nil || got&seals != seals {
			fault = fmt.Errorf("%w: the size of its memory is not sealed", ErrFiles)
			return
		}
		capacity := st.Size - dataAt
		if capacity < MinCapacity || capacity > MaxCapacity || capacity&(capacity-1) != 0 {
			fault = fmt.Errorf("%w: %d bytes of memory", ErrFiles, st.Size)
			return
		}
		if mem, err = unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			fault = fmt.Errorf("map a ring: %w", err)
		}
	})
	if err := errors.Join(err, fault); err != nil {
		return end{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Munmap(mem))
		}
	}()
	if linux.SharedUint64(mem, 0).Load() != magic {
		return end{}, fmt.Errorf("%w: its memory has another beginning", ErrFiles)
	}
	raw, err := f.Bell.SyscallConn()
	if err != nil {
		return end{}, err
	}
	err = raw.Control(func(fd uintptr) {
		if domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_UNIX {
			fault = fmt.Errorf("%w: its bell is no Unix socket", ErrFiles)
		}
	})
	if err := errors.Join(err, fault); err != nil {
		return end{}, err
	}
	if err := f.Bell.SetReadDeadline(time.Time{}); err != nil {
		return end{}, fmt.Errorf("%w: its bell: %w", ErrFiles, err) // not opened for the poller
	}
	return end{
		memory: f.Memory, bell: f.Bell, raw: raw, mem: mem, data: mem[dataAt:], mask: uint64(len(mem) - dataAt - 1),
		head: linux.SharedUint64(mem, headAt), tail: linux.SharedUint64(mem, tailAt),
	}, nil
}

// Capacity returns the number of bytes for records and their lengths.
func (e *end) Capacity() int { return len(e.data) }

// MaxRecord returns the size of the largest record in bytes.
func (e *end) MaxRecord() int { return len(e.data)/2 - lengthLen }

// Close unmaps the ring and closes its files; the peer notices. The caller must not use slices of
// the ring afterwards. No call may be under way: end its context first.
func (e *end) Close() error {
	if e.mem == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(e.mem), e.memory.Close(), e.bell.Close())
	e.mem, e.data = nil, nil
	e.broken = ErrClosed
	return err
}

// fail records a permanent error.
func (e *end) fail(err error) error {
	e.broken = err
	return err
}

// word returns the word with a record's length.
func (e *end) word(at uint64) *atomic.Uint64 {
	return linux.SharedUint64(e.data, int(at&e.mask))
}

// ring wakes the peer if the peer sleeps. ring ignores errors of send: a full socket is ringing
// already, and wait will notice a closed one.
func (e *end) ring() {
	if e.theirs.Load() == 0 || e.theirs.Swap(0) == 0 {
		return
	}
	_ = e.raw.Control(func(fd uintptr) {
		_ = unix.Send(int(fd), e.scratch[:1], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// wait returns nil after the peer has rung the bell, maybe for no reason, or closed its end (then
// wait sets gone). If ctx ends first, wait returns the cause of ctx.
func (e *end) wait(ctx context.Context) error {
	for {
		if err := e.bell.SetReadDeadline(time.Time{}); err != nil {
			return fmt.Errorf("wait for a ring: %w", err)
		}
		stop := context.AfterFunc(ctx, func() { _ = e.bell.SetReadDeadline(time.Unix(1, 0)) })
		n := 0
		err := e.raw.Read(func(fd uintptr) bool {
			n, _, e.received = unix.Recvfrom(int(fd), e.scratch[:], unix.MSG_DONTWAIT)
			return !errors.Is(e.received, unix.EAGAIN)
		})
		stop()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded): // set late by an earlier ctx
			continue
		case err != nil:
			return fmt.Errorf("wait for a ring: %w", err)
		case errors.Is(e.received, unix.EINTR):
			continue
		case e.received != nil || n == 0:
			e.gone = true
		}
		return nil
	}
}

// await calls ready until the result is neither ErrFull nor ErrEmpty, and sleeps between calls.
// After the peer has closed its end, await returns ErrGone instead of a sleep.
func (e *end) await(ctx context.Context, ready func() error) error {
	for {
		err := ready()
		if !errors.Is(err, ErrFull) && !errors.Is(err, ErrEmpty) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if e.gone {
			return e.fail(ErrGone)
		}
		e.mine.Store(1)
		if err = ready(); errors.Is(err, ErrFull) || errors.Is(err, ErrEmpty) {
			err = e.wait(ctx)
			e.mine.Store(0)
			if err != nil {
				return err
			}
			continue
		}
		e.mine.Store(0)
		return err
	}
}

// within reports whether an index from the peer is possible: not behind the earlier value was, not
// beyond limit, and between two records.
func within(index, was, limit uint64) bool {
	return index-was <= limit-was && index%align == 0
}
