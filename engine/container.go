package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// A container is a sandbox with a record on disk: it is made, started, stopped and
// started again, each time on the scratch layer the last run left.
//
//	STATE/containers/ID/config.json   what it is and how it last ended
//	STATE/containers/ID/hosts         its /etc/hosts
//	STATE/containers/ID/log/          what it printed
//	STATE/containers/ID/scratch       a volume: what it wrote to its root
//
//	created ─▶ running ◀─▶ exited ─▶ (removed)
//
// A directory without config.json is one that was not made, or not removed, to the
// end: the next engine takes it away. One that is running there ran when its
// engine died, and has exited.

// Errors of containers.
var (
	ErrContainerRunning = errors.New("container is running")
	ErrContainerStopped = errors.New("container is not running")
)

// ContainerConfig is what a container is made from. Required: Image. What the
// zero value leaves open, the image says.
type ContainerConfig struct {
	Image  string `json:"image"`            // reference
	Name   string `json:"name"`             // unique; made up if empty
	Tenant string `json:"tenant,omitempty"` // "default" if empty

	Entrypoint []string          `json:"entrypoint,omitempty"` // with Cmd behind it; one "" for none
	Cmd        []string          `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty"`         // KEY=value, over the image's
	Unset      []string          `json:"unset,omitempty"`       // variables that it has not, whoever sets them
	Dir        string            `json:"dir,omitempty"`         // made if it is missing
	User       string            `json:"user,omitempty"`        // name or id, with ":" and a group's or without
	Groups     []string          `json:"groups,omitempty"`      // beside those the image gives User: names or ids
	CapAdd     []string          `json:"cap_add,omitempty"`     // of those that containers have at most; over CapDrop
	CapDrop    []string          `json:"cap_drop,omitempty"`    // that root is not to have; ALL for every one
	Hostname   string            `json:"hostname,omitempty"`    // the id's first 12 digits if empty
	Labels     map[string]string `json:"labels,omitempty"`      // over the image's
	StopSignal unix.Signal       `json:"stop_signal,omitempty"` // SIGTERM if 0

	Network      image.NetworkMode `json:"network,omitempty"` // none if empty
	Limits       sandbox.Limits    `json:"limits,omitzero"`   // zero: all CPUs, a quarter of the memory, 4096 processes
	ScratchBytes int64             `json:"scratch_bytes,omitempty"`
	ReadOnly     bool              `json:"read_only,omitempty"` // the root takes no writes
	Work         WorkAccess        `json:"work,omitempty"`      // whether it sees its tenant's /work

	TTY       bool `json:"tty,omitempty"`        // a terminal instead of three streams
	OpenStdin bool `json:"open_stdin,omitempty"` // stdin comes from attachments; else there is none
	StdinOnce bool `json:"stdin_once,omitempty"` // and ends with the first one's

	AutoRemove bool `json:"auto_remove,omitempty"` // once it has ended
}

// WorkAccess says what a container may do with its tenant's /work.
type WorkAccess string

// The ways to see /work.
const (
	WorkNone     WorkAccess = "" // not at all
	WorkReadOnly WorkAccess = "ro"
	WorkWrite    WorkAccess = "rw"
)

// scratchBytes is the limit of what a container writes where none is asked for and
// the host can keep one.
const scratchBytes = 10 << 30

// ExitCode is a run's status as shells have it: 128 and the signal that ended it.
func ExitCode(s *sandbox.ExitStatus) int {
	switch {
	case s == nil:
		return 0
	case s.Signal != 0:
		return 128 + s.Signal
	}
	return s.Code
}

// Container is what lists and inspections show of one. It is the caller's.
type Container struct {
	ID      string          `json:"id"` // 64 hexadecimal digits
	Config  ContainerConfig `json:"config"`
	Digest  store.Digest    `json:"digest"` // of the image
	Args    []string        `json:"args"`   // program and its arguments
	Env     []string        `json:"env"`    // all of it
	Created time.Time       `json:"created"`

	State    State               `json:"state"` // StateCreated, StateRunning or StateExited
	Started  time.Time           `json:"started,omitzero"`
	Finished time.Time           `json:"finished,omitzero"`
	Exit     *sandbox.ExitStatus `json:"exit,omitempty"`  // of the last run; nil before its end
	Error    string              `json:"error,omitempty"` // why it could not be started, the last time

	// Scratch is what it has written to its root, as of Scratch.AsOf; of a running
	// one only where that is asked for (ContainerScratch).
	Scratch volume.Usage `json:"scratch,omitzero"`

	PID int `json:"-"` // on the host; 0 unless it runs
}

// container is a record and, while it runs, its sandbox.
type container struct {
	e      *Engine
	id     string
	digest store.Digest
	dir    string
	log    *functionLog
	row    *row       // in lists
	op     sync.Mutex // one start, renaming or removal at a time
	disk   sync.Mutex // held while the record is written

	mu      sync.Mutex
	c       Container
	box     *box           // while it runs
	scratch *volume.Volume // likewise
	streams *streams       // of this run, or the next
	runs    int            // that have ended
	removed bool
	changed chan struct{} // closed at every change of state
}

// newContainer opens the log of a record.
func (e *Engine) newContainer(rec Container) (*container, error) {
	c := &container{e: e, id: rec.ID, digest: rec.Digest, dir: filepath.Join(e.containers.dir, rec.ID), c: rec, streams: newStreams(e.life), changed: make(chan struct{})}
	var err error
	c.log, err = openLog(filepath.Join(c.dir, "log"), "", e.cfg.LogBytes, e.cfg.LogFiles)
	if err != nil {
		return nil, err
	}
	c.log.pause()
	return c, nil
}

// CreateContainer makes a container out of an image, which it holds from now on.
// What cannot be meant is an *image.FieldError, a name that is taken ErrNameTaken.
func (e *Engine) CreateContainer(ctx context.Context, cfg ContainerConfig) (*Container, error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.flight.Done()
	c, err := e.createContainer(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	return c, nil
}

func (e *Engine) createContainer(ctx context.Context, cfg ContainerConfig) (*Container, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var id [32]byte
	_, _ = rand.Read(id[:]) // never fails
	rec := Container{ID: hex.EncodeToString(id[:]), Created: time.Now().UTC(), State: StateCreated}
	img, err := e.cfg.Store.Image(cfg.Image)
	if err != nil {
		return nil, err
	}
	release, err := e.hold(img.Digest)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := e.completeContainer(&rec, img, cfg); err != nil {
		return nil, err
	}
	t := &e.containers
	if err := t.reserve(&rec); err != nil {
		return nil, err
	}
	dir := filepath.Join(t.dir, rec.ID)
	c, err := e.makeContainer(dir, rec)
	if err != nil {
		t.mu.Lock()
		delete(t.names, rec.Config.Name)
		t.mu.Unlock()
		return nil, errors.Join(err, e.removeContainerDir(dir))
	}
	c.row = e.boxes.addContainer(e, rec.sandbox(), c.change(store.ActionCreate))
	t.mu.Lock()
	t.byID[rec.ID], t.names[rec.Config.Name] = c, c
	t.mu.Unlock()
	return c.describe(), nil
}

func (e *Engine) makeContainer(dir string, rec Container) (*container, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t%s\n", rec.Config.Hostname)
	file := filepath.Join(dir, "hosts")
	if err := errors.Join(os.WriteFile(file, []byte(hosts), 0o644), os.Chmod(file, 0o644)); err != nil {
		return nil, err
	}
	c, err := e.newContainer(rec)
	if err != nil {
		return nil, err
	}
	if err := c.save(rec); err != nil {
		c.log.Close()
		return nil, err
	}
	return c, nil
}

// completeContainer fills in what the image and the engine say.
func (e *Engine) completeContainer(rec *Container, img *store.Image, cfg ContainerConfig) error {
	own, err := image.ConfigOf(img)
	if err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return &image.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
	}
	if err := imageDefaults(&cfg, own); err != nil {
		return err
	}
	if cfg.Tenant == "" {
		cfg.Tenant = image.DefaultTenant
	}
	if cfg.Hostname == "" {
		cfg.Hostname = rec.ID[:12]
	}
	if cfg.StopSignal == 0 {
		cfg.StopSignal = unix.SIGTERM
	}
	if cfg.Network == "" {
		cfg.Network = image.NetworkNone
	}
	switch {
	case cfg.Name != "" && !validContainerName(cfg.Name):
		return bad("name", "%q is not a container's name: letters, digits, and after the first one also _ . -, 2 to 128 of them", cfg.Name)
	case !image.ValidName(cfg.Tenant):
		return bad("tenant", "%q is not a tenant's name", cfg.Tenant)
	case !path.IsAbs(cfg.Dir):
		return bad("dir", "%q is not an absolute path", cfg.Dir)
	case len(cfg.Dir) >= unix.PathMax, strings.Contains(cfg.Dir, "\x00"), slices.ContainsFunc(strings.Split(cfg.Dir, "/"), func(name string) bool { return len(name) > maxFileName }):
		return bad("dir", "%.40q… is no path that Linux takes", cfg.Dir)
	case len(cfg.Hostname) > 64 || strings.ContainsAny(cfg.Hostname, " \t\r\n\x00"):
		return bad("hostname", "%q is no host name of 64 bytes at most", cfg.Hostname)
	case cfg.StopSignal < 1 || cfg.StopSignal > 64:
		return bad("stop_signal", "there is no signal %d", cfg.StopSignal)
	case cfg.ScratchBytes < 0 || cfg.ScratchBytes > 0 && cfg.ScratchBytes < volume.MinBytes:
		return bad("scratch_bytes", "a limit is %d bytes at least", int64(volume.MinBytes))
	case cfg.Work != WorkNone && cfg.Work != WorkReadOnly && cfg.Work != WorkWrite:
		return bad("work", "%q is neither ro nor rw", string(cfg.Work))
	case cfg.StdinOnce && !cfg.OpenStdin:
		return bad("stdin_once", "takes open_stdin")
	}
	for _, kv := range cfg.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.Contains(kv, "\x00") {
			return bad("env", "%q is not NAME=value", kv)
		}
	}
	args := slices.Concat(cfg.Entrypoint, cfg.Cmd)
	if len(cfg.Entrypoint) == 1 && cfg.Entrypoint[0] == "" {
		args = cfg.Cmd
	}
	if len(args) == 0 || args[0] == "" {
		return bad("cmd", "name a command: this image has no default")
	}
	if i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "\x00") }); i >= 0 {
		return bad("cmd", "%.40q holds a NUL byte", args[i])
	}
	if cfg.ScratchBytes > 0 {
		if err := e.volumes.CanLimit(); err != nil {
			return bad("scratch_bytes", "%v", err)
		}
	}
	if _, err := cfg.capabilities(); err != nil {
		return err
	}
	who, err := userOf(e.cfg.Store.Rootfs(img.Digest), cfg.User, cfg.Groups)
	if err != nil {
		return err
	}
	cfg.Limits, err = e.containerLimits(cfg.Limits)
	if err != nil {
		return err
	}
	if err := e.setNetwork(&sandbox.Spec{}, image.Network{Mode: cfg.Network}); err != nil {
		return err
	}
	rec.Config, rec.Digest, rec.Args, rec.Env = cfg, img.Digest, args, containerEnv(cfg, own, who)
	return nil
}

// capabilities are those that root has in a container. What it cannot have is an
// *image.FieldError.
func (cfg *ContainerConfig) capabilities() (sandbox.Capabilities, error) {
	drop, err := sandbox.ParseCapabilities(cfg.CapDrop)
	if err != nil {
		return 0, &image.FieldError{Field: "cap_drop", Message: err.Error()}
	}
	add, err := sandbox.ParseCapabilities(cfg.CapAdd)
	if err == nil && add&^sandbox.ContainerCapabilities != 0 {
		err = fmt.Errorf("containers have none but %v", sandbox.ContainerCapabilities)
	}
	if err != nil {
		return 0, &image.FieldError{Field: "cap_add", Message: err.Error()}
	}
	return sandbox.ContainerCapabilities&^drop | add, nil
}

// imageDefaults takes from the image what cfg leaves open, as Docker does: an entry
// point of one's own is without the image's command.
func imageDefaults(cfg *ContainerConfig, own image.Config) error {
	labels := maps.Clone(own.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	says := own.AsContainer()
	if cfg.Entrypoint == nil {
		cfg.Entrypoint = says.Entrypoint
		if cfg.Cmd == nil {
			cfg.Cmd = says.Cmd
		}
	}
	if cfg.User == "" {
		cfg.User = says.User
	}
	if cfg.Dir == "" {
		cfg.Dir = path.Join("/", says.WorkingDir)
	}
	if cfg.StopSignal == 0 && says.StopSignal != "" {
		var ok bool
		if cfg.StopSignal, ok = ParseSignal(says.StopSignal); !ok {
			return &image.FieldError{Field: "stop_signal", Message: fmt.Sprintf("the image's %q is no signal", says.StopSignal)}
		}
	}
	maps.Copy(labels, says.Labels)
	maps.Copy(labels, cfg.Labels)
	cfg.Labels = labels
	return nil
}

// ParseSignal reads a signal's number, or its name with SIG or without; the real-time
// ones are RTMIN+1, RTMAX-2 and so on (signal(7), of glibc's).
func ParseSignal(s string) (unix.Signal, bool) {
	const rtmin, rtmax = 34, 64
	if n, err := strconv.Atoi(s); err == nil {
		return unix.Signal(n), n >= 1 && n <= rtmax
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for prefix, first := range map[string]int{"RTMIN": rtmin, "RTMAX": rtmax} {
		if offset, ok := strings.CutPrefix(name, prefix); ok {
			n, err := strconv.Atoi(cmp.Or(offset, "0"))
			n += first
			return unix.Signal(n), err == nil && n >= rtmin && n <= rtmax
		}
	}
	sig := unix.SignalNum("SIG" + name)
	return sig, sig != 0
}

// containerPath is where programs are looked for in an image that does not say.
const containerPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// containerEnv is a container's whole environment: each variable once, the last
// one of a name, but for those that it is not to have.
func containerEnv(cfg ContainerConfig, own image.Config, who account) []string {
	all := []string{"PATH=" + containerPath, "HOSTNAME=" + cfg.Hostname, "HOME=" + who.home}
	if cfg.TTY {
		all = append(all, "TERM=xterm")
	}
	all = slices.DeleteFunc(lastOfEach(slices.Concat(all, own.Env, cfg.Env)), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(cfg.Unset, name)
	})
	return withLimits(all, image.Resources{CPUMillis: cfg.Limits.CPUMillis, MemoryBytes: cfg.Limits.MemoryBytes})
}

// lastOfEach is an environment with each variable once, as it was set last.
func lastOfEach(env []string) []string {
	at := map[string]int{}
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

// containerLimits fills in the limits of an ordinary program, and refuses those
// that the host cannot keep.
func (e *Engine) containerLimits(l sandbox.Limits) (sandbox.Limits, error) {
	if l.MemoryBytes < 0 || l.CPUMillis < 0 || l.Pids < 0 || l.TmpBytes < 0 || l.TmpInodes < 0 || l.Files < 0 {
		return l, &image.FieldError{Field: "limits", Message: "are negative"}
	}
	if err := e.checkLimits(image.Resources{MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis, Pids: l.Pids, Files: l.Files}); err != nil {
		return l, err
	}
	memory, err := sandbox.HostMemory()
	if err != nil {
		return l, err
	}
	given := l
	l = sandbox.Limits{MemoryBytes: memory / 4, CPUMillis: int64(runtime.NumCPU()) * 1000, Pids: 4096, TmpBytes: 256 << 20, Files: 65536}
	for _, f := range []struct{ to, from *int64 }{
		{&l.MemoryBytes, &given.MemoryBytes},
		{&l.CPUMillis, &given.CPUMillis},
		{&l.Pids, &given.Pids},
		{&l.TmpBytes, &given.TmpBytes},
		{&l.TmpInodes, &given.TmpInodes},
		{&l.Files, &given.Files},
	} {
		if *f.from != 0 {
			*f.to = *f.from
		}
	}
	return e.cfg.Sandboxes.CutLimits(l)
}

// maxFileName is how many bytes a file's name may have (limits.h, NAME_MAX).
const maxFileName = 255

// validContainerName is Docker's rule (moby, daemon/names).
func validContainerName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return len(s) >= 2 && len(s) <= 128
}

func (c *container) describe() *Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.c
	if c.box != nil {
		d.PID = c.box.sb.PID()
	}
	return &d
}

// sandbox describes a container that does not run as one of the sandboxes.
func (c *Container) sandbox() *Sandbox {
	made := *c
	s := &Sandbox{
		Container: &made,
		ID:        c.ID, Name: c.Config.Name, Image: c.Config.Image, Digest: c.Digest, Tenant: c.Config.Tenant, Limits: c.Config.Limits,
		Command: strings.Join(c.Args, " "), State: c.State, Created: c.Created,
	}
	if c.State == StateExited {
		s.Ended, s.Exit = c.Finished, c.Exit
	}
	return s
}

// change notes a creation or removal.
func (c *container) change(a store.ChangeAction) store.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return store.Change{Kind: store.ChangeSandbox, Action: a, ID: c.c.ID, Name: c.c.Config.Name, Attributes: map[string]string{
		"image": c.c.Config.Image, "tenant": c.c.Config.Tenant, "name": c.c.Config.Name,
	}}
}

// update changes the record, on disk and then in memory, where and runs at the
// same moment, with c.mu held. Those who wait for a state wake up. A record that
// cannot be saved is in force all the same.
func (c *container) update(change func(*Container), and func()) error {
	c.disk.Lock()
	defer c.disk.Unlock()
	c.mu.Lock()
	rec := c.c
	c.mu.Unlock()
	change(&rec)
	err := c.save(rec)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.c = rec
	if and != nil {
		and()
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return err
}

// RenameContainer gives a container another name. Errors as of CreateContainer.
func (e *Engine) RenameContainer(ref, name string) error {
	c, err := e.containers.find(ref)
	if err != nil {
		return err
	}
	if !validContainerName(name) {
		return fmt.Errorf("rename container: %w", &image.FieldError{Field: "name", Message: fmt.Sprintf("%q is not a container's name", name)})
	}
	c.op.Lock()
	defer c.op.Unlock()
	t := &e.containers
	old := c.describe().Config.Name // with op held it stays
	t.mu.Lock()
	_, taken := t.names[name]
	gone := t.byID[c.id] == nil
	if !taken && !gone {
		t.names[name] = c
	}
	t.mu.Unlock()
	switch {
	case gone:
		return fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	case taken:
		return fmt.Errorf("rename container: %w: %q is a container's already", ErrNameTaken, name)
	}
	err = c.update(func(rec *Container) { rec.Config.Name = name }, nil)
	if err != nil { // on disk it has its old one
		err = errors.Join(err, c.update(func(rec *Container) { rec.Config.Name = old }, nil))
		old = name
	}
	t.mu.Lock()
	delete(t.names, old)
	t.mu.Unlock()
	if err == nil {
		e.boxes.renameContainer(e, c.row, name, c.change(store.ActionRename))
	}
	return err
}

// RemoveContainer forgets a container and deletes what it wrote and printed. One
// that runs is killed first with force, and refused without (ErrContainerRunning).
func (e *Engine) RemoveContainer(ref string, force RemoveForce) error {
	c, err := e.containers.find(ref)
	if err != nil {
		return err
	}
	return e.removeContainer(c, force)
}

// RemoveForce says whether a removal may end what runs.
type RemoveForce bool

func (e *Engine) removeContainer(c *container, force RemoveForce) error {
	c.op.Lock()
	defer c.op.Unlock()
	c.mu.Lock()
	b, removed := c.box, c.removed
	c.mu.Unlock()
	switch {
	case removed:
		return fmt.Errorf("container %q: %w", c.id, fs.ErrNotExist)
	case b != nil && !bool(force):
		return fmt.Errorf("remove container %s: %w: stop it first, or use force", c.id[:12], ErrContainerRunning)
	case b != nil:
		b.kill()
		<-b.gone
	}
	return e.dropContainer(c)
}

// dropContainer removes a container that does not run, with op held or known to
// nobody.
func (e *Engine) dropContainer(c *container) error {
	// First its record: without that the next engine does the rest.
	if err := os.Remove(filepath.Join(c.dir, "config.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove container: %w", err)
	}
	t := &e.containers
	name := c.describe().Config.Name
	t.mu.Lock()
	delete(t.byID, c.id)
	delete(t.names, name)
	t.mu.Unlock()
	e.boxes.removeContainer(e, c.row, c.change(store.ActionDelete))
	c.log.Close()
	err := e.removeContainerDir(c.dir)
	c.disk.Lock()
	defer c.disk.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = true
	c.streams.end()
	close(c.changed)
	c.changed = make(chan struct{})
	return err
}

func (e *Engine) removeContainerDir(dir string) error {
	if err := e.volumes.Remove(filepath.Join(dir, "scratch")); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}
