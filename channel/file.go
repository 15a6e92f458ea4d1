package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Held is what a file of an answer keeps from being freed, until it is closed.
type Held struct {
	Dev, Ino uint64 // which: the same file may be held by several answers
	Bytes    int64  // of memory; 0 for a file on a disk

	// Mount is how much its file system in memory may hold: that stays too, for as
	// long as the file does. math.MaxInt64 for a memfd that may grow yet, which nothing
	// bounds but its sandbox's memory. 0 for any other, and for a file on a disk.
	Mount int64
}

// fileMeta is the JSON of FD and FILE behind RESPONSE's: where the body is.
type fileMeta struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Name   string `json:"name,omitempty"` // of FILE
	Kept   int    `json:"kept,omitempty"` // of FD: the number that the file has, or had; 0 for none
}

// KeptFiles is how many sealed files of one function's the engine keeps open at a time,
// so that the answers they hold can name them: FRE_KEPT_FILES.
const KeptFiles = 8

// check refuses ranges that no file can have, and names that are no entry of a
// directory.
func (m *fileMeta) check(k kind) error {
	switch {
	case m.Offset < 0 || m.Length < 0 || m.Offset+m.Length < 0:
		return fmt.Errorf("%w: a file's %d bytes from %d on", ErrProtocol, m.Length, m.Offset)
	case m.Kept < 0 || m.Kept > KeptFiles, k == kindFile && m.Kept != 0:
		return fmt.Errorf("%w: kept as %d in frame kind 0x%02x", ErrProtocol, m.Kept, uint8(k))
	case k == kindFD && m.Name != "",
		k == kindFile && (m.Name == "" || len(m.Name) > unix.NAME_MAX || m.Name == "." || m.Name == ".." || strings.ContainsAny(m.Name, "/\x00")):
		return fmt.Errorf("%w: file name %q in frame kind 0x%02x", ErrProtocol, m.Name, uint8(k))
	}
	return nil
}

// answerSeals are what keeps a memfd from changing (fcntl(2), F_ADD_SEALS).
// F_SEAL_FUTURE_WRITE would leave mappings that can be written through.
const answerSeals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// fileSystems have files whose bytes are stored somewhere: to read them waits for
// nobody but a disk, and whoever may open them may read them. Not so those of
// /proc, whose read looks at who reads, or of FUSE, where a process answers.
var fileSystems = map[int64]bool{
	unix.TMPFS_MAGIC:           true,
	unix.EXT4_SUPER_MAGIC:      true,
	unix.XFS_SUPER_MAGIC:       true,
	unix.BTRFS_SUPER_MAGIC:     true,
	unix.F2FS_SUPER_MAGIC:      true,
	unix.OVERLAYFS_SUPER_MAGIC: true,
	0x2fc12fc1:                 true, // ZFS
	0xca451a4e:                 true, // bcachefs
}

// inspected is what a file of a function's turned out to be.
type inspected struct {
	immutable bool // as long as anybody has it open
	size      int64
	held      Held
}

// has is ErrProtocol unless the file has the bytes of an answer.
func (in *inspected) has(m *fileMeta) error {
	if m.Length > in.size-m.Offset { // neither is negative
		return fmt.Errorf("%w: the answer is %d bytes from %d on of a file of %d", ErrProtocol, m.Length, m.Offset, in.size)
	}
	return nil
}

// answerFile is the file of one answer or, where it is kept, of several.
type answerFile struct {
	*os.File
	inspected
	users atomic.Int32 // answers, and the channel that keeps it
}

// close closes the file once its last user has.
func (f *answerFile) close() error {
	if f.users.Add(-1) > 0 {
		return nil
	}
	return f.Close()
}

// keptFiles are the files that a function has given numbers, from 1 on. They are for the
// goroutine that reads the channel.
type keptFiles [KeptFiles]*answerFile

// find is the file that an answer names.
func (k *keptFiles) find(m *fileMeta) (*answerFile, error) {
	if m.Kept == 0 || k[m.Kept-1] == nil {
		return nil, fmt.Errorf("%w: an answer in the kept file %d, which there is not", ErrProtocol, m.Kept)
	}
	f := k[m.Kept-1]
	return f, f.has(m)
}

// put has file stand for a number from now on, instead of the one before.
func (k *keptFiles) put(number int, file *answerFile) error {
	if !file.immutable {
		return fmt.Errorf("%w: the file to be kept as %d could change", ErrProtocol, number)
	}
	file.users.Add(1)
	before := k[number-1]
	k[number-1] = file
	if before == nil {
		return nil
	}
	return before.close()
}

// close gives all of them up, at the channel's end.
func (k *keptFiles) close() (err error) {
	for _, f := range k {
		if f != nil {
			err = errors.Join(err, f.close())
		}
	}
	return err
}

// inspect looks at an open file that a function gave as length bytes of its answer
// from offset on. ErrProtocol if it is no regular file that has them. given says
// that the file is to be the engine's alone from now on.
func inspect(file *os.File, m *fileMeta, given bool) (in inspected, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return in, err
	}
	cerr := raw.Control(func(u uintptr) { in, err = inspectFD(int(u), m, given) })
	return in, errors.Join(cerr, err)
}

func inspectFD(fd int, m *fileMeta, given bool) (in inspected, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return in, fmt.Errorf("fstat: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return in, fmt.Errorf("fcntl: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return in, fmt.Errorf("%w: the answer's file has mode 0%o: it is no regular one", ErrProtocol, st.Mode)
	case flags&unix.O_PATH != 0 || flags&unix.O_ACCMODE == unix.O_WRONLY:
		return in, fmt.Errorf("%w: the answer's file is not open for reading", ErrProtocol)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return in, fmt.Errorf("fstatfs: %w", err)
	}
	if !fileSystems[int64(fs.Type)] { //nolint:unconvert // not the same type everywhere
		return in, fmt.Errorf("%w: the answer's file is in a file system of type 0x%x", ErrProtocol, fs.Type)
	}
	in.size = st.Size
	if err := in.has(m); err != nil {
		return in, err
	}
	in.held = Held{Dev: st.Dev, Ino: st.Ino}
	if fs.Type != unix.TMPFS_MAGIC {
		return in, nil
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return in, fmt.Errorf("get seals: %w", err)
	}
	in.held.Bytes = st.Blocks * 512
	in.held.Mount = int64(fs.Blocks) * int64(fs.Bsize) //nolint:unconvert // see above; that of memfds has no limit
	// A hole would be filled when it is sent, by Linux before 6.5: on our account.
	whole := st.Blocks*512 >= st.Size
	switch {
	case !whole:
	case seals&answerSeals == answerSeals:
		in.immutable = true
	case given && st.Nlink == 0:
		in.immutable = own(fd)
	}
	if in.held.Mount == 0 && !in.immutable { // a sealed one with holes can be filled yet, by fallocate(2)
		in.held.Mount = math.MaxInt64
	}
	return in, nil
}

// own makes an unlinked file of a file system in memory ours, so that nobody of the
// sandbox can open it for writing any more, not by /proc/self/fd either, and says
// whether nobody has it open for writing now: a mapping counts as that. The kernel
// keeps that count, and a lease for readers is given only where it is zero (fcntl(2),
// F_SETLEASE).
func own(fd int) bool {
	if unix.Fchown(fd, 0, 0) != nil || unix.Fchmod(fd, 0o400) != nil {
		return false
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// errGone says that a FILE's name is not there.
var errGone = &Failure{Type: "FileNotFoundError", Message: "the file of the answer has gone"}

// openFile opens a file that a function left in dir for its answer, and removes it
// from there. *[Failure] if there is none.
func openFile(dir *os.File, name string) (file *os.File, err error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(at uintptr) {
		var fd int
		fd, err = unix.Openat2(int(at), name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_NONBLOCK, // a pipe must not wait
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if err == nil {
			file = os.NewFile(uintptr(fd), name)
			// If it is another file by now, or has other names, it is not immutable.
			_ = unix.Unlinkat(int(at), name, 0)
		}
	})
	switch err = errors.Join(cerr, err); {
	case err == nil:
		return file, nil
	case errors.Is(err, unix.ENOENT):
		return nil, errGone
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return nil, fmt.Errorf("open the answer's file: %w", err)
	}
	return nil, fmt.Errorf("%w: open the answer's file %q: %w", ErrProtocol, name, err)
}

// fileBody is the body of an answer in a file, for those who want a reader.
type fileBody struct {
	k       *call
	file    *answerFile
	release func() // of what it holds; nil for none

	finished func()      // frees the function's place; nil where it is free already
	stop     func() bool // undoes the watch over the event, for finished

	mu     sync.Mutex
	off    int64
	left   int64
	closed bool
}

// errTruncated says that a file became shorter than the answer it holds.
var errTruncated = &Failure{Type: "EOFError", Message: "the file of the answer was truncated while it was sent"}

func (b *fileBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, errClosedBody
	case b.k.ctx.Err() != nil:
		return 0, context.Cause(b.k.ctx)
	case b.left == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n, err := b.file.ReadAt(p[:min(int64(len(p)), b.left)], b.off)
	b.off += int64(n)
	b.left -= int64(n)
	switch {
	case n > 0:
		return n, nil // an error comes again
	case errors.Is(err, io.EOF):
		return 0, errTruncated
	}
	return 0, fmt.Errorf("read the answer's file: %w", err)
}

func (b *fileBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	err := b.file.close()
	if b.release != nil {
		b.release()
	}
	if b.finished != nil {
		b.stop()
		b.finished()
	}
	return err
}
