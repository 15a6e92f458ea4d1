package engine

import (
	"fmt"
	"math"
	"sync"

	"github.com/fre-engine/fre/channel"
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
