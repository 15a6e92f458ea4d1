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

// ErrRunning is returned by Listen when a program accepts connections on the socket.
var ErrRunning = errors.New("engine already running")

// Listen creates the API's Unix socket at path, with mode 0660 and the given group, if the group
// exists. Access to the socket is equivalent to root. The listener refuses peers other than
// root, this process's user and members of the group, even if the mode admits them. Listen
// replaces a dead socket and leaves any other file at path alone. Close removes the socket.
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
	// Create the socket in a private directory, set the mode, then rename the socket into place.
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

// groupID returns the group's id, or -1 if the group does not exist: then only root may connect.
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

// replaceable returns nil if path is free or a dead socket.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path exists and is not a socket")
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

// listener accepts only permitted peers, and removes the socket on Close.
type listener struct {
	*net.UnixListener
	path    string
	peers   peers
	refused sync.WaitGroup
}

// Accept returns the next connection of a permitted peer.
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
