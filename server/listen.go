package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRunning is returned by Listen when something answers on the socket.
var ErrRunning = errors.New("engine already running")

// Listen makes the API's Unix socket at path, mode 0660 and owned by group
// where that exists: who may use the engine is as good as root. Connections of
// others than root, this process's user and the group are refused even if the
// mode lets them in. A dead socket is replaced, anything else at path is left
// alone. Close removes the socket.
func Listen(path, group string) (net.Listener, error) {
	gid, err := groupID(group)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := replaceable(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// Made where nobody can reach it until its mode is right, then renamed.
	aside, err := os.MkdirTemp(parent, ".fre-")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer func() { _ = os.RemoveAll(aside) }()
	hidden := filepath.Join(aside, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chown(hidden, -1, gid)
	if err == nil {
		err = os.Chmod(hidden, 0o660)
	}
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &listener{UnixListener: l, path: path, peers: peers{group, gid}}, nil
}

// groupID is -1 where there is no such group: then root alone may connect.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(name)
	var unknown user.UnknownGroupError
	if errors.As(err, &unknown) {
		return -1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("group %s: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}

// replaceable says whether path is free or a socket nobody listens on.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("something that is not a socket is in the way")
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return ErrRunning
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("%w, or hanging: %w", ErrRunning, err)
}

// listener lets in who may use the engine, and removes its socket when closed.
type listener struct {
	*net.UnixListener
	path    string
	peers   peers
	refused sync.WaitGroup
}

// Accept returns the next connection of who may use the engine.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := l.peers.permit(conn); err != nil {
			l.refused.Go(func() { refuse(conn, err) })
			continue
		}
		return conn, nil
	}
}

func (l *listener) Close() error {
	err := errors.Join(ignoreMissing(os.Remove(l.path)), l.UnixListener.Close())
	l.refused.Wait()
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
