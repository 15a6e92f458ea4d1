package main

import (
	"bytes"
	"context"
	_ "embed" // enter.c
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/cc"
	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/memory"
	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/channel"
)

//go:embed c/enter.c
var enterSource []byte

// user is the uid of functions outside FRE: nobody.
const user = 65534

// answerWithin bounds the time until an instance is ready and has answered.
const answerWithin = 30 * time.Second

// serveOne acts as the engine: it waits for READY on conn, sends the function's event and checks
// the answer.
func serveOne(ctx context.Context, conn *channel.Conn, w *web) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if _, err := conn.Ready(ctx); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	inv := &channel.Invocation{
		Function: w.function(), ID: "bench", Tenant: "default", DeadlineMS: deadline.UnixMilli(),
		Request: channel.Request{Method: w.event.Method, Path: "/", Body: strings.NewReader(w.event.Body)},
	}
	for name, value := range w.event.Headers {
		inv.Headers = append(inv.Headers, [2]string{name, value})
	}
	reply, err := conn.Invoke(ctx, inv)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(reply.Body)
	if err := errors.Join(err, reply.Body.Close()); err != nil {
		return err
	}
	if reply.Status != 200 {
		return fmt.Errorf("status %d: %s", reply.Status, body)
	}
	return nil
}

// bare runs functions as processes of the host, without namespaces, cgroups or limits, in the trees
// made by FRE. Two trees share each common file, as on a host with all packages installed.
type bare struct {
	holder    *exec.Cmd // keeps the mounts below the trees
	stdin     io.Closer
	instances []*bareInstance
}

type bareInstance struct {
	cmd  *exec.Cmd
	conn *channel.Conn
}

// newBare prepares the trees as root directories, with the host's /proc and /dev and a /tmp. The
// mounts are in the mount namespace of the holder process and disappear with the holder.
func newBare(ctx context.Context, webs []*web) (*bare, error) {
	script := `for root; do
	mount --bind /proc "$root/proc" && mount --bind /dev "$root/dev" && mount -t tmpfs -o size=64m,mode=1777 tmp "$root/tmp" || exit
done
echo ready
exec cat`
	args := []string{"-c", script, "sh"}
	for _, w := range webs {
		args = append(args, w.rootfs)
	}
	b := &bare{holder: exec.CommandContext(ctx, "/bin/sh", args...)}
	b.holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	var stderr bytes.Buffer
	b.holder.Stderr = &stderr
	stdin, err := b.holder.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := b.holder.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.holder.Start(); err != nil {
		return nil, err
	}
	b.stdin = stdin
	if _, err := fmt.Fscanln(stdout); err != nil && !strings.Contains(err.Error(), "expected newline") {
		return nil, fmt.Errorf("mount what bare processes need: %w: %s", errors.Join(err, b.close()), stderr.String())
	}
	return b, nil
}

func (b *bare) name() string { return "bare" }

func (b *bare) start(ctx context.Context, w *web, n int) error {
	for range n {
		if err := b.startOne(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) startOne(ctx context.Context, w *web) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "channel")
	defer ours.Close()
	defer theirs.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	conn := channel.NewConn(c.(*net.UnixConn), channel.Config{})
	var stderr bytes.Buffer
	cmd := &exec.Cmd{
		Path: w.config.Args[0], Args: w.config.Args, Env: w.environ(), Dir: "/function",
		ExtraFiles: []*os.File{theirs}, Stderr: &stderr,
		SysProcAttr: &syscall.SysProcAttr{
			// The path through the holder's /proc entry contains the holder's mounts, but the
			// process stays in the host's namespaces.
			Chroot:     fmt.Sprintf("/proc/%d/root%s", b.holder.Process.Pid, w.rootfs),
			Credential: &syscall.Credential{Uid: user, Gid: user},
			Setpgid:    true,
		},
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, conn.Close())
	}
	b.instances = append(b.instances, &bareInstance{cmd, conn})
	if err := serveOne(ctx, conn, w); err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	return nil
}

// environ returns the function's environment, as FRE sets it.
func (w *web) environ() []string {
	return slices.Concat(w.config.Env, []string{"FRE_CHANNEL=3", "FRE_CONCURRENCY=1"})
}

func (b *bare) processes(context.Context) ([]int, error) {
	var all []int
	for _, in := range b.instances {
		tree, err := memory.Tree(in.cmd.Process.Pid)
		if err != nil {
			return nil, err
		}
		all = append(all, tree...)
	}
	return all, nil
}

func (b *bare) helpers() ([]int, error) { return nil, nil }

func (b *bare) stop(context.Context) error {
	var errs []error
	for _, in := range b.instances {
		errs = append(errs, in.conn.Close(), unix.Kill(-in.cmd.Process.Pid, unix.SIGKILL))
		var exit *exec.ExitError
		if err := in.cmd.Wait(); !errors.As(err, &exit) { // killed by signal
			errs = append(errs, err)
		}
	}
	b.instances = nil
	return errors.Join(errs...)
}

func (b *bare) close() error {
	return errors.Join(b.stdin.Close(), b.holder.Wait())
}

// underDocker runs functions by docker. Each language has an image with the same files as FRE's
// image and the same limits.
type underDocker struct {
	engine *dockerd.Engine
	dir    string // the socket's directory, mounted in containers as /channel
	l      *net.UnixListener
	conns  []*channel.Conn
	ids    []string
}

func newDocker(ctx context.Context, e *dockerd.Engine, webs []*web, dir string) (_ *underDocker, err error) {
	d := &underDocker{engine: e, dir: filepath.Join(dir, "channel")}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := cc.Compile(ctx, d.dir, "enter", enterSource); err != nil {
		return nil, err
	}
	for _, w := range webs {
		if err := e.Import(ctx, w.rootfs, w.function()); err != nil {
			return nil, err
		}
	}
	socket := filepath.Join(d.dir, "socket")
	if d.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}); err != nil {
		return nil, err
	}
	// The containers' user must be able to reach and to connect to the socket.
	if err := errors.Join(os.Chmod(socket, 0o777), os.Chmod(d.dir, 0o755)); err != nil {
		return nil, errors.Join(err, d.l.Close())
	}
	return d, nil
}

func (d *underDocker) name() string { return "docker" }

func (d *underDocker) start(ctx context.Context, w *web, n int) error {
	limits := w.config.Resources
	args := []string{
		"run", "--detach", "--network", "none", "--read-only", "--tmpfs", "/tmp",
		"--user", fmt.Sprintf("%d:%d", user, user), "--workdir", "/function", "--volume", d.dir + ":/channel:ro",
		"--memory", strconv.FormatInt(limits.MemoryBytes, 10), "--memory-swap", strconv.FormatInt(limits.MemoryBytes, 10),
		"--cpus", fmt.Sprintf("%.3f", float64(limits.CPUMillis)/1000), "--pids-limit", strconv.FormatInt(limits.Pids, 10),
	}
	for _, variable := range w.environ() {
		args = append(args, "--env", variable)
	}
	args = slices.Concat(args, []string{w.function(), "/channel/enter", "/channel/socket"}, w.config.Args)
	for range n {
		id, err := d.engine.Run(ctx, args...)
		if err != nil {
			return err
		}
		id = strings.TrimSpace(id)
		d.ids = append(d.ids, id)
		if err := d.l.SetDeadline(time.Now().Add(answerWithin)); err != nil {
			return err
		}
		c, err := d.l.AcceptUnix()
		if err != nil {
			return err
		}
		conn := channel.NewConn(c, channel.Config{})
		d.conns = append(d.conns, conn)
		if err := serveOne(ctx, conn, w); err != nil {
			said, logs := d.engine.Run(ctx, "logs", id)
			return errors.Join(fmt.Errorf("%w: %s", err, said), logs)
		}
	}
	return nil
}

func (d *underDocker) processes(ctx context.Context) ([]int, error) {
	if len(d.ids) == 0 {
		return nil, nil
	}
	out, err := d.engine.Run(ctx, slices.Concat([]string{"inspect", "--format", "{{.State.Pid}}"}, d.ids)...)
	if err != nil {
		return nil, err
	}
	var all []int
	for field := range strings.FieldsSeq(out) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		own, err := memory.Beside(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, own...)
	}
	return all, nil
}

func (d *underDocker) helpers() ([]int, error) { return d.engine.PIDs() }

func (d *underDocker) stop(ctx context.Context) error {
	var errs []error
	for _, c := range d.conns {
		errs = append(errs, c.Close())
	}
	if len(d.ids) > 0 {
		_, err := d.engine.Run(ctx, slices.Concat([]string{"rm", "--force"}, d.ids)...)
		errs = append(errs, err)
	}
	d.conns, d.ids = nil, nil
	return errors.Join(errs...)
}

func (d *underDocker) close() error { return d.l.Close() }

// underFRE runs functions in the engine, by events through the gateway.
type underFRE struct{ engine *engine.Engine }

func (f *underFRE) name() string { return "fre" }

// start sends one event per instance, because an instance takes one event at a time, and completes
// no event before all have an instance. The bodies are chunked, because the engine reads a short
// body of known length before assigning an instance.
func (f *underFRE) start(ctx context.Context, w *web, n int) error {
	var conns []*rawhttp.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // no unread answer is left
		}
	}()
	var head strings.Builder
	fmt.Fprintf(&head, "%s /function/%s HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n", w.event.Method, w.function(), f.engine.Addr())
	for name, value := range w.event.Headers {
		fmt.Fprintf(&head, "%s: %s\r\n", name, value)
	}
	head.WriteString("\r\n")
	for range n {
		c, err := rawhttp.Dial(f.engine.Addr())
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if err := c.Send([]byte(head.String())); err != nil {
			return err
		}
	}
	if err := f.busy(ctx, w, n); err != nil {
		return err
	}
	body := fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(w.event.Body), w.event.Body)
	for _, c := range conns {
		resp, err := c.Do(body)
		if err != nil {
			return err
		}
		if resp.Status != 200 {
			return fmt.Errorf("status %d: %s", resp.Status, resp.Body)
		}
	}
	return nil
}

// busy waits until n instances of a function have an event.
func (f *underFRE) busy(ctx context.Context, w *web, n int) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for {
		all, err := f.sandboxes(ctx, w.function())
		if err != nil {
			return err
		}
		if len(slices.DeleteFunc(all, func(s api.Sandbox) bool { return s.State != "busy" })) == n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d instances of %s with an event each: %w", n, w.function(), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// sandboxes lists the sandboxes of one function of the benchmark, or of all.
func (f *underFRE) sandboxes(ctx context.Context, function string) ([]api.Sandbox, error) {
	all, err := engine.JSON[api.Sandbox](ctx, f.engine, "ps")
	return slices.DeleteFunc(all, func(s api.Sandbox) bool {
		return !strings.HasPrefix(s.Function, "bench-web-") || function != "" && s.Function != function
	}), err
}

func (f *underFRE) processes(ctx context.Context) ([]int, error) {
	sandboxes, err := f.sandboxes(ctx, "")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, s := range sandboxes {
		own, err := memory.Beside(s.PID)
		if err != nil {
			return nil, err
		}
		all = append(all, own...)
	}
	return all, nil
}

// helpers returns the processes of the engine, the spawner and the parked sandboxes.
func (f *underFRE) helpers() ([]int, error) { return memory.Tree(f.engine.PID()) }

func (f *underFRE) stop(ctx context.Context) error {
	sandboxes, err := f.sandboxes(ctx, "")
	if err != nil || len(sandboxes) == 0 {
		return err
	}
	args := []string{"kill"}
	for _, s := range sandboxes {
		args = append(args, s.ID)
	}
	if _, err := f.engine.CLI(ctx, args...); err != nil {
		return err
	}
	// A sandbox that is no longer listed may still be releasing memory.
	for _, s := range sandboxes {
		for unix.Kill(s.PID, 0) == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}
