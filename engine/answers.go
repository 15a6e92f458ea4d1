package engine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/admission"
	"github.com/fre-engine/fre/sandbox"
)

// maxHeldAnswers is how many answers of one function may be in files at once, from
// when the function gave them until the clients have them.
const maxHeldAnswers = 1024

// heldAnswers counts the files of one function's answers that are on their way to
// clients: file descriptors of the engine, and memory that stays in use though the
// sandbox it was charged to may be long gone.
type heldAnswers struct {
	bytes int64 // at most: what all instances together may use

	mu    sync.Mutex
	count int
	sum   int64
	files map[heldFile]int // answers by what they hold, which counts once
}

// heldFile is what answers hold: a file, or all files that a sandbox may have made.
type heldFile struct {
	channel.Held
	sandbox string // whose memfds these are, all together; "" for anything else
}

// hold counts an answer. ErrOverloaded where there is enough already.
func (h *heldAnswers) hold(what heldFile) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	more := what.Bytes
	if h.files[what] > 0 {
		more = 0
	}
	if h.count >= maxHeldAnswers || more > h.bytes-h.sum {
		return nil, fmt.Errorf("%w: %d answers that clients have not taken yet hold %d bytes", ErrOverloaded, h.count, h.sum)
	}
	if h.files == nil {
		h.files = map[heldFile]int{}
	}
	h.count++
	h.sum += more
	h.files[what]++
	return func() { h.release(what) }, nil
}

func (h *heldAnswers) release(what heldFile) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count--
	if h.files[what]--; h.files[what] == 0 {
		delete(h.files, what)
		h.sum -= what.Bytes
	}
}

// answerFiles is where a function leaves files for its answers: what FRE_FILES
// names inside the sandbox.
const answerFiles = "/tmp"

// channelConfig is what the engine's end of an instance's channel needs. sb is asked
// for the instance's sandbox once that has an event.
func (f *function) channelConfig(id string, sb func() *sandbox.Sandbox) channel.Config {
	// Clients that are slow to take their answers must not use up the memory that the
	// function needs for the next ones.
	own := &heldAnswers{bytes: f.config.Resources.MemoryBytes / 4}
	return channel.Config{
		Log:     f.channelLog(id),
		LogPace: f.logs.drop,
		Files:   openTmp(sb),
		Memory:  f.lendMemory,
		Hold: func(what channel.Held) (release func(), full bool, err error) {
			now, lasts := heldFile{Held: what}, lasting(what, id, f.config.Resources.MemoryBytes)
			if lasts.sandbox != "" { // it may be as much at any time
				now = lasts
			}
			all, err := f.held.hold(lasts)
			if err != nil {
				return nil, false, err
			}
			if mine, err := own.hold(now); err == nil {
				return func() { mine(); all() }, false, nil
			}
			return all, true, nil // it is held, beyond its share
		},
	}
}

// lentMemory is a buffer in which a part of a function's answer waits.
type lentMemory struct {
	buffer.Lent
	f *function
}

// Release gives the buffer back.
func (l lentMemory) Release() {
	l.f.waiting.Add(-int64(len(l.Bytes())))
	l.Lent.Release()
}

// lendMemory lends what a function's answers wait in until their clients have taken them.
// One function gets no more of it than others have left over, but for a tenth that is
// always left to those who cannot do without: alone it has nearly half of the memory, and
// who comes after it finds some (Choudhury and Hahne, Dynamic queue length thresholds,
// 1998). ErrOverloaded where it has that, ErrDegraded where there is none.
func (f *function) lendMemory(size int) (channel.Lent, error) {
	free, all := f.e.buffers.Free()
	if waits := f.waiting.Load(); waits+int64(size) > free-all/10 {
		f.e.metrics.refuse(reasonAnswers)
		return nil, fmt.Errorf("%w: its answers that clients have not taken yet hold %d bytes of memory", ErrOverloaded, waits)
	}
	lent, err := buffer.Lender{Pool: f.e.buffers}.Acquire(size, 0)
	if err != nil {
		f.e.metrics.refuse(admission.Memory)
		return nil, fmt.Errorf("%w: %w", ErrDegraded, err)
	}
	f.waiting.Add(int64(len(lent.Bytes())))
	return lentMemory{lent, f}, nil
}

// lasting is what stays of what an answer holds once its sandbox has ended: with a
// file, all there is in its /tmp, which is at most what the sandbox may use; with a
// memfd that may grow, that much, once for all of them.
func lasting(what channel.Held, sandbox string, memory int64) heldFile {
	switch {
	case what.Mount == math.MaxInt64:
		return heldFile{channel.Held{Bytes: memory}, sandbox}
	case what.Mount > 0:
		what = channel.Held{Dev: what.Dev, Bytes: max(what.Bytes, min(what.Mount, memory))}
	}
	return heldFile{Held: what}
}

func openTmp(sb func() *sandbox.Sandbox) func() (*os.File, error) {
	return func() (*os.File, error) {
		dir, err := sb().Tmp()
		if errors.Is(err, os.ErrProcessDone) {
			err = fmt.Errorf("%w: %w", channel.ErrClosed, err)
		}
		return dir, err
	}
}
