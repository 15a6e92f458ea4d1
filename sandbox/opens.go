package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Opens notes which files sandboxes open in their roots ([Spec].Opens): what is
// read, mapped or executed there, by whichever process, libraries and the dynamic
// linker included. What is only looked at (stat(2), readlink(2), a directory's
// list, O_PATH) does not show. It may be of several sandboxes' roots that are the
// same directory, and is safe for use by several goroutines.
//
// The kernel tells (fanotify(7)) by a mark on the sandbox's own mount of its root,
// which goes with it. So nobody else's files can show, and those of other mounts,
// /work and /tmp, do not.
type Opens struct {
	group *os.File // of fanotify
	done  chan struct{}

	mu    sync.Mutex
	paths map[string]struct{}
	err   error // why something may have been missed
}

// ErrOpensLost: more was opened than could be noted.
var ErrOpensLost = errors.New("more files were opened at once than could be noted")

// opensAtOnce is how many events are read at once, each of which opens a file.
const opensAtOnce = 64

// NewOpens starts to note; Close ends it. The kernel grants that to root alone.
func NewOpens() (*Opens, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init (the kernel needs CONFIG_FANOTIFY, and FRE CAP_SYS_ADMIN): %w", err)
	}
	o := &Opens{group: os.NewFile(uintptr(fd), "fanotify"), done: make(chan struct{}), paths: map[string]struct{}{}}
	go o.watch()
	return o, nil
}

// mark begins to note what is opened in the mount at fd.
func (o *Opens) mark(fd int) error {
	conn, err := o.group.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(group uintptr) {
		failed = unix.FanotifyMark(int(group), unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, unix.FAN_OPEN, fd, ".")
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("fanotify_mark: %w", err)
	}
	return nil
}

// watch takes what there is, so that the kernel's queue does not fill up.
func (o *Opens) watch() {
	defer close(o.done)
	conn, err := o.group.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool { // until Close
		o.mu.Lock()
		defer o.mu.Unlock()
		o.drainLocked(int(fd))
		return false
	})
}

// drainLocked reads until there is nothing left.
func (o *Opens) drainLocked(group int) {
	buf := make([]byte, opensAtOnce*unix.FAN_EVENT_METADATA_LEN)
	for {
		n, err := unix.Read(group, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBADF):
			return
		case err != nil: // the file of an event could not be opened: it is gone from the queue
			o.err = errors.Join(ErrOpensLost, err)
			return
		}
		for b := buf[:n]; len(b) >= unix.FAN_EVENT_METADATA_LEN; {
			length := binary.NativeEndian.Uint32(b)
			mask, fd := binary.NativeEndian.Uint64(b[8:]), int32(binary.NativeEndian.Uint32(b[16:]))
			if mask&unix.FAN_Q_OVERFLOW != 0 {
				o.err = ErrOpensLost
			}
			if fd >= 0 {
				o.noteLocked(int(fd))
				unix.Close(int(fd))
			}
			if int(length) < unix.FAN_EVENT_METADATA_LEN || int(length) > len(b) {
				break
			}
			b = b[length:]
		}
	}
}

// noteLocked adds the path of an opened file. A sandbox's root is mounted over "/"
// in its own namespace, so that this is the path in there.
func (o *Opens) noteLocked(fd int) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !strings.HasPrefix(path, "/") {
		o.err = errors.Join(ErrOpensLost, err)
		return
	}
	o.paths[path] = struct{}{}
}

// Paths are the files opened so far, as absolute paths in the root without a link
// in them, sorted. Errors: [ErrOpensLost], and one after Close.
func (o *Opens) Paths() ([]string, error) {
	conn, err := o.group.SyscallConn()
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := conn.Control(func(fd uintptr) { o.drainLocked(int(fd)) }); err != nil {
		return nil, err
	}
	if o.err != nil {
		return nil, o.err
	}
	out := make([]string, 0, len(o.paths))
	for p := range o.paths {
		out = append(out, p)
	}
	slices.Sort(out)
	return out, nil
}

// Close ends the notes.
func (o *Opens) Close() error {
	err := o.group.Close()
	<-o.done
	return err
}
