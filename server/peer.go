package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/linux"
)

// peers identifies the peers that may use the API, independent of the socket's mode: a socket
// that is world-writable, or mounted into a sandbox, must not give a tenant control of the
// engine.
type peers struct {
	group string // name of the group, for the refusal
	gid   int    // -1: no group
}

// permit returns an error unless the connecting process ran as root, as this process's user or
// with the group. The kernel records the peer's credentials at connect time (SO_PEERCRED,
// unix(7)), as ids of this process's user namespace: root inside a sandbox is not 0.
func (p peers) permit(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var groups []uint32
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			groups, failed = linux.PeerGroups(int(fd))
		}
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	if p.gid >= 0 && slices.Contains(append(groups, cred.Gid), uint32(p.gid)) {
		return nil
	}
	return &api.Error{
		Code:    api.CodeForbidden,
		Message: fmt.Sprintf("user %d may not use the engine", cred.Uid),
		Next:    fmt.Sprintf("run as root, or as a member of the group %q (fre serve --group)", p.group),
	}
}

// refusalLinger is the time limit for a refused client to read the refusal.
const refusalLinger = 200 * time.Millisecond

// refuse answers a connection with the reason and closes the connection once the client has
// closed, or after refusalLinger. A client that cannot send the request would not read the
// answer either.
func refuse(conn *net.UnixConn, reason error) {
	defer conn.Close()
	refused := api.ErrorOf(reason)
	body, err := json.Marshal(struct {
		api.ErrorBody
		Message string `json:"message"` // printed by Docker's clients
	}{api.ErrorBody{Error: refused}, refused.Message + ": " + refused.Next})
	if err != nil {
		return
	}
	answer := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		refused.Status, http.StatusText(refused.Status), len(body), body)
	if conn.SetDeadline(time.Now().Add(refusalLinger)) != nil {
		return
	}
	_, err = conn.Write(answer)
	if err = errors.Join(err, conn.CloseWrite()); err == nil {
		_, _ = io.Copy(io.Discard, conn) // until the client closes or the deadline passes
	}
}

type peerKey struct{}

// ConnContext is for [http.Server.ConnContext]. ConnContext stores the name of the peer on the
// control socket, as known to the kernel, for the audit log.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil {
		return ctx
	}
	who := "root"
	if cred.Uid != 0 {
		who = fmt.Sprintf("user %d", cred.Uid)
	}
	return context.WithValue(ctx, peerKey{}, who)
}
