package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// Held describes the memory that an open file of an answer keeps from being freed.
type Held struct {
	Dev, Ino uint64 // identity: several answers may hold the same file
	Bytes    int64  // memory; 0 for a file on a disk

	// Mount is the capacity in bytes of the file's memory file system, which the file keeps
	// alive. It is math.MaxInt64 for a memfd that may still grow, bounded only by its sandbox's
	// memory. It is 0 for any other memfd and for a file on a disk.
	Mount int64
}

// fileSystems lists the file systems that store their files' bytes. A read there waits at most
// for a disk and does not depend on the reader. In contrast, a read in /proc depends on the
// reading process, and in FUSE another process answers.
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

// inspected is the result of inspecting a function's file.
type inspected struct {
	immutable bool // as long as the file is open in any process
	size      int64
	held      Held
}

// has returns ErrProtocol unless the file holds the bytes of the answer.
func (in *inspected) has(m *wire.FileMeta) error {
	if m.Length > in.size-m.Offset { // neither is negative
		return fmt.Errorf("%w: the answer is %d bytes from %d on of a file of %d", ErrProtocol, m.Length, m.Offset, in.size)
	}
	return nil
}

// answerFile is the file of one answer or, if kept, of several.
type answerFile struct {
	*os.File
	inspected
	users atomic.Int32 // answers, and the channel that keeps the file
}

// close drops one user. The last user's call closes the file.
func (f *answerFile) close() error {
	if f.users.Add(-1) > 0 {
		return nil
	}
	return f.Close()
}

// keptFiles holds the files with the numbers 1 to KeptFiles. It is for the channel's reader
// goroutine only.
type keptFiles [KeptFiles]*answerFile

// find returns the kept file that an answer names.
func (k *keptFiles) find(m *wire.FileMeta) (*answerFile, error) {
	if m.Kept == 0 || k[m.Kept-1] == nil {
		return nil, fmt.Errorf("%w: an answer in the unknown kept file %d", ErrProtocol, m.Kept)
	}
	f := k[m.Kept-1]
	return f, f.has(m)
}

// put keeps file under number in place of the previous file.
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

// close drops all kept files at the end of the channel.
func (k *keptFiles) close() (err error) {
	for _, f := range k {
		if f != nil {
			err = errors.Join(err, f.close())
		}
	}
	return err
}

// inspect examines an open file that a function gave as the body of an answer. It returns
// ErrProtocol unless the file is regular and holds the range of m. given means that the file was
// unlinked from the function's directory and is the engine's from now on.
func inspect(file *os.File, m *wire.FileMeta, given bool) (in inspected, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return in, err
	}
	cerr := raw.Control(func(u uintptr) { in, err = inspectFD(int(u), m, given) })
	return in, errors.Join(cerr, err)
}

func inspectFD(fd int, m *wire.FileMeta, given bool) (in inspected, err error) {
	st, err := statReadable(fd)
	if err != nil {
		return in, err
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
	// Linux before 6.5 fills a hole when the file is sent, on the engine's account.
	whole := st.Blocks*512 >= st.Size
	switch {
	case !whole:
	case seals&wire.AnswerSeals == wire.AnswerSeals:
		in.immutable = true
	case given && st.Nlink == 0:
		in.immutable = own(fd)
	}
	if in.held.Mount == 0 && !in.immutable { // fallocate(2) can still fill the holes of a sealed memfd
		in.held.Mount = math.MaxInt64
	}
	return in, nil
}

// statReadable returns ErrProtocol unless fd is a regular file open for reading.
func statReadable(fd int) (st unix.Stat_t, err error) {
	if err := unix.Fstat(fd, &st); err != nil {
		return st, fmt.Errorf("fstat: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return st, fmt.Errorf("fcntl: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return st, fmt.Errorf("%w: the answer's file has mode 0%o: not a regular file", ErrProtocol, st.Mode)
	case flags&unix.O_PATH != 0 || flags&unix.O_ACCMODE == unix.O_WRONLY:
		return st, fmt.Errorf("%w: the answer's file is not open for reading", ErrProtocol)
	}
	return st, nil
}

// own gives an unlinked file in a memory file system to root, mode 0400: no process of the
// sandbox can open the file for writing any more, not through /proc/self/fd either. own reports
// whether the file is open or mapped for writing nowhere: only then does the kernel grant a read
// lease (fcntl(2), F_SETLEASE).
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

// errGone means that the name in FILE does not exist.
var errGone = &Failure{Type: "FileNotFoundError", Message: "the file of the answer has gone"}

// openFile opens a file that a function left in dir for its answer, and unlinks it. It returns a
// *[Failure] if the file does not exist.
func openFile(dir *os.File, name string) (file *os.File, err error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(at uintptr) {
		var fd int
		fd, err = unix.Openat2(int(at), name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_NONBLOCK, // O_NONBLOCK: opening a FIFO must not wait
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if err == nil {
			file = os.NewFile(uintptr(fd), name)
			// If the name now leads to another file, or the file has other names, inspect does
			// not call it immutable.
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

// fileBody reads the body of an answer from its file.
type fileBody struct {
	k       *call
	file    *answerFile
	release func() // releases Config.Hold's memory; may be nil

	finished func()      // frees the function's slot; nil if free already
	stop     func() bool // ends the watch over the event's context; set with finished

	mu     sync.Mutex
	off    int64
	left   int64
	closed bool
}

// errTruncated means that the file became shorter than the answer in it.
var errTruncated = &Failure{Type: "EOFError", Message: "the file of the answer was truncated during the transfer"}

func (b *fileBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, wire.ErrClosedBody
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
		return n, nil // the next ReadAt repeats an error
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

// frameFile handles FD and FILE, answers with the body in a file: the given file, a file in the
// function's directory, or a kept file. It owns file.
func (k *call) frameFile(kind wire.Kind, p []byte, file *os.File) error {
	r, body, err := k.head(p)
	var m wire.FileMeta
	if err == nil {
		if err = m.Parse(body); err == nil {
			err = m.Check(kind)
		}
	}
	if err != nil {
		return closing(file, err)
	}
	if kind == wire.KindFile {
		if file, err = k.conn.open(m.Name); err != nil {
			if errors.Is(err, ErrProtocol) {
				return err
			}
			k.conn.finish(k, err)
			return nil
		}
	}
	f, err := k.conn.answerFile(file, &m, kind == wire.KindFile)
	if err != nil {
		return err
	}
	b := &fileBody{k: k, file: f, off: m.Offset, left: m.Length}
	if k.conn.cfg.Hold != nil {
		var full bool
		if b.release, full, err = k.conn.cfg.Hold(f.held); err != nil {
			k.conn.finish(k, err)
			return f.close()
		}
		if full {
			k.keepSlot(b)
		}
	}
	r.Body, r.Length = b, m.Length
	if f.immutable {
		r.File, r.Offset = f.File, m.Offset
	}
	k.conn.finish(k, nil)
	if !k.answer(r) { // the call was cancelled before
		return b.Close()
	}
	return nil
}

// keepSlot keeps the function's slot taken until b is closed or the event's context ends,
// unless the slot is free already.
func (k *call) keepSlot(b *fileBody) {
	k.mu.Lock()
	finished := k.finished
	if k.state == callEnded { // finish calls finished, or has called it
		finished = nil
	}
	if finished != nil {
		k.finished = nil
	}
	k.mu.Unlock()
	if finished != nil {
		b.finished = sync.OnceFunc(finished)
		b.stop = context.AfterFunc(k.ctx, b.finished)
	}
}

// closing closes file, unless nil, and adds a failure to err.
func closing(file *os.File, err error) error {
	if file == nil {
		return err
	}
	return errors.Join(err, file.Close())
}

// answerFile returns the file of an answer and adds the answer to its users. It owns file, which
// is nil for a kept file. given is passed to inspect.
func (c *Conn) answerFile(file *os.File, m *wire.FileMeta, given bool) (*answerFile, error) {
	if file == nil {
		f, err := c.kept.find(m)
		if err == nil {
			f.users.Add(1)
		}
		return f, err
	}
	in, err := inspect(file, m, given)
	if err != nil {
		return nil, closing(file, err)
	}
	f := &answerFile{File: file, inspected: in}
	f.users.Store(1)
	if m.Kept != 0 {
		if err := c.kept.put(m.Kept, f); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

// open opens a file that the function left for its answer.
func (c *Conn) open(name string) (*os.File, error) {
	if c.cfg.Files == nil {
		return nil, fmt.Errorf("%w: FILE without a directory for files", ErrProtocol)
	}
	if c.dir == nil {
		dir, err := c.cfg.Files()
		if err != nil {
			return nil, err
		}
		c.dir = dir
	}
	return openFile(c.dir, name)
}
