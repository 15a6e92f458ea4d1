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

	"github.com/fre-engine/fre/failure"
)

// Opens records the files that sandboxes open in their roots ([Spec].Opens): files read, mapped
// or executed by any process, including libraries and the dynamic linker. Mere lookups
// (stat(2), readlink(2), a directory listing, O_PATH) do not count. One Opens may serve several
// sandboxes with the same root directory. Opens is safe for concurrent use.
//
// The source is a fanotify(7) mark on the sandbox's own mount of its root, which ends with the
// mount. So no files of other processes appear, and no files of other mounts (/work, /tmp).
type Opens struct {
	group *os.File // of fanotify
	done  chan struct{}

	mu    sync.Mutex
	paths map[string]struct{}
	err   error // reason for which records may be missing
}

// ErrOpensLost reports that more files were opened than Opens could record.
var ErrOpensLost = failure.New(failure.Overloaded, "more files were opened at once than could be noted", "try again, with fewer events (--run)")

// opensAtOnce is the number of events in one read; each event opens a file.
const opensAtOnce = 64

// NewOpens starts to record, until Close. The kernel requires root.
func NewOpens() (*Opens, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init (the kernel needs CONFIG_FANOTIFY, and FRE CAP_SYS_ADMIN): %w", err)
	}
	o := &Opens{group: os.NewFile(uintptr(fd), "fanotify"), done: make(chan struct{}), paths: map[string]struct{}{}}
	go o.watch()
	return o, nil
}

// mark begins to record opens in the mount at fd.
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

// watch reads events as they come, so that the kernel's queue does not overflow.
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

// drainLocked reads all waiting events.
func (o *Opens) drainLocked(group int) {
	buf := make([]byte, opensAtOnce*unix.FAN_EVENT_METADATA_LEN)
	for {
		n, err := unix.Read(group, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBADF):
			return
		case err != nil: // the event's file could not be opened, and the event is lost
			o.err = errors.Join(ErrOpensLost, err)
			return
		}
		o.noteEventsLocked(buf[:n])
	}
}

// noteEventsLocked records the events in b (struct fanotify_event_metadata, fanotify(7)).
func (o *Opens) noteEventsLocked(b []byte) {
	for len(b) >= unix.FAN_EVENT_METADATA_LEN {
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
			return
		}
		b = b[length:]
	}
}

// noteLocked records the path of an opened file. In its own namespace the sandbox's root is
// mounted over "/", so the path is the path inside.
func (o *Opens) noteLocked(fd int) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !strings.HasPrefix(path, "/") {
		o.err = errors.Join(ErrOpensLost, err)
		return
	}
	o.paths[path] = struct{}{}
}

// Paths returns the files opened so far: absolute paths in the root, without symbolic links,
// sorted. The error is [ErrOpensLost] if records may be missing; Paths also fails after Close.
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

// Close stops the recording.
func (o *Opens) Close() error {
	err := o.group.Close()
	<-o.done
	return err
}
