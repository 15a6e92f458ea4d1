package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/netns"
)

// forkServer is the additional state of a sandbox with Spec.Forks.
type forkServer struct {
	userns *os.File
	base   uint32 // first host id of the server's range
	max    int    // most forks at once

	mu     sync.Mutex
	closed bool
	own    []uint64        // inodes of the server's own namespaces, in the order of forkKinds
	live   map[uint64]bool // inodes of the forks' pidfds
	forks  int             // requested or running
	idle   []*netns.Namespace
}

// forkKinds are the namespaces that a fork must not share. (A fork makes its cgroup namespace
// after the engine has moved the fork into its own cgroup.)
var forkKinds = []uint{
	unix.PIDFD_GET_PID_NAMESPACE, unix.PIDFD_GET_MNT_NAMESPACE, unix.PIDFD_GET_NET_NAMESPACE,
	unix.PIDFD_GET_IPC_NAMESPACE, unix.PIDFD_GET_UTS_NAMESPACE,
}

// CanFork returns nil if this kernel supports fork servers, else the reason. Fork servers need
// the procfs option pidns, and pidfds that tell exit status and namespaces: Linux 6.17.
func CanFork() error {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("open pidfd: %w", err)
	}
	defer unix.Close(pidfd)
	if err := unix.IoctlPidfdInfo(pidfd, &unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID | unix.PIDFD_INFO_EXIT}); err != nil {
		return fmt.Errorf("pidfd information: %w", err)
	}
	mount, err := newProc(pidfd)
	if err != nil {
		return err
	}
	unix.Close(mount)
	return nil
}

// newProc returns a detached /proc of the pid namespace of pidfd's process.
func newProc(pidfd int) (int, error) {
	pidns, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_PID_NAMESPACE)
	if err != nil {
		return -1, fmt.Errorf("open pid namespace: %w", err)
	}
	defer unix.Close(pidns)
	fd, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen proc: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "subset", "pid"); err != nil {
		return -1, fmt.Errorf("proc subset=pid: %w", err)
	}
	if err := unix.FsconfigSetFd(fd, "pidns", pidns); err != nil {
		return -1, fmt.Errorf("proc of another pid namespace (Linux 6.17): %w", err)
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, fmt.Errorf("create proc: %w", err)
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsmount proc: %w", err)
	}
	return mount, nil
}

// namespaces returns the inodes of the namespaces of pidfd's process, in the order of
// forkKinds.
func namespaces(pidfd int) ([]uint64, error) {
	inodes := make([]uint64, len(forkKinds))
	for i, kind := range forkKinds {
		fd, err := unix.IoctlRetInt(pidfd, kind)
		if err != nil {
			return nil, fmt.Errorf("open namespace: %w", err)
		}
		inodes[i], err = inodeOf(fd)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
	}
	return inodes, nil
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat: %w", err)
	}
	return st.Ino, nil
}

// errNotFork is the reason not to adopt a process: the server is hostile or broken.
var errNotFork = errors.New("not a fork in new private namespaces")

// claim verifies pidfd's process: the process is the first in a pid namespace two below the
// server's, shares no namespace with the server, and is not a fork already. (The pid namespace
// in between is the server's own: the server can return only to a namespace that its user
// namespace owns.) A server that names the wrong process gains nothing, since the server has
// power over all its children anyway. The result identifies the process and is never reused.
func (server *forkServer) claim(pidfd int, network *netns.Namespace) (process uint64, err error) {
	if err := server.verify(pidfd, network); err != nil {
		return 0, err
	}
	if process, err = inodeOf(pidfd); err != nil { // never reused
		return 0, err
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	switch {
	case server.closed:
		return 0, os.ErrProcessDone
	case server.live[process]:
		return 0, errNotFork
	}
	server.live[process] = true
	return process, nil
}

// verify returns errNotFork unless pidfd's process stands where claim says, in the network given.
func (server *forkServer) verify(pidfd int, network *netns.Namespace) error {
	theirs, err := namespaces(pidfd)
	if err != nil {
		return err
	}
	above, err := grandparent(pidfd)
	if err != nil {
		return err
	}
	if above != server.own[0] || !isInit(pidfd) {
		return errNotFork
	}
	for i := range theirs {
		if theirs[i] == server.own[i] {
			return errNotFork
		}
	}
	if network == nil {
		return nil
	}
	given, err := inodeOf(int(network.File().Fd()))
	if err == nil && theirs[2] != given {
		err = errNotFork
	}
	return err
}

// grandparent returns the inode of the pid namespace two above that of pidfd's process. The
// error is EPERM if no such namespace exists.
func grandparent(pidfd int) (uint64, error) {
	fd, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_PID_NAMESPACE)
	for range 2 {
		if err != nil {
			break
		}
		below := fd
		fd, err = unix.IoctlRetInt(below, unix.NS_GET_PARENT)
		unix.Close(below)
	}
	if err != nil {
		return 0, fmt.Errorf("open pid namespaces above: %w", err)
	}
	defer unix.Close(fd)
	return inodeOf(fd)
}

// isInit reports whether pidfd's process is the first in its pid namespace: the last number of
// the line "NSpid:" is 1.
func isInit(pidfd int) bool {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(info) {
		if value, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			numbers := bytes.Fields(value)
			return len(numbers) > 1 && string(numbers[len(numbers)-1]) == "1"
		}
	}
	return false
}

// forget ends one fork.
func (server *forkServer) forget(process uint64, network *netns.Namespace) {
	if network != nil && !network.Clean() {
		_ = network.Close()
		network = nil
	}
	server.mu.Lock()
	server.forks--
	delete(server.live, process)
	if network != nil && !server.closed {
		server.idle = append(server.idle, network)
		network = nil
	}
	server.mu.Unlock()
	if network != nil {
		_ = network.Close()
	}
}

// close releases the resources of a fork server that has ended.
func (server *forkServer) close() {
	server.mu.Lock()
	idle := server.idle
	server.closed, server.idle = true, nil
	server.mu.Unlock()
	for _, network := range idle {
		_ = network.Close()
	}
	_ = server.userns.Close()
}
