package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	types "github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// containerCreate answers POST /containers/create?name=&platform=.
func (s *server) containerCreate(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	c, err := parseCreation(body, func(image string) error {
		_, err := s.image(image)
		return err
	})
	if err != nil {
		return err
	}
	if err := oci.CheckPlatform(r.URL.Query().Get("platform")); err != nil {
		return badRequest("%v", err) // not a 404, because clients would pull the image
	}
	cfg, warnings := c.config(strings.TrimPrefix(r.URL.Query().Get("name"), "/")), []string{}
	made, err := s.engine.CreateContainer(r.Context(), cfg)
	// Clients request bridge when users request no network.
	var field *template.FieldError
	if cfg.Network == template.NetworkEgress && errors.As(err, &field) && field.Field == "network" {
		warnings = append(warnings, "the container has no network: "+field.Message+"; use --network none for containers without a network")
		cfg.Network = template.NetworkNone
		made, err = s.engine.CreateContainer(r.Context(), cfg)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, types.CreateResponse{ID: made.ID, Warnings: warnings})
}

// networkModes maps Docker's networks to network modes of images.
var networkModes = map[string]template.NetworkMode{networkNone: template.NetworkNone, networkBridge: template.NetworkEgress, networkHost: template.NetworkHost}

// config converts the request to the engine's container configuration.
func (c *creation) config(name string) container.Config {
	dir := c.WorkingDir
	if dir != "" {
		dir = path.Clean(dir)
	}
	out := container.Config{
		Image: oci.Familiar(c.Image), Name: name, Tenant: c.tenant, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, Unset: c.unset, Dir: dir, User: c.User, Groups: c.groups, CapAdd: c.capAdd, CapDrop: c.capDrop,
		Hostname: c.Hostname, Labels: c.Labels, Annotations: c.annotations, StopSignal: c.stopSignal, Network: networkModes[c.network],
		Limits:       sandbox.Limits{MemoryBytes: c.memoryBytes, CPUMillis: c.cpuMillis, Pids: c.pids, TmpBytes: c.tmpBytes, Files: c.files},
		ScratchBytes: c.scratch, ReadOnly: c.readOnly, TTY: c.Tty, Rows: c.console[0], Columns: c.console[1], OpenStdin: c.OpenStdin, StdinOnce: c.OpenStdin && c.StdinOnce, AutoRemove: c.autoRemove,
	}
	switch {
	case c.work && c.workDenied:
		out.Work = container.WorkReadOnly
	case c.work:
		out.Work = container.WorkWrite
	}
	return out
}

// own returns a container for the operation named what. For an instance, own returns an error,
// because the engine starts and removes instances as events arrive.
func (s *server) own(ref, what string) (shownContainer, error) {
	c, err := s.container(ref)
	if err == nil && c.record == nil {
		err = conflict("container %s is an instance of %s: events start instances, not docker %s", ref, c.origin(), what)
	}
	return c, err
}

// containerStart answers POST /containers/ID/start.
func (s *server) containerStart(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "start")
	if err != nil {
		return err
	}
	// A client that disconnects has started the container all the same.
	err = s.engine.StartContainer(context.WithoutCancel(r.Context()), c.ID)
	if errors.Is(err, container.ErrContainerRunning) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// containerRestart answers POST /containers/ID/restart?t=&signal=.
func (s *server) containerRestart(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "restart")
	if err != nil {
		return err
	}
	how, err := stopOf(r)
	if err != nil {
		return err
	}
	if err := s.engine.RestartContainer(context.WithoutCancel(r.Context()), c.ID, how); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stopOf parses how to stop a container: the grace period, by default 10 seconds, and the
// signal, by default the container's own.
func stopOf(r *http.Request) (how live.StopOptions, err error) {
	if v := r.URL.Query().Get("signal"); v != "" {
		if how.Signal, err = parseSignal(v); err != nil {
			return how, err
		}
	}
	how.Grace = 10 * time.Second
	v := r.URL.Query().Get("t")
	if v == "" {
		return how, nil
	}
	n, err := strconv.Atoi(v)
	switch {
	case err != nil || n > 1<<30:
		return how, badRequest("t: %q is not a number of seconds", v)
	case n < 0:
		how.Grace = 1 << 62 // no limit
	default:
		how.Grace = time.Duration(n) * time.Second
	}
	return how, nil
}

// containerRename answers POST /containers/ID/rename?name=.
func (s *server) containerRename(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "rename")
	if err != nil {
		return err
	}
	if err := s.engine.RenameContainer(c.ID, strings.TrimPrefix(r.URL.Query().Get("name"), "/")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// containerRemove answers DELETE /containers/ID?force=&v=&link=. For an ended instance, the
// engine forgets the record.
func (s *server) containerRemove(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := s.removeContainer(c, boolOf(r, "force")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) removeContainer(c shownContainer, force bool) error {
	if c.record != nil {
		return s.engine.RemoveContainer(c.ID, container.RemoveForce(force))
	}
	if c.running() {
		if !force {
			return conflict("cannot remove container %q: container is running: stop the container before removing or force remove", "/"+c.name)
		}
		if err := s.engine.Kill(c.ID); err != nil {
			return err
		}
	}
	return s.engine.Forget(c.ID)
}

// containerPrune answers POST /containers/prune?filters=: removes stopped containers and ended
// instances.
func (s *server) containerPrune(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "until", "label", "label!")
	if err != nil {
		return err
	}
	until, err := f.moment("until", time.Now())
	if err != nil {
		return err
	}
	var answer types.PruneReport
	for _, c := range s.containers(true) {
		if c.running() || !f.labels(c.labels()) || !until.IsZero() && c.made.After(until) {
			continue
		}
		written, _ := s.sizes(c)
		if err := s.removeContainer(c, false); err != nil {
			if status := errorStatus(err); status == http.StatusNotFound || status == http.StatusConflict {
				continue // removed or started since the listing
			}
			return err
		}
		answer.ContainersDeleted = append(answer.ContainersDeleted, c.ID)
		answer.SpaceReclaimed += uint64(written)
	}
	s.engine.Changes().Add(store.Change{Kind: store.ChangeSandbox, Action: store.ActionPrune, Attributes: map[string]string{"bytes": strconv.FormatUint(answer.SpaceReclaimed, 10)}})
	return reply(w, http.StatusOK, answer)
}

// containerResize answers POST /containers/ID/resize?h=&w=, with the size in characters.
func (s *server) containerResize(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "resize")
	if err != nil {
		return err
	}
	var size [2]uint16
	for i, key := range []string{"h", "w"} {
		n, err := strconv.ParseUint(r.URL.Query().Get(key), 10, 16)
		if err != nil {
			return badRequest("%s: %q is not a size of a terminal", key, r.URL.Query().Get(key))
		}
		size[i] = uint16(n)
	}
	if !c.record.Config.TTY {
		return conflict("container %s has no terminal: create the container with -t", c.ID)
	}
	if err := s.engine.ResizeContainer(c.ID, size[0], size[1]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// peer is the client's end of a container's streams. conn is set after the attachment is made
// and before the client gets the answer.
type peer struct {
	conn   net.Conn
	in     io.Reader
	detach func() // called once the detach keys end in
}

func (p *peer) Write(b []byte) (int, error) { return p.conn.Write(b) }

// Read reads input for the program.
func (p *peer) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	if errors.Is(err, api.ErrDetached) {
		p.detach()
	}
	return n, err
}

// containerAttach answers POST /containers/ID/attach?stdin=&stdout=&stderr=&stream=
// &logs=&detachKeys=. The connection becomes the container's streams: frames, or raw bytes with
// a terminal.
//
//	client → POST … Upgrade: tcp     server → 101 UPGRADED, from here on nothing is missed
//	client → stdin, end of file      server → frames, end of file with the container
func (s *server) containerAttach(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "attach")
	if err != nil {
		return err
	}
	keys, err := api.ParseKeys(r.URL.Query().Get("detachKeys"))
	if err != nil {
		return badRequest("detachKeys: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // the context of a hijacked request ends with the handler
	defer cancel()
	var a *container.Attachment
	p := &peer{detach: func() {
		if a != nil {
			a.Detached()
		}
		cancel()
	}}
	var mu sync.Mutex
	var o container.AttachOptions
	tty := c.record.Config.TTY
	if boolOf(r, "stdin") && c.record.Config.OpenStdin {
		o.Stdin = p
	}
	if boolOf(r, "stdout") {
		o.Stdout = frames{&mu, p, stdout}
		if tty {
			o.Stdout = p
		}
	}
	if boolOf(r, "stderr") {
		o.Stderr = frames{&mu, p, stderr}
	}
	if boolOf(r, "stream") {
		if a, err = s.engine.Attach(c.ID, o); err != nil {
			return err
		}
		defer a.Close()
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer conn.Close()
	p.conn, p.in = conn, rw.Reader
	if tty {
		p.in = &api.EscapeReader{From: rw, Keys: keys}
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil // the client has disconnected
	}
	if _, err := io.WriteString(conn, upgraded(r, tty)); err != nil {
		return nil // likewise
	}
	headTaken(conn)
	if boolOf(r, "logs") {
		s.replay(ctx, c, o)
	}
	if a != nil {
		_ = a.Serve(ctx) // an error has no receiver: the client has disconnected
	}
	hangUp(conn)
	return nil
}

// headTaken waits until the client has read the head of the answer, at most a second. A client
// that reads the head by lines may read ahead into the stream, and lose this part when the
// client switches to the raw connection (Python's http.client, and thus docker-py).
func headTaken(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for range 1000 {
		unread := 0
		err := raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || unread == 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
}

// upgraded returns the head of the answer to a request whose connection becomes a stream.
func upgraded(r *http.Request, tty bool) string {
	media := multiplexedStream
	if tty || versionOf(r) < 42 {
		media = rawStream
	}
	if r.Header.Get("Upgrade") == "" {
		return "HTTP/1.1 200 OK\r\nContent-Type: " + media + "\r\n\r\n"
	}
	return "HTTP/1.1 101 UPGRADED\r\nContent-Type: " + media + "\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
}

// replay writes the container's output so far.
func (s *server) replay(ctx context.Context, c shownContainer, o container.AttachOptions) {
	_ = s.engine.ContainerLogs(ctx, c.ID, live.LogOptions{Tail: -1}, func(l live.LogLine) error {
		w := o.Stdout
		if l.Stream == "stderr" {
			w = o.Stderr
		}
		if w == nil {
			return nil
		}
		_, err := io.WriteString(w, printed(l))
		return err
	}) // an error has no receiver: the client has disconnected
}

// hangUpWithin limits the wait for the client to close the connection.
const hangUpWithin = 5 * time.Second

// hangUp closes the write side and waits for the client to close. Closing a Unix socket with
// unread bytes resets the connection, and the client would lose output.
func hangUp(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	if conn.SetReadDeadline(time.Now().Add(hangUpWithin)) == nil {
		_, _ = io.Copy(io.Discard, conn) // until the client closes or the deadline passes
	}
}
