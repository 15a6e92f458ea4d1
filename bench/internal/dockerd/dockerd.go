// Package dockerd runs a Docker engine for a benchmark, beside the machine's own. The engine's
// data, sockets and cgroups are private. The engine has no bridge, does not touch the firewall, and
// leaves nothing behind after Close.
package dockerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// ErrMissing reports that no Docker engine is installed.
var ErrMissing = errors.New("dockerd is not installed (make deps-bench installs Debian's docker.io)")

// strays lists the directories that dockerd and containerd create regardless of their configured
// state directories, the deepest first.
var strays = []string{"/run/containerd/s", "/run/containerd", "/run/docker/plugins", "/run/docker"}

// Engine is a running dockerd with its containerd. Several goroutines may call its methods.
type Engine struct {
	dir    string   // holds data, state and sockets
	client string   // path of the docker program
	parent string   // the containers' cgroups are below this path, in every hierarchy
	made   []string // strays that did not exist before
	mounts string   // the mount namespace of the engine and its children
	cmd    *exec.Cmd
	log    *os.File
	done   chan struct{}
	err    error // of the process, set before done is closed
}

// Start runs an engine below dir and returns once the engine answers. Start creates dir, Close
// removes dir; dir must be on a file system that supports overlay2. The error is [ErrMissing], or
// tells why the engine does not answer; after an error no process is left.
func Start(ctx context.Context, dir string) (*Engine, error) {
	program, err := exec.LookPath("dockerd")
	if err != nil {
		return nil, ErrMissing
	}
	// Prefer the client of Debian's package to the first client in PATH.
	client := "/usr/bin/docker"
	if _, err := os.Stat(client); err != nil {
		if client, err = exec.LookPath("docker"); err != nil {
			return nil, ErrMissing
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	e := &Engine{dir: dir, client: client, parent: fmt.Sprintf("fre-bench-docker-%d", os.Getpid()), done: make(chan struct{})}
	for _, stray := range strays {
		if _, err := os.Stat(stray); errors.Is(err, fs.ErrNotExist) {
			e.made = append(e.made, stray)
		}
	}
	config := filepath.Join(dir, "config.json") // replaces the machine's configuration
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if e.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e.cmd = exec.Command(program,
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", e.host(),
		"--storage-driver", "overlay2", "--cgroup-parent", "/"+e.parent,
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--config-file", config,
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
		"--log-level", "error")
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	// A private mount namespace: the engine's mounts disappear with its last process. A private
	// process group: the terminal's Ctrl-C reaches only the benchmark, which closes the engine.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: unix.CLONE_NEWNS}
	if err := e.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start dockerd: %w", err), e.log.Close(), os.RemoveAll(dir))
	}
	go func() {
		e.err = e.cmd.Wait()
		close(e.done)
	}()
	if err := e.wait(ctx); err != nil {
		text, _ := os.ReadFile(e.log.Name())
		return nil, errors.Join(fmt.Errorf("%w: %s", err, tail(text)), e.Close())
	}
	return e, nil
}

func (e *Engine) host() string { return "unix://" + filepath.Join(e.dir, "docker.sock") }

func tail(log []byte) []byte {
	return bytes.TrimSpace(log[max(0, len(log)-1024):])
}

// wait returns once the engine answers, or with an error after a minute.
func (e *Engine) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		select {
		case <-e.done:
			return fmt.Errorf("dockerd ended: %w", e.err)
		default:
		}
		_, err := e.Run(ctx, "info")
		if err == nil {
			e.mounts, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", e.cmd.Process.Pid))
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Command returns the command line of the docker client for this engine.
func (e *Engine) Command(args ...string) []string {
	return slices.Concat([]string{e.client, "--host", e.host()}, args)
}

// Run runs the docker client and returns the standard output.
func (e *Engine) Run(ctx context.Context, args ...string) (string, error) {
	argv := e.Command(args...)
	return testdaemon.Command(ctx, argv[0], argv[1:]...)
}

// Import makes an image with one layer from the directory tree at root.
func (e *Engine) Import(ctx context.Context, root, name string) error {
	tar := exec.CommandContext(ctx, "tar", "--directory", root, "--create", "--numeric-owner", ".")
	argv := e.Command("import", "-", name)
	load := exec.CommandContext(ctx, argv[0], argv[1:]...)
	pipe, err := tar.StdoutPipe()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	load.Stdin, load.Stdout, load.Stderr = pipe, &out, &out
	if err := tar.Start(); err != nil {
		return err
	}
	if err := errors.Join(load.Run(), tar.Wait()); err != nil {
		return fmt.Errorf("docker import %s: %w: %s", root, err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// Layers returns the directory with the files of all images.
func (e *Engine) Layers() string { return filepath.Join(e.dir, "data", "overlay2") }

// PIDs returns the engine's own processes: dockerd, containerd and the shim of each container, but
// not the processes in containers.
func (e *Engine) PIDs() ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		if ns, err := os.Readlink(link); err != nil || ns != e.mounts {
			continue // in another namespace, or already ended
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Close kills the containers, stops the engine, and removes images, cgroups and dir.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var errs []error
	if e.mounts != "" {
		ids, err := e.Run(ctx, "ps", "--all", "--quiet")
		if containers := strings.Fields(ids); err == nil && len(containers) > 0 {
			_, err = e.Run(ctx, slices.Concat([]string{"rm", "--force"}, containers)...)
		}
		errs = append(errs, err)
	}
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, err)
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		errs = append(errs, errors.New("dockerd did not end within two minutes: killed"), e.cmd.Process.Kill())
		<-e.done
	}
	for _, stray := range e.made {
		if err := unix.Rmdir(stray); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, fmt.Errorf("remove %s: %w", stray, err))
		}
	}
	errs = append(errs, e.killRest(), e.removeCgroups(), e.log.Close(), os.RemoveAll(e.dir))
	return errors.Join(errs...)
}

// killRest kills the processes that survived dockerd, such as containerd or a shim.
func (e *Engine) killRest() error {
	if e.mounts == "" {
		return nil
	}
	pids, err := e.PIDs()
	for _, pid := range pids {
		if kill := unix.Kill(pid, unix.SIGKILL); !errors.Is(kill, unix.ESRCH) {
			err = errors.Join(err, kill)
		}
	}
	return err
}

func (e *Engine) removeCgroups() error {
	parents, err := filepath.Glob("/sys/fs/cgroup/*/" + e.parent)
	if err != nil {
		return err
	}
	parents = append(parents, "/sys/fs/cgroup/"+e.parent)
	var errs []error
	for _, parent := range parents {
		// Children first: dockerd leaves nested cgroups.
		var groups []string
		errs = append(errs, filepath.WalkDir(parent, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err == nil && d.IsDir():
				groups = append(groups, path)
			}
			return err
		}))
		for _, group := range slices.Backward(groups) {
			if err := unix.Rmdir(group); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", group, err))
			}
		}
	}
	return errors.Join(errs...)
}
