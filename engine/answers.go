package engine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/sandbox"
)

// maxHeldAnswers limits the answers of one function that are in files at once. An answer counts
// from the function's reply until the client has the answer.
const maxHeldAnswers = 1024

// heldAnswers counts the files of one function's answers on the way to clients: file descriptors
// of the engine, and memory that stays in use after the charged sandbox has ended.
type heldAnswers struct {
	bytes int64 // upper limit: the memory of all instances together

	mu    sync.Mutex
	count int
	sum   int64
	files map[heldFile]int // number of answers for each file; a shared file counts once in sum
}

// heldFile identifies the memory of an answer: a file, or all files made by a sandbox.
type heldFile struct {
	channel.Held
	sandbox string // owner of the memfds, counted together; "" for other files
}

// hold counts an answer. Error: ErrOverloaded at the limit.
func (h *heldAnswers) hold(what heldFile) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	more := what.Bytes
	if h.files[what] > 0 {
		more = 0
	}
	if h.count >= maxHeldAnswers || more > h.bytes-h.sum {
		return nil, fmt.Errorf("%w: %d unread answers hold %d bytes", ErrOverloaded, h.count, h.sum)
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

// answerFiles is the directory, inside the sandbox, for files with answers: the value of
// FRE_FILES.
const answerFiles = "/tmp"

// channelConfig returns the configuration of the engine's end of an instance's channel. The
// channel calls sb only after the sandbox has an event.
func (p *program) channelConfig(id string, sb func() *sandbox.Sandbox) channel.Config {
	// Slow clients must not use up the memory that the function needs for the next answers.
	own := &heldAnswers{bytes: p.config.Resources.MemoryBytes / 4}
	return channel.Config{
		Log:     p.channelLog(id),
		LogPace: p.logs.Drop,
		Files:   openTmp(sb),
		Memory:  p.acquireMemory,
		Hold: func(what channel.Held) (release func(), full bool, err error) {
			now, lasts := heldFile{Held: what}, lasting(what, id, p.config.Resources.MemoryBytes)
			if lasts.sandbox != "" { // the memfd may grow to the limit at any time
				now = lasts
			}
			all, err := p.held.hold(lasts)
			if err != nil {
				return nil, false, err
			}
			if mine, err := own.hold(now); err == nil {
				return func() { mine(); all() }, false, nil
			}
			return all, true, nil // held, but beyond the instance's share
		},
	}
}

// answerMemory is a buffer with a part of a waiting answer.
type answerMemory struct {
	buffer.Handle
	program *program
}

// Release gives the buffer back.
func (l answerMemory) Release() {
	l.program.waiting.Add(-int64(len(l.Bytes())))
	l.Handle.Release()
}

// acquireMemory returns a buffer for an answer that waits for its client. One function gets at most
// as much as all functions have left free, less a tenth of the memory reserved for users that
// cannot do without a buffer. So a function alone gets nearly half of the memory, and a second
// function still finds some (Choudhury and Hahne, Dynamic queue length thresholds, 1998).
// Errors: ErrOverloaded at the function's share, ErrDegraded if no memory is free.
func (p *program) acquireMemory(size int) (channel.Buffer, error) {
	free, all := p.host.buffers.Free()
	if waits := p.waiting.Load(); waits+int64(size) > free-all/10 {
		p.host.metrics.refuse(reasonAnswers)
		return nil, fmt.Errorf("%w: unread answers of the function hold %d bytes of memory", ErrOverloaded, waits)
	}
	buf, err := buffer.Memory{Pool: p.host.buffers}.Acquire(size, 0)
	if err != nil {
		p.host.metrics.refuse(admission.Memory)
		return nil, fmt.Errorf("%w: %w", ErrDegraded, err)
	}
	p.waiting.Add(int64(len(buf.Bytes())))
	return answerMemory{buf, p}, nil
}

// lasting returns the memory that an answer holds after its sandbox has ended. A file holds the
// whole /tmp, at most the sandbox's memory limit. Memfds that may grow hold the same amount,
// counted once for all memfds of the sandbox.
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
