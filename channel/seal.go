package channel

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// fileBytes is from which length on a body of known length is put into a memfd for
// the engine, rather than sent as DATA.
const fileBytes = 64 << 10

// mostFileBytes is up to which length: the file takes memory of the function's for
// as long as a client takes the answer. FRE_MEMORY_BYTES is the sandbox's limit.
func mostFileBytes() int64 {
	n, err := strconv.ParseInt(os.Getenv("FRE_MEMORY_BYTES"), 10, 64)
	if err != nil || n <= 0 {
		n = 128 << 20
	}
	return n / 32
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

// seal is all that answerSeals wants, and that nobody adds to it.
func seal(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		_, set = unix.FcntlInt(fd, unix.F_ADD_SEALS, answerSeals|unix.F_SEAL_SEAL)
	})
	return errors.Join(err, os.NewSyscallError("fcntl", set))
}
