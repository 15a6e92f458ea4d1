// Package container makes and runs containers: sandboxes from ordinary images, each with a record,
// a scratch layer and a log on disk. It also runs single commands.
//
// [Manager] is the table of all containers. A [Container] describes a container, a [Config]
// configures it. An [Attachment] is a client of a container's streams.
//
// Lock order: container.op, container.disk, containers.mu, live.Table.mu, container.mu,
// streams.mu.
package container

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// A container is a sandbox with a record on disk. It is created, started, stopped and started
// again. Each run continues on the scratch layer of the last run.
//
//	STATE/containers/ID/config.json   configuration and the end of the last run
//	STATE/containers/ID/hosts         its /etc/hosts
//	STATE/containers/ID/log/          its output
//	STATE/containers/ID/scratch       a volume with its writes to the root
//
//	created ─▶ running ◀─▶ exited ─▶ (removed)
//
// A directory without config.json belongs to an incomplete creation or removal: the next engine
// removes the directory. A record in the state running shows that the engine died during the
// run: the next engine changes the state to exited.

// Errors of operations on containers.
var (
	ErrContainerRunning = failure.New(failure.InUse, "container is running", "stop the container first (fre stop), or remove with --force")
)

// ExitCode returns the status of a run as a command shell reports it: 128 plus the signal's
// number for a run that a signal ended.
func ExitCode(s *sandbox.ExitStatus) int {
	switch {
	case s == nil:
		return 0
	case s.Signal != 0:
		return 128 + s.Signal
	}
	return s.Code
}

// Container describes a container in lists and inspections. The caller owns it.
type Container struct {
	ID      string       `json:"id"` // 64 hexadecimal digits
	Config  Config       `json:"config"`
	Digest  store.Digest `json:"digest"` // of the image
	Args    []string     `json:"args"`   // the program and its arguments
	Env     []string     `json:"env"`    // the whole environment
	Created time.Time    `json:"created"`

	State    live.State          `json:"state"` // live.StateCreated, live.StateRunning or live.StateExited
	Started  time.Time           `json:"started,omitzero"`
	Finished time.Time           `json:"finished,omitzero"`
	Exit     *sandbox.ExitStatus `json:"exit,omitempty"`  // of the last run; nil before its end
	Error    string              `json:"error,omitempty"` // why the last start failed

	// Scratch is the size of the writes to the root, as of Scratch.AsOf. For a running container
	// use ContainerScratch.
	Scratch volume.Usage `json:"scratch,omitzero"`

	PID int `json:"-"` // on the host; 0 unless it runs
}

// ManagerConfig wires a Manager. All fields but Scratches are required.
type ManagerConfig struct {
	Store     *store.Store
	Host      *sandbox.Host
	Volumes   *volume.Manager
	Scratches *pool.Pool[*volume.Volume] // prepared scratch layers of ScratchBytes; nil: none
	Life      *live.Life
	Boxes     *live.Table
	Tenants   *live.Tenants
	Holds     *live.Holds
	Networks  live.Networks
	Log       *slog.Logger
	StateDir  string // parent directory of containers/

	LogBytes int64 // size of a container's log file before it is rotated
	LogFiles int   // rotated files kept beside the current file
}

// Manager knows all containers. It is safe for use by several goroutines.
type Manager struct {
	store      *store.Store
	host       *sandbox.Host
	volumes    *volume.Manager
	scratches  *pool.Pool[*volume.Volume]
	life       *live.Life
	boxes      *live.Table
	tenants    *live.Tenants
	holds      *live.Holds
	networks   live.Networks
	log        *slog.Logger
	logBytes   int64
	logFiles   int
	containers containers
}

// Open reads the records of the last engine and removes its incomplete directories.
func Open(cfg ManagerConfig) (*Manager, error) {
	m := &Manager{
		store: cfg.Store, host: cfg.Host, volumes: cfg.Volumes, scratches: cfg.Scratches, life: cfg.Life, boxes: cfg.Boxes, tenants: cfg.Tenants,
		holds: cfg.Holds, networks: cfg.Networks, log: cfg.Log, logBytes: cfg.LogBytes, logFiles: cfg.LogFiles,
	}
	return m, m.openContainers(filepath.Join(cfg.StateDir, "containers"))
}

// Close closes the logs of all containers. No container may run.
func (m *Manager) Close() {
	for _, c := range m.containers.all() {
		c.log.Close()
	}
}

// container is a record and, during a run, a sandbox.
type container struct {
	m      *Manager
	id     string
	digest store.Digest
	dir    string
	log    *live.Log
	row    *live.Row  // the container's row in lists
	op     sync.Mutex // one start, renaming or removal at a time
	disk   sync.Mutex // held during a write of the record

	mu       sync.Mutex
	c        Container
	box      *live.Box      // nil unless running
	scratch  *volume.Volume // likewise
	terminal *os.File       // likewise; nil without a terminal
	streams  *streams       // of this run, or of the next
	runs     int            // number of runs that have ended
	removed  bool
	restarts int           // restarts under way: meanwhile the end of a run removes nothing, despite AutoRemove
	changed  chan struct{} // closed and replaced at every change of state
}

// newContainer opens the log of a container and keeps its record in memory.
func (m *Manager) newContainer(rec Container) (*container, error) {
	c := &container{m: m, id: rec.ID, digest: rec.Digest, dir: filepath.Join(m.containers.dir, rec.ID), c: rec, streams: newStreams(m.life.Context()), changed: make(chan struct{})}
	var err error
	c.log, err = live.OpenLog(filepath.Join(c.dir, "log"), "", m.logBytes, m.logFiles)
	if err != nil {
		return nil, err
	}
	c.log.Pause()
	return c, nil
}

// CreateContainer makes a container from an image. The image stays as long as the container.
// Errors: a *template.FieldError for an invalid field, live.ErrNameTaken, a *live.QuotaError for
// limits above the tenant's quotas.
func (m *Manager) CreateContainer(ctx context.Context, cfg Config) (*Container, error) {
	if err := m.life.Begin(); err != nil {
		return nil, err
	}
	defer m.life.Done()
	c, err := m.createContainer(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	return c, nil
}

func (m *Manager) createContainer(ctx context.Context, cfg Config) (*Container, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var id [32]byte
	_, _ = rand.Read(id[:]) // never fails
	rec := Container{ID: hex.EncodeToString(id[:]), Created: time.Now().UTC(), State: live.StateCreated}
	img, err := m.store.Image(cfg.Image)
	if err != nil {
		return nil, err
	}
	release, err := m.holds.Hold(img.Digest)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := m.completeContainer(&rec, img, cfg); err != nil {
		return nil, err
	}
	t := &m.containers
	if err := t.reserve(&rec); err != nil {
		return nil, err
	}
	dir := filepath.Join(t.dir, rec.ID)
	c, err := m.makeContainer(dir, rec)
	if err != nil {
		t.mu.Lock()
		delete(t.names, rec.Config.Name)
		t.mu.Unlock()
		return nil, errors.Join(err, m.removeContainerDir(dir))
	}
	// First the record, then the change: an observer of the change finds the container.
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[rec.ID], t.names[rec.Config.Name] = c, c
	c.row = m.boxes.AddResting(rec.sandbox(), c.change(store.ActionCreate))
	return c.describe(), nil
}

func (m *Manager) makeContainer(dir string, rec Container) (*container, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t%s\n", rec.Config.Hostname)
	file := filepath.Join(dir, "hosts")
	if err := errors.Join(os.WriteFile(file, []byte(hosts), 0o644), os.Chmod(file, 0o644)); err != nil {
		return nil, err
	}
	c, err := m.newContainer(rec)
	if err != nil {
		return nil, err
	}
	if err := c.save(rec); err != nil {
		c.log.Close()
		return nil, err
	}
	return c, nil
}

func (c *container) describe() *Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.c
	if c.box != nil {
		d.PID = c.box.Sandbox().PID()
	}
	return &d
}

// sandbox describes a container that does not run in the form of lists of sandboxes.
func (c *Container) sandbox() *live.Sandbox {
	made := *c
	s := &live.Sandbox{
		Record: &made,
		ID:     c.ID, Name: c.Config.Name, Image: c.Config.Image, Digest: c.Digest, Tenant: c.Config.Tenant, Limits: c.Config.Limits,
		Command: strings.Join(c.Args, " "), State: c.State, Created: c.Created,
	}
	if c.State == live.StateExited {
		s.Ended, s.Exit = c.Finished, c.Exit
	}
	return s
}

// change returns a change of a container other than the start and end of a run. more holds keys
// and values of further attributes in turn.
func (c *container) change(a store.ChangeAction, more ...string) store.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	cfg := &c.c.Config
	attributes := live.Attributes(append([]string{"image", cfg.Image, "tenant", cfg.Tenant, "name", cfg.Name}, more...)...)
	return store.Change{Kind: store.ChangeSandbox, Action: a, ID: c.c.ID, Name: cfg.Name, Attributes: attributes, Labels: cfg.Labels}
}

// update changes the record on disk, then in memory, and wakes all waiters for a state. With
// c.mu held it calls and() at the moment of the change in memory. If the save fails, the change
// takes effect in memory nevertheless, and update returns the error.
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

// RenameContainer renames a container. Errors as of CreateContainer.
func (m *Manager) RenameContainer(ref, name string) error {
	c, err := m.containers.find(ref)
	if err != nil {
		return err
	}
	if !validContainerName(name) {
		return fmt.Errorf("rename container: %w", &template.FieldError{Field: "name", Message: fmt.Sprintf("%q is not a container's name", name)})
	}
	c.op.Lock()
	defer c.op.Unlock()
	t := &m.containers
	old := c.describe().Config.Name // cannot change while op is held
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
		return fmt.Errorf("rename container: %w: another container is named %q", live.ErrNameTaken, name)
	}
	err = c.update(func(rec *Container) { rec.Config.Name = name }, nil)
	if err != nil { // the record on disk has the old name
		err = errors.Join(err, c.update(func(rec *Container) { rec.Config.Name = old }, nil))
		old = name
	}
	t.mu.Lock()
	delete(t.names, old)
	t.mu.Unlock()
	if err == nil {
		m.boxes.Rename(c.row, name, c.change(store.ActionRename, "old_name", old))
	}
	return err
}

// RemoveContainer removes a container with its scratch layer and its log. With force it kills a
// running container first. Without force it returns ErrContainerRunning.
func (m *Manager) RemoveContainer(ref string, force RemoveForce) error {
	c, err := m.containers.find(ref)
	if err != nil {
		return err
	}
	return m.removeContainer(c, force)
}

// RemoveForce says whether a removal kills a running container.
type RemoveForce bool

func (m *Manager) removeContainer(c *container, force RemoveForce) error {
	c.op.Lock()
	defer c.op.Unlock()
	c.mu.Lock()
	b, removed := c.box, c.removed
	c.mu.Unlock()
	switch {
	case removed:
		return fmt.Errorf("container %q: %w", c.id, fs.ErrNotExist)
	case b != nil && !bool(force):
		return fmt.Errorf("remove container %s: %w: stop the container before removing or use force", c.id[:12], ErrContainerRunning)
	case b != nil:
		_ = m.boxes.Signal(b, unix.SIGKILL) // nil
	}
	return m.dropContainer(c)
}

// dropContainer removes a container that does not run. The caller holds op, or no other
// goroutine knows the container.
func (m *Manager) dropContainer(c *container) error {
	// First the record: after a crash the next engine removes a directory without a record.
	if err := os.Remove(filepath.Join(c.dir, "config.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove container: %w", err)
	}
	t := &m.containers
	name := c.describe().Config.Name
	t.mu.Lock()
	delete(t.byID, c.id)
	delete(t.names, name)
	t.mu.Unlock()
	m.boxes.RemoveResting(c.row, c.change(store.ActionDelete))
	c.log.Close()
	err := m.removeContainerDir(c.dir)
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

func (m *Manager) removeContainerDir(dir string) error {
	if err := m.volumes.Remove(filepath.Join(dir, "scratch")); err != nil {
		return err
	}
	if err := linux.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

// Of returns the container in a list of sandboxes, as it was created; nil for any other sandbox.
func Of(s *live.Sandbox) *Container {
	c, _ := s.Record.(*Container)
	return c
}
