package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/linux"
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

	mu       sync.Mutex
	c        Container
	box      *box           // while it runs
	scratch  *volume.Volume // likewise
	streams  *streams       // of this run, or the next
	runs     int            // that have ended
	removed  bool
	restarts int           // under way: the end of a run removes nothing
	changed  chan struct{} // closed at every change of state
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
// What cannot be meant is an *image.FieldError, a name that is taken ErrNameTaken, limits
// above its tenant's quotas a *QuotaError.
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
	// The record stands before the change is announced: an observer finds it.
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[rec.ID], t.names[rec.Config.Name] = c, c
	c.row = e.boxes.addContainer(e, rec.sandbox(), c.change(store.ActionCreate))
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

// change notes what happens to a container beside its runs, with more attributes: keys and
// values in turn.
func (c *container) change(a store.ChangeAction, more ...string) store.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	cfg := &c.c.Config
	attributes := attributesOf(append([]string{"image", cfg.Image, "tenant", cfg.Tenant, "name", cfg.Name}, more...)...)
	return store.Change{Kind: store.ChangeSandbox, Action: a, ID: c.c.ID, Name: cfg.Name, Attributes: attributes, Labels: cfg.Labels}
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
		e.boxes.renameContainer(e, c.row, name, c.change(store.ActionRename, "old_name", old))
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
		return fmt.Errorf("remove container %s: %w: stop the container before removing or use force", c.id[:12], ErrContainerRunning)
	case b != nil:
		_ = e.signal(b, unix.SIGKILL) // nil
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
	if err := linux.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}
