package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// mostWhole is up to which length a body of known length goes along in RESPONSE. A longer
// one is put into a memfd for the engine. To make that takes longer than to copy 256 KiB
// twice: the kernel accounts for each page (docs/protocol.md).
const mostWhole = 256 << 10

// mostFileBytes is up to which length: the file takes memory of the function's for
// as long as a client takes the answer. FRE_MEMORY_BYTES is the sandbox's limit.
func mostFileBytes() int64 {
	n, err := strconv.ParseInt(os.Getenv("FRE_MEMORY_BYTES"), 10, 64)
	if err != nil || n <= 0 {
		n = 128 << 20
	}
	return n / 32
}

// mostKeptFiles is how many files the engine keeps open for this function.
func mostKeptFiles() int {
	n, err := strconv.Atoi(os.Getenv("FRE_KEPT_FILES"))
	if err != nil {
		return 0
	}
	return max(0, min(n, KeptFiles))
}

// sealedFiles are those that the engine keeps open, by their numbers less one.
type sealedFiles struct {
	most int

	mu    sync.RWMutex // held while an answer is sent that says a number, which means the same until then
	files [KeptFiles]*os.File
	next  int // to get another file
}

// send sends an answer in a file of Seal's: by its number where it has one, else with a
// number that it has from then on, which another had before if all are taken.
func (s *sealedFiles) send(ctx context.Context, w *frameWriter, id uint64, meta []byte, m fileMeta, file *os.File) error {
	named := func() bool {
		m.Kept = slices.Index(s.files[:], file) + 1
		return m.Kept > 0
	}
	s.mu.RLock()
	if named() {
		defer s.mu.RUnlock()
		return w.send(ctx, kindFD, 0, id, meta, m.json())
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if named() { // by now
		return w.send(ctx, kindFD, 0, id, meta, m.json())
	}
	s.files[s.next] = nil
	m.Kept = s.next + 1
	err := w.sendFile(ctx, kindFD, id, meta, m.json(), file)
	if err == nil {
		s.files[s.next] = file
		s.next = m.Kept % s.most
	}
	return err
}

// Seal returns a file in memory (memfd_create(2)) that holds b, sealed against every
// change: an answer's File that the engine sends on without a copy, as often as it is
// given. The caller owns it.
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

// seal is all that answerSeals wants, and that nobody adds to it. The kernel refuses that as
// long as somebody else has hold of a page (memfd_wait_for_pins in mm/memfd.c), which on a
// busy machine may be its own housekeeping: it waits for 150 ms, and we do so three times.
func seal(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	for range 3 {
		err = raw.Control(func(fd uintptr) {
			_, set = unix.FcntlInt(fd, unix.F_ADD_SEALS, answerSeals|unix.F_SEAL_SEAL)
		})
		if err != nil || !errors.Is(set, unix.EBUSY) {
			break
		}
	}
	return errors.Join(err, os.NewSyscallError("fcntl", set))
}
