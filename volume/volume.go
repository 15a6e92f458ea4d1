// Package volume keeps directories on disk with bounded size. A system call returns the size,
// regardless of the number of files. FRE uses volumes for a tenant's /work and for the writable
// layers of containers.
//
// A volume is a path. Its kind depends on the host at the time of creation and then stays:
//
//	Quota  PATH/                      a directory with a project id (ext4, xfs);
//	                                  quotactl_fd(2) counts and limits
//	Image  PATH.img                   a sparse file with an ext4 in it, on a loop
//	       PATH/{data,balloon}        device, mounted here while attached; statfs(2)
//	                                  counts, the file system's size limits
//	Plain  PATH/                      a directory, without a limit; counted by
//	                                  walks in the background
//
// A new volume is Quota if the file system enforces project quotas; else Image, with a limit and
// on a host with mkfs.ext4 and loop devices; else Plain. A Plain volume that gets a limit
// changes its kind at the next attachment. Volumes count disk blocks and inodes, including their
// own directory, never st_size: ten thousand files of one byte are 40 MB.
//
// The credentials of the writer matter for Quota on ext4: a process with CAP_SYS_RESOURCE in the
// first user namespace may exceed the quota. Sandboxes lack the capability. An overlay with
// upper and work directories in one volume writes without the capability, no matter which
// process mounted the overlay (ovl_fill_super).
//
// The next Attach or Open repairs all leftovers of a crash. The mounts of an engine vanish with
// its mount namespace, and the kernel detaches loop devices with the last mount.
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

// Kind is the way to count and limit a volume.
type Kind string

// The kinds of volumes, best first.
const (
	Quota Kind = "quota"
	Image Kind = "image"
	Plain Kind = "plain"
)

// ErrNoLimits means that the host cannot limit the size of a directory.
var ErrNoLimits = errors.New("the host cannot limit the size of a directory")

// Limits bound a volume; 0 means no limit. If a limit falls below the current use, every further
// block is refused and no file is removed.
type Limits struct {
	Bytes  int64 // of disk blocks
	Inodes int64 // only with Bytes; 0 means Bytes/inodeBytes; an Image has a few more
}

// inodeBytes is the share of a byte limit per allowed file. More files would not help: each
// needs a block, except for links, directories and empty files.
const inodeBytes = 4096

// MinBytes is the smallest limit with room for a few files.
const MinBytes = 64 << 10

func (l Limits) limited() bool { return l.Bytes > 0 }

func (l Limits) check() error {
	if l.Bytes < 0 || l.Inodes < 0 {
		return errors.New("negative limit")
	}
	if l.Inodes > 0 && l.Bytes == 0 {
		return errors.New("a limit of inodes needs a limit of bytes")
	}
	return nil
}

// withDefaults sets the default limit of inodes.
func (l Limits) withDefaults() Limits {
	if l.Inodes == 0 && l.Bytes > 0 {
		l.Inodes = max(l.Bytes/inodeBytes, 64)
	}
	return l
}

// Usage is the disk use of a volume.
type Usage struct {
	Bytes  int64     // disk blocks
	Inodes int64     // files, directories and other inodes
	AsOf   time.Time // time of the count: now, except for Plain volumes; zero if not counted yet
}

// Config configures [Open]. Required: Dir.
type Config struct {
	Dir   string       // private, for volumes being removed or prepared, on their file system; created
	Log   *slog.Logger // default: discards
	Avoid []Kind       // kinds not to use for new volumes, even if the host supports them
}

// Manager attaches volumes. Several goroutines may call its methods.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	dir     *os.File
	quota   error // reason for the lack of Quota volumes; nil if the host supports them
	images  error // likewise for Image volumes
	walkers sync.WaitGroup

	lockWithin time.Duration
	fail       func(step string) error // tests: called between steps

	mu      sync.Mutex
	closed  bool
	volumes map[string]*Volume // attached, or being attached
}

// Volume is an attached volume.
type Volume struct {
	m    *Manager
	path string

	mu      sync.Mutex // held during disk operations
	backing backing    // nil if not attached
	limits  Limits
}

// backing is an attached volume of one kind. The caller serializes all methods except usage.
type backing interface {
	kind() Kind
	dir() string
	setLimits(Limits) error // with defaults set
	usage() (Usage, error)
	detach() error
}

// Open probes the file system of cfg.Dir and completes removals that a crash interrupted. It
// needs root.
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
	if err := m.endRemovals(); err != nil {
		return nil, errors.Join(fmt.Errorf("end removals of volumes: %w", err), dir.Close())
	}
	return m, nil
}

// endRemovals removes the volumes in the directory for removals.
func (m *Manager) endRemovals() error {
	names, err := m.dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := linux.RemoveAll(filepath.Join(m.cfg.Dir, name)); err != nil { // a leftover does no harm
			m.log.Warn("cannot end the removal of a volume: the next start tries again", "error", err)
		}
	}
	return nil
}

// Probe returns, for each kind, nil if the file system of dir and the host support it, else the
// reason.
func Probe(dir string) (quota, image error) {
	f, err := os.Open(dir)
	if err != nil {
		return err, err
	}
	defer f.Close()
	return probeQuota(f), probeImages()
}

// Kind returns the kind of new volumes with a limit, or Plain if the host supports no limits.
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

// Attach creates or finds the volume at an absolute path, sets its limits and makes Volume.Dir
// usable. For an attached volume it only changes the limits. The parent directory must exist and
// be private. Errors: ErrNoLimits if the host cannot enforce the limits.
func (m *Manager) Attach(path string, l Limits) (*Volume, error) {
	if !filepath.IsAbs(path) || path != filepath.Clean(path) || path == "/" {
		return nil, fmt.Errorf("attach volume %s: not a clean absolute path", path)
	}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("attach volume %s: %w", path, err)
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

// Prepare makes a volume ahead of its path, for AttachPrepared or Remove; otherwise the next
// Open removes it. Only volumes of kind Image are slow enough to need Prepare. Errors: as of
// Attach.
func (m *Manager) Prepare(l Limits) (*Volume, error) {
	return m.Attach(filepath.Join(m.cfg.Dir, "prepared-"+rand.Text()), l)
}

// AttachPrepared moves a volume from Prepare to an unused path. The result is the same as of
// Attach with the same limits, without the time of mkfs. AttachPrepared takes over the prepared
// volume, even on an error; after an error the caller may try Attach.
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
	if err := recoverImage(path); err != nil { // an existing image would be in the way
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
		v.mu.Unlock() // detached meanwhile
	}
}

// forget removes a volume from the map. The caller holds v.mu; v is not attached.
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

// CanLimit returns nil or an ErrNoLimits.
func (m *Manager) CanLimit() error {
	if m.Kind() == Plain {
		return m.noLimits()
	}
	return nil
}

// noLimits returns an ErrNoLimits with the reasons and the next step.
func (m *Manager) noLimits() error {
	return fmt.Errorf("%w: no project quotas (%w), no loop images (%w): mount the file system of %s with prjquota, or install e2fsprogs and load the kernel's loop module",
		ErrNoLimits, m.quota, m.images, m.cfg.Dir)
}

// Remove deletes a volume with all its files, attached or not. A process with open files keeps
// their blocks. A missing volume is no error.
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

// remove moves each file aside in one step and then deletes all. The image goes first, because a
// directory without its image is empty.
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

// Path returns the path given to Attach.
func (v *Volume) Path() string { return v.path }

// Dir returns the directory to use, on the host, or "" if the volume is not attached. In a new
// volume it is empty, belongs to root and has mode 0700.
func (v *Volume) Dir() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.backing == nil {
		return ""
	}
	return v.backing.dir()
}

// Kind returns the kind of the volume, or "" after Detach.
func (v *Volume) Kind() Kind {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.backing == nil {
		return ""
	}
	return v.backing.kind()
}

// Limits returns the limits in force.
func (v *Volume) Limits() Limits {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.limits
}

// Usage counts by one system call. For a Plain volume Usage returns the result of the last walk,
// and starts another in the background if the result is old. Errors: fs.ErrClosed after Detach.
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

// SetLimits changes the limits at once. A Plain volume accepts only zero limits: else
// ErrNoLimits. Without a limit an Image volume keeps the size of the file system. Without
// CAP_SYS_RESOURCE an attached Image volume cannot grow (EPERM); the next Attach can enlarge it.
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

// Detach ends the use of the volume; its files stay. A process with open files may continue; for
// an Image volume the next Attach waits for the end of such uses. Detach is idempotent.
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

// makeDir makes the directory at path if it is missing.
func makeDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
