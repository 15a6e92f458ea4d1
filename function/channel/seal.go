package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// mostWhole is the longest body of known length that travels in RESPONSE. A longer body goes to
// the engine in a memfd. Below this length a new memfd takes longer than copying the body twice:
// the kernel accounts for each page (docs/protocol.md).
const mostWhole = 256 << 10

// mostFileBytes returns the longest body that goes into a memfd: the file takes the function's
// memory for as long as a client takes to read the answer. FRE_MEMORY_BYTES is the sandbox's
// limit.
func mostFileBytes() int64 {
	n, err := strconv.ParseInt(os.Getenv("FRE_MEMORY_BYTES"), 10, 64)
	if err != nil || n <= 0 {
		n = 128 << 20
	}
	return n / 32
}

// mostKeptFiles returns how many files the engine keeps open for this function.
func mostKeptFiles() int {
	n, err := strconv.Atoi(os.Getenv("FRE_KEPT_FILES"))
	if err != nil {
		return 0
	}
	return max(0, min(n, KeptFiles))
}

// sealedFiles are the files that the engine keeps open; the index is the number minus one.
type sealedFiles struct {
	most int

	mu    sync.RWMutex // read-locked while an answer that names a number is sent: until then the number keeps its file
	files [KeptFiles]*os.File
	next  int // index for the next new file
}

// send sends an answer in a file of Seal's. A file with a number goes by number. A new file is
// sent with the next number, which it takes over from the oldest file.
func (s *sealedFiles) send(ctx context.Context, w *wire.Writer, id uint64, meta []byte, m wire.FileMeta, file *os.File) error {
	named := func() bool {
		m.Kept = slices.Index(s.files[:], file) + 1
		return m.Kept > 0
	}
	s.mu.RLock()
	if named() {
		defer s.mu.RUnlock()
		return w.Send(ctx, wire.KindFD, 0, id, meta, m.JSON())
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if named() { // another goroutine has sent it meanwhile
		return w.Send(ctx, wire.KindFD, 0, id, meta, m.JSON())
	}
	s.files[s.next] = nil
	m.Kept = s.next + 1
	err := w.SendFile(ctx, wire.KindFD, id, meta, m.JSON(), file)
	if err == nil {
		s.files[s.next] = file
		s.next = m.Kept % s.most
	}
	return err
}

// Seal returns a memfd (memfd_create(2)) that holds b, sealed against every change. As an
// answer's File the engine sends it on without a copy, any number of times. The caller owns the
// file.
func Seal(b []byte) (*os.File, error) {
	file, err := newMemfd()
	if err != nil {
		return nil, err
	}
	if _, err = file.Write(b); err == nil {
		err = seal(file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seal %d bytes: %w", len(b), err), file.Close())
	}
	return file, nil
}

func newMemfd() (*os.File, error) {
	fd, err := unix.MemfdCreate("answer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("answer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "answer"), nil
}

// seal adds AnswerSeals and F_SEAL_SEAL. The kernel refuses with EBUSY while a page is pinned
// (memfd_wait_for_pins in mm/memfd.c), on a busy machine perhaps by its own housekeeping. The
// kernel waits for 150 ms; seal tries three times.
func seal(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	for range 3 {
		err = raw.Control(func(fd uintptr) {
			_, set = unix.FcntlInt(fd, unix.F_ADD_SEALS, wire.AnswerSeals|unix.F_SEAL_SEAL)
		})
		if err != nil || !errors.Is(set, unix.EBUSY) {
			break
		}
	}
	return errors.Join(err, os.NewSyscallError("fcntl", set))
}
