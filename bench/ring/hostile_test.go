package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/linux"
)

// attacker maps a ring as a peer that keeps no rules.
func attacker(t testing.TB, f *os.File) []byte {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var mem []byte
	var failed error
	err = raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		if failed = unix.Fstat(int(fd), &st); failed == nil {
			mem, failed = unix.Mmap(int(fd), 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// A file that is no ring is refused and closed.
func TestRefusedFiles(t *testing.T) {
	fretest.CheckLeaks(t)
	memfd := func(size int64, seal int, content []byte) *os.File {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "memory")
		if _, err := f.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
			t.Fatal(err)
		}
		return f
	}
	good := binary.NativeEndian.AppendUint64(nil, magic)
	indices := func(head, tail uint64) []byte {
		b := append(make([]byte, 0, dataAt), good...)
		b = b[:dataAt]
		binary.NativeEndian.PutUint64(b[headAt:], head)
		binary.NativeEndian.PutUint64(b[tailAt:], tail)
		return b
	}
	const size = dataAt + MinCapacity
	cases := map[string]struct {
		memory func() (*os.File, error)
		want   error
	}{
		"a file":             {func() (*os.File, error) { return os.Create(filepath.Join(t.TempDir(), "f")) }, ErrFiles},
		"a directory":        {func() (*os.File, error) { return os.Open(t.TempDir()) }, ErrFiles},
		"a device":           {func() (*os.File, error) { return os.OpenFile("/dev/zero", os.O_RDWR, 0) }, ErrFiles},
		"a pipe":             {func() (*os.File, error) { r, w, err := os.Pipe(); _ = w.Close(); return r, err }, ErrFiles},
		"not sealed":         {func() (*os.File, error) { return memfd(size, 0, good), nil }, ErrFiles},
		"may shrink":         {func() (*os.File, error) { return memfd(size, unix.F_SEAL_GROW|unix.F_SEAL_SEAL, good), nil }, ErrFiles},
		"read only":          {func() (*os.File, error) { return memfd(size, seals|unix.F_SEAL_WRITE, good), nil }, unix.EPERM},
		"empty":              {func() (*os.File, error) { return memfd(0, seals, nil), nil }, ErrFiles},
		"too small":          {func() (*os.File, error) { return memfd(size/2, seals, good), nil }, ErrFiles},
		"good":               {func() (*os.File, error) { return memfd(size+4096, seals, good), nil }, nil},
		"no power of two":    {func() (*os.File, error) { return memfd(size+8192, seals, good), nil }, ErrFiles},
		"too large":          {func() (*os.File, error) { return memfd(dataAt+2*MaxCapacity, seals, good), nil }, ErrFiles},
		"of another kind":    {func() (*os.File, error) { return memfd(size, seals, []byte("fregninr")), nil }, ErrFiles},
		"with a far head":    {func() (*os.File, error) { return memfd(size, seals, indices(MinCapacity+8, 0)), nil }, ErrCorrupt},
		"with an odd head":   {func() (*os.File, error) { return memfd(size, seals, indices(9, 0)), nil }, ErrCorrupt},
		"with an odd tail":   {func() (*os.File, error) { return memfd(size, seals, indices(16, 9)), nil }, ErrCorrupt},
		"with a head behind": {func() (*os.File, error) { return memfd(size, seals, indices(8, 16)), nil }, ErrCorrupt},
	}
	for name, c := range cases {
		for side, open := range map[string]func(f Files) (io.Closer, error){
			"producer": func(f Files) (io.Closer, error) { return NewProducer(f) },
			"consumer": func(f Files) (io.Closer, error) { return NewConsumer(f) },
		} {
			_, theirs, err := Create(MinCapacity)
			if err != nil {
				t.Fatal(err)
			}
			_ = theirs.Memory.Close()
			memory, err := c.memory()
			if err != nil {
				t.Fatal(err)
			}
			got, err := open(Files{memory, theirs.Bell})
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: got %v, want %v", name, side, err, c.want)
			}
			if err == nil {
				_ = got.Close()
			}
		}
	}
	mine, theirs, err := Create(MinCapacity)
	if err != nil {
		t.Fatal(err)
	}
	for name, bell := range map[string]func() (*os.File, error){
		"a file": func() (*os.File, error) { return os.Create(filepath.Join(t.TempDir(), "f")) },
		"a pipe": func() (*os.File, error) { r, w, err := os.Pipe(); _ = w.Close(); return r, err },
	} {
		b, err := bell()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := Create(MinCapacity)
		if err != nil {
			t.Fatal(err)
		}
		_ = again.Bell.Close()
		if _, err := NewProducer(Files{again.Memory, b}); !errors.Is(err, ErrFiles) {
			t.Errorf("%s for a bell: got %v", name, err)
		}
	}
	_, _ = mine.Close(), theirs.Close()
}

// A message with another number of files than two is refused.
func TestReceive(t *testing.T) {
	fretest.CheckLeaks(t)
	theirs, ours := fretest.SocketPair(t, unix.SOCK_STREAM)
	for _, n := range []int{0, 1, 3, 8, 20, 200} {
		rights := make([]int, n)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rights {
			rights[i] = int(null.Fd())
		}
		var control []byte
		if n > 0 {
			control = unix.UnixRights(rights...)
		}
		if _, _, err := theirs.WriteMsgUnix([]byte{0}, control, nil); err != nil {
			t.Fatal(err)
		}
		_ = null.Close()
		if _, err := Receive(ours); !errors.Is(err, ErrFiles) {
			t.Errorf("%d files: %v", n, err)
		}
	}
	_ = theirs.Close()
	if _, err := Receive(ours); err == nil {
		t.Error("from one who is gone: no error")
	}
}

// Each impossible index is an error.
func TestCorruptIndices(t *testing.T) {
	for name, c := range map[string]struct {
		at    int
		value func(head, tail uint64) uint64
	}{
		"head beyond capacity": {headAt, func(_, tail uint64) uint64 { return tail + MinCapacity + 8 }},
		"head far beyond":      {headAt, func(_, tail uint64) uint64 { return tail - 1<<63 }},
		"head before tail":     {headAt, func(_, tail uint64) uint64 { return tail - 8 }},
		"head between records": {headAt, func(head, _ uint64) uint64 { return head + 4 }},
		"tail beyond head":     {tailAt, func(head, _ uint64) uint64 { return head + 8*MinCapacity }},
		"tail before itself":   {tailAt, func(_, tail uint64) uint64 { return tail - 8 }},
		"tail between records": {tailAt, func(_, tail uint64) uint64 { return tail + 4 }},
	} {
		p, r := newRing(t, MinCapacity)
		for range 2 { // away from the beginning
			if err := p.Put(t.Context(), make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Peek(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.Release(1)
		}
		if _, err := p.TryReserve(1); err != nil {
			t.Fatal(err)
		}
		p.Commit(1)
		p.released = p.tail.Load() // both sides have read the indices
		mem := attacker(t, p.memory)
		linux.SharedUint64(mem, c.at).Store(c.value(p.head.Load(), p.tail.Load()))
		var err error
		if c.at == headAt {
			_, err = r.TryPeek(2)
		} else {
			for err == nil {
				if _, err = p.TryReserve(1000); err == nil {
					p.Commit(1000)
				}
			}
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A peer that writes all over the memory causes only errors and wrong bytes, and no wait outlasts
// its context.
func TestScribbler(t *testing.T) {
	fretest.CheckLeaks(t)
	seed := fretest.Rand(t)
	for range 20 {
		forP, forC, err := Create(MinCapacity)
		if err != nil {
			t.Fatal(err)
		}
		mem := attacker(t, forP.Memory)
		p, err := NewProducer(forP)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewConsumer(forC)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		var stop atomic.Bool
		var wg, attack sync.WaitGroup
		r := rand.New(rand.NewPCG(seed.Uint64(), 0))
		attack.Go(func() {
			for !stop.Load() {
				at := 8 * r.IntN(len(mem)/8)
				if r.IntN(2) == 0 {
					at = []int{headAt, tailAt, producerSleepAt, consumerSleepAt}[r.IntN(4)]
				}
				word := linux.SharedUint64(mem, at)
				switch r.IntN(4) {
				case 0:
					word.Store(r.Uint64())
				case 1:
					word.Store(skip)
				case 2:
					word.Add(uint64(8 * (r.IntN(64) - 32)))
				case 3:
					word.Store(r.Uint64N(MinCapacity))
				}
			}
		})
		ok := func(err error) bool {
			return err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrGone) || errors.Is(err, io.EOF)
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				b, err := p.Reserve(ctx, 100)
				if err != nil {
					if !ok(err) {
						t.Error(err)
					}
					return
				}
				fill(b, rand.New(rand.NewPCG(1, 1)))
				p.Commit(50)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				records, err := c.PeekMany(ctx, 10)
				if err != nil {
					if !ok(err) {
						t.Error(err)
					}
					return
				}
				for _, r := range records {
					touch(r)
				}
				c.Release(len(records))
			}
		})
		wg.Wait()
		stop.Store(true)
		attack.Wait()
		cancel()
		if err := errors.Join(p.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A peer that fills or empties the bell stops no wake-up by a record or by the end of a context.
func TestHostileBell(t *testing.T) {
	fretest.CheckLeaks(t)
	forP, forC, err := Create(MinCapacity)
	if err != nil {
		t.Fatal(err)
	}
	// The peer made the ring and kept both ends of the bell.
	var kept [2]int
	for i, f := range []*os.File{forP.Bell, forC.Bell} {
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) { kept[i], err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
			t.Fatal(err)
		}
	}
	p, err := NewProducer(forP)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewConsumer(forC)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range kept {
		for unix.Send(fd, make([]byte, 4096), unix.MSG_DONTWAIT) == nil {
		}
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
	}
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { _, err := c.Peek(ctx); done <- err }()
	for c.mine.Load() == 0 {
		runtime.Gosched()
	}
	linux.SharedUint64(c.mem, consumerSleepAt).Store(1)
	if err := p.Put(t.Context(), []byte("x")); err != nil { // rings a full bell
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.Release(1)
	go func() { _, err := c.Peek(ctx); done <- err }()
	for c.mine.Load() == 0 {
		runtime.Gosched()
	}
	for { // steal the wake-up
		if n, _, err := unix.Recvfrom(kept[1], make([]byte, 4096), unix.MSG_DONTWAIT); n == 0 || err != nil {
			break
		}
	}
	cancel(over)
	if err := <-done; !errors.Is(err, over) {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(p.Close(), c.Close(), unix.Close(kept[0]), unix.Close(kept[1])); err != nil {
		t.Error(err)
	}
}

// steps works with a ring in hostile memory: data has the header's words and the beginning of the
// data, ops the operations.
func steps(t *testing.T, data, ops []byte) {
	t.Helper()
	forP, forC, err := Create(MinCapacity)
	if err != nil {
		t.Fatal(err)
	}
	mem := attacker(t, forP.Memory)
	for _, at := range []int{headAt, tailAt, producerSleepAt, consumerSleepAt} {
		if len(data) >= 8 {
			linux.SharedUint64(mem, at).Store(binary.LittleEndian.Uint64(data))
			data = data[8:]
		}
	}
	copy(mem[dataAt:], data)
	p, perr := NewProducer(forP)
	c, cerr := NewConsumer(forC)
	for _, err := range []error{perr, cerr} {
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	if perr == nil {
		defer p.Close()
	}
	if cerr == nil {
		defer c.Close()
	}
	for len(ops) >= 2 {
		op, n := ops[0], int(ops[1])
		ops = ops[2:]
		switch op % 6 {
		case 0, 1:
			if perr != nil {
				continue
			}
			if b, err := p.TryReserve(16 * n); err == nil {
				clear(b)
				p.Commit(8 * n)
			} else if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFull) && !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
		case 2, 3:
			if cerr != nil {
				continue
			}
			records, err := c.TryPeek(1 + n%8)
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrEmpty) {
				t.Fatal(err)
			}
			total := 0
			for _, r := range records {
				total += len(r) + lengthLen
				touch(r)
			}
			if total > MinCapacity {
				t.Fatalf("%d bytes out of %d", total, MinCapacity)
			}
			c.Release(len(records))
		case 4: // an index
			at := []int{headAt, tailAt}[n%2]
			linux.SharedUint64(mem, at).Add(uint64(n/2) - 64)
		case 5: // a word of the data
			if len(ops) >= 8 {
				linux.SharedUint64(mem, dataAt+8*n).Store(binary.LittleEndian.Uint64(ops))
				ops = ops[8:]
			}
		}
	}
}

// No content of the memory, and no write meanwhile, crashes either side.
func FuzzHostile(f *testing.F) {
	words := func(w ...uint64) (b []byte) {
		for _, v := range w {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	honest := []byte{0, 10, 2, 3, 0, 100, 0, 100, 2, 1, 0, 100, 3, 9}
	f.Add([]byte(nil), honest)
	f.Add(words(24, 0, 1, 1, 8, 0), honest)                              // a record
	f.Add(words(MinCapacity, 0, 0, 0, skip), honest)                     // a skip over all of the data
	f.Add(words(16, 8, 0, 0, 0, 1<<63), honest)                          // a length of the upper half
	f.Add(words(1<<64-8, 1<<64-16, 0, 0), honest)                        // indices about to wrap
	f.Add(words(8, 1<<64-8, 0, 0), honest)                               // indices that have wrapped
	f.Add(words(MinCapacity+8, MinCapacity-8, 0, 0, 4080), honest)       // across the end
	f.Add(words(64, 0, 0, 0, 8, 0, 4096, 8), []byte{2, 7, 4, 255, 2, 7}) // the second record is too long
	f.Add(words(8, 0), []byte{5, 0, 255, 255, 255, 255, 255, 255, 255, 255, 2, 7, 4, 1, 4, 0, 0, 3})
	f.Fuzz(func(t *testing.T, data, ops []byte) { steps(t, data, ops) })
}
