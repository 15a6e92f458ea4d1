// Package volume keeps directories on disk whose size is known by one system
// call, whatever the number of files in them, and bounded: what a tenant keeps
// in /work, and the writable layers of containers.
//
// A volume is a path. What stands there depends on what the host can do, and
// stays what it is once it is there:
//
//	Quota  PATH/                      a directory with a project id (ext4, xfs);
//	                                  quotactl_fd(2) counts and limits
//	Image  PATH.img                   a sparse file with an ext4 in it, on a loop
//	       PATH/{data,balloon}        device, mounted here while attached; statfs(2)
//	                                  counts, the file system's size limits
//	Plain  PATH/                      a directory, without a limit; counted by
//	                                  walks in the background
//
// New volumes are Quota where the file system enforces project quotas, else
// Image if they have a limit and the host has mkfs.ext4 and loop devices, else
// Plain. A Plain one that gets a limit becomes one of the others at its next
// attachment. What is counted is disk blocks and inodes, the volume's own
// directory included, never st_size: ten thousand files of a byte are 40 MB.
//
// The writer's credentials matter for Quota on ext4: a process with
// CAP_SYS_RESOURCE in the first user namespace is not held to it. Sandboxes have
// none, and an overlay whose upper and work directories lie in a volume (both in
// the same) writes without it whoever mounted it (ovl_fill_super).
//
// A crash leaves nothing that the next Attach or Open does not put right: the
// mounts of an engine vanish with its mount namespace, and loop devices are
// detached by the kernel with the last mount.
package volume

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fre-engine/fre/internal/linux"
)

// Kind says how a volume is counted and limited.
type Kind string

// The kinds of volumes, best first.
const (
	Quota Kind = "quota"
	Image Kind = "image"
	Plain Kind = "plain"
)

// ErrNoLimits says that this host cannot limit a directory.
var ErrNoLimits = errors.New("this host cannot limit the size of a directory")

// Limits bound a volume; 0 is no limit. Lowered below what is in use they refuse
// every further block and remove nothing.
type Limits struct {
	Bytes  int64 // of disk blocks
	Inodes int64 // only with Bytes; 0: one to inodeBytes; an Image has some more
}

// inodeBytes of a limit allow one file: fewer than a block's worth cannot be used
// anyhow, but for links, directories and empty files.
const inodeBytes = 4096

// MinBytes is the least limit that leaves room for a few files.
const MinBytes = 64 << 10

func (l Limits) limited() bool { return l.Bytes > 0 }

// withDefaults fills in the inodes.
func (l Limits) withDefaults() Limits {
	if l.Inodes == 0 && l.Bytes > 0 {
		l.Inodes = max(l.Bytes/inodeBytes, 64)
	}
	return l
}

// Usage is what a volume takes on disk.
type Usage struct {
	Bytes  int64     // disk blocks
	Inodes int64     // files, directories and what else has one
	AsOf   time.Time // when it was counted: now but for Plain volumes; zero: not yet
}

// Config says how to open a [Manager]. Required: Dir.
type Config struct {
	Dir   string       // private directory for what is being removed or prepared, on the file system of the volumes; created
	Log   *slog.Logger // default: discards
	Avoid []Kind       // kinds that are not used for new volumes though the host has them
}

// Manager attaches volumes. Its methods may be called from any goroutine.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	dir     *os.File
	quota   error // why there are no Quota volumes; nil: there are
	images  error // why there are no Image volumes
	walkers sync.WaitGroup

	lockWithin time.Duration
	fail       func(step string) error // tests: called between the steps

	mu      sync.Mutex
	closed  bool
	volumes map[string]*Volume // attached, or being so
}

// Volume is an attached volume.
type Volume struct {
	m    *Manager
	path string

	mu      sync.Mutex // held over the disk
	backing backing    // nil: not attached
	limits  Limits
}

// backing is one of the kinds, attached. Its methods are not called at the same
// time, but for usage.
type backing interface {
	kind() Kind
	dir() string
	setLimits(Limits) error // with defaults filled in
	usage() (Usage, error)
	detach() error
}

// Open probes what the file system of cfg.Dir can do and ends removals that a
// crash cut short. It needs root.
func Open(cfg Config) (*Manager, error) {
	if cfg.Dir == "" {
		return nil, errors.New("volume: Config.Dir is required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	dir, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	m := &Manager{cfg: cfg, log: cfg.Log, dir: dir, volumes: map[string]*Volume{}, lockWithin: lockWithin}
	m.quota, m.images = probeQuota(dir), probeImages()
	for _, k := range cfg.Avoid {
		switch k {
		case Quota:
			m.quota = errors.New("not wanted")
		case Image:
			m.images = errors.New("not wanted")
		case Plain:
		}
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("end removals of volumes: %w", err), dir.Close())
	}
	for _, name := range names {
		if err := linux.RemoveAll(filepath.Join(cfg.Dir, name)); err != nil { // in nobody's way
			m.log.Warn("cannot end the removal of a volume: the next start tries again", "error", err)
		}
	}
	return m, nil
}

// Probe says what the file system of a directory can do: nil, or why there are
// no volumes of that kind.
func Probe(dir string) (quota, image error) {
	f, err := os.Open(dir)
	if err != nil {
		return err, err
	}
	defer f.Close()
	return probeQuota(f), probeImages()
}

// Kind is that of new volumes with a limit: Plain where the host has none.
func (m *Manager) Kind() Kind {
	switch {
	case m.quota == nil:
		return Quota
	case m.images == nil:
		return Image
	}
	return Plain
}

// Close detaches every volume.
func (m *Manager) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	var all []*Volume
	for _, v := range m.volumes {
		all = append(all, v)
	}
	m.mu.Unlock()
	var errs []error
	for _, v := range all {
		errs = append(errs, v.Detach())
	}
	m.walkers.Wait()
	return errors.Join(append(errs, m.dir.Close())...)
}

// Attach makes the volume of an absolute path, or finds it, sets its limits and
// makes Volume.Dir usable. One that is attached already is returned as it is,
// with its limits changed. The parent directory must exist and be private.
// ErrNoLimits: limits are asked for where there is no way to keep them.
func (m *Manager) Attach(path string, l Limits) (*Volume, error) {
	if !filepath.IsAbs(path) || path != filepath.Clean(path) || path == "/" {
		return nil, fmt.Errorf("attach volume %s: not a clean absolute path", path)
	}
	if l.Bytes < 0 || l.Inodes < 0 {
		return nil, fmt.Errorf("attach volume %s: negative limit", path)
	}
	if l.Inodes > 0 && l.Bytes == 0 {
		return nil, fmt.Errorf("attach volume %s: a limit of inodes takes one of bytes", path)
	}
	v, err := m.lock(path)
	if err != nil {
		return nil, fmt.Errorf("attach volume %s: %w", path, err)
	}
	defer v.mu.Unlock()
	if v.backing == nil {
		if v.backing, err = m.attach(path, l); err != nil {
			m.forget(v)
			return nil, fmt.Errorf("attach volume %s: %w", path, err)
		}
	}
	if err := v.setLimitsLocked(l); err != nil {
		return nil, fmt.Errorf("attach volume %s: %w", path, err)
	}
	return v, nil
}

// Prepare makes a volume ahead of its path, for AttachPrepared or Remove; without
// either it goes with the next Open. Only those of kind Image take long enough for
// that. Errors as of Attach.
func (m *Manager) Prepare(l Limits) (*Volume, error) {
	return m.Attach(filepath.Join(m.cfg.Dir, "prepared-"+rand.Text()), l)
}

// AttachPrepared gives a volume that Prepare made a path where there is nothing, as
// Attach would with the same limits but without making a file system. The volume is
// the caller's no longer, also on an error, after which Attach may be tried.
func (m *Manager) AttachPrepared(path string, prepared *Volume) (_ *Volume, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attach prepared volume %s: %w", path, err), m.Remove(prepared.path))
		}
	}()
	v, err := m.lock(path)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	if v.backing != nil {
		return nil, fs.ErrExist
	}
	defer func() {
		if err != nil {
			m.forget(v)
		}
	}()
	prepared.mu.Lock()
	defer prepared.mu.Unlock()
	image, ok := prepared.backing.(*imageMount)
	if !ok {
		return nil, fmt.Errorf("a prepared volume of kind Image is needed: %w", fs.ErrInvalid)
	}
	if err := recoverImage(path); err != nil { // what it has then is in the way
		return nil, err
	}
	if err := image.move(path); err != nil {
		return nil, err
	}
	v.backing, v.limits = image, prepared.limits
	prepared.backing = nil
	m.forget(prepared)
	return v, nil
}

// lock returns the volume of path, attached or not, with mu held.
func (m *Manager) lock(path string) (*Volume, error) {
	for {
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return nil, os.ErrClosed
		}
		v := m.volumes[path]
		if v == nil {
			v = &Volume{m: m, path: path}
			m.volumes[path] = v
		}
		m.mu.Unlock()
		v.mu.Lock()
		m.mu.Lock()
		current := m.volumes[path] == v
		m.mu.Unlock()
		if current {
			return v, nil
		}
		v.mu.Unlock() // it was detached meanwhile
	}
}

// forget takes a volume that is not attached, and whose mu is held, out of the
// map.
func (m *Manager) forget(v *Volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.volumes[v.path] == v {
		delete(m.volumes, v.path)
	}
}

func (m *Manager) attach(path string, l Limits) (backing, error) {
	if err := recoverImage(path); err != nil {
		return nil, err
	}
	switch _, err := os.Lstat(imageFile(path)); {
	case err == nil:
		return m.attachImage(path, l)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	switch {
	case m.quota == nil:
		return m.attachQuota(path)
	case !l.limited():
		return m.attachPlain(path)
	case m.images == nil:
		if err := m.makeImage(path, l); err != nil {
			return nil, err
		}
		return m.attachImage(path, l)
	}
	return nil, m.noLimits()
}

// CanLimit is nil or ErrNoLimits.
func (m *Manager) CanLimit() error {
	if m.Kind() == Plain {
		return m.noLimits()
	}
	return nil
}

// noLimits names the next step.
func (m *Manager) noLimits() error {
	return fmt.Errorf("%w: no project quotas (%w), no loop images (%w): mount the file system of %s with prjquota, or install e2fsprogs and load the kernel's loop module",
		ErrNoLimits, m.quota, m.images, m.cfg.Dir)
}

// Remove deletes a volume and all in it, attached or not; what still uses it
// keeps the blocks it has open. It is no error if there is none.
func (m *Manager) Remove(path string) error {
	v, err := m.lock(path)
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", path, err)
	}
	defer v.mu.Unlock()
	defer m.forget(v)
	if v.backing != nil {
		err = v.backing.detach()
		v.backing = nil
	}
	if err == nil {
		err = m.remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", path, err)
	}
	return nil
}

// remove takes everything away in one step each, the image first: a directory
// without its image is empty. Then it deletes.
func (m *Manager) remove(path string) error {
	gone, err := os.MkdirTemp(m.cfg.Dir, "volume-")
	if err != nil {
		return err
	}
	dropProject := m.projectOf(path)
	for i, name := range []string{imageFile(path), stagedImage(path), staging(path), path} {
		if err := m.failpoint(fmt.Sprintf("remove %d", i)); err != nil {
			return err
		}
		err := os.Rename(name, filepath.Join(gone, filepath.Base(name)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := m.failpoint("remove renamed"); err != nil {
		return err
	}
	return errors.Join(linux.RemoveAll(gone), dropProject())
}

func (m *Manager) failpoint(step string) error {
	if m.fail == nil {
		return nil
	}
	return m.fail(step)
}

// Path is what Attach was given.
func (v *Volume) Path() string { return v.path }

// Dir is the directory to use, on the host, while the volume is attached; ""
// afterwards. The first time it is empty, root's, and has mode 0700.
func (v *Volume) Dir() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.backing == nil {
		return ""
	}
	return v.backing.dir()
}

// Kind says how it is counted; "" once it is detached.
func (v *Volume) Kind() Kind {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.backing == nil {
		return ""
	}
	return v.backing.kind()
}

// Limits are those in force.
func (v *Volume) Limits() Limits {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.limits
}

// Usage counts by one system call; a Plain volume returns what the last walk
// has counted and starts the next in the background when that is old. It is an
// fs.ErrClosed once the volume is detached.
func (v *Volume) Usage() (Usage, error) {
	v.mu.Lock()
	b := v.backing
	v.mu.Unlock()
	if b == nil {
		return Usage{}, fmt.Errorf("usage of volume %s: %w", v.path, fs.ErrClosed)
	}
	u, err := b.usage()
	if err != nil {
		return Usage{}, fmt.Errorf("usage of volume %s: %w", v.path, err)
	}
	return u, nil
}

// SetLimits changes the limits at once. A Plain volume refuses any but none with
// ErrNoLimits; an Image one without a limit keeps the size it has, and without
// CAP_SYS_RESOURCE becomes no larger than it was made until it is attached
// again: then it is an EPERM.
func (v *Volume) SetLimits(l Limits) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.backing == nil {
		return fmt.Errorf("limit volume %s: %w", v.path, fs.ErrClosed)
	}
	if err := v.setLimitsLocked(l); err != nil {
		return fmt.Errorf("limit volume %s: %w", v.path, err)
	}
	return nil
}

func (v *Volume) setLimitsLocked(l Limits) error {
	l = l.withDefaults()
	if err := v.backing.setLimits(l); err != nil {
		return err
	}
	v.limits = l
	return nil
}

// Detach ends the use of the volume; its files stay. What still has some of them
// open goes on with them, and the next Attach waits for that where the volume is
// an Image. It is idempotent.
func (v *Volume) Detach() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.backing == nil {
		return nil
	}
	err := v.backing.detach()
	v.backing = nil
	v.m.forget(v)
	if err != nil {
		return fmt.Errorf("detach volume %s: %w", v.path, err)
	}
	return nil
}

// makeDir makes the directory of a Quota or Plain volume.
func makeDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
