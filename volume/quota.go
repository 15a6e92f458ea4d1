package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// firstProject is the lowest project id of volumes. Lower ids belong to the administrator
// (projid(5)) and to other programs, which count upwards from low ids.
const firstProject = 1 << 31

// quotaDir is a directory with a project id of its own.
type quotaDir struct {
	m    *Manager
	path string
	id   uint32
}

func probeQuota(dir *os.File) error {
	enforced, err := linux.EnforcesProjectQuota(int(dir.Fd()))
	if err == nil && !enforced {
		err = errors.New("not enforced")
	}
	return err
}

func (m *Manager) attachQuota(path string) (backing, error) {
	if err := makeDir(path); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	id, inherits, err := projectAt(root, ".")
	if err != nil {
		return nil, err
	}
	if id < firstProject || !inherits {
		if id, err = m.newProject(); err != nil {
			return nil, err
		}
		if err := m.enterProject(root, id); err != nil {
			return nil, err
		}
	}
	return &quotaDir{m: m, path: path, id: id}, nil
}

// newProject returns a project id that no file has.
func (m *Manager) newProject() (uint32, error) {
	for range 100 {
		id := firstProject + rand.Uint32N(firstProject-1)
		q, err := linux.GetProjectQuota(int(m.dir.Fd()), id)
		if errors.Is(err, unix.ENOENT) || err == nil && q.Inodes == 0 { // XFS has no entry for an unused id
			return id, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, errors.New("no project id is free")
}

// enterProject sets the project of a directory and of all files in it. The directory comes last:
// after a crash half-way, the next attachment starts again.
func (m *Manager) enterProject(root *os.Root, id uint32) error {
	err := fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		// The ioctl needs an open file, so symlinks, sockets and fifos stay uncounted.
		if err != nil || path == "." || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		return setProjectAt(root, path, id, d.IsDir())
	})
	if err == nil {
		err = m.failpoint("quota entered")
	}
	if err != nil {
		return err
	}
	return setProjectAt(root, ".", id, true)
}

func projectAt(root *os.Root, path string) (uint32, bool, error) {
	f, err := root.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	return linux.Project(int(f.Fd()))
}

func setProjectAt(root *os.Root, path string, id uint32, dir bool) error {
	f, err := root.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := linux.SetProject(int(f.Fd()), id, dir); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// projectOf returns a function that lifts the limits of the project at path. Call it after the
// removal of the files: the id is then free again.
func (m *Manager) projectOf(path string) func() error {
	none := func() error { return nil }
	f, err := os.Open(path)
	if err != nil || m.quota != nil {
		return none
	}
	defer f.Close()
	id, _, err := linux.Project(int(f.Fd()))
	if err != nil || id < firstProject {
		return none
	}
	return func() error { return linux.SetProjectQuota(int(m.dir.Fd()), id, 0, 0) }
}

func (q *quotaDir) kind() Kind    { return Quota }
func (q *quotaDir) dir() string   { return q.path }
func (q *quotaDir) detach() error { return nil }

func (q *quotaDir) setLimits(l Limits) error {
	return linux.SetProjectQuota(int(q.m.dir.Fd()), q.id, l.Bytes, l.Inodes)
}

func (q *quotaDir) usage() (Usage, error) {
	p, err := linux.GetProjectQuota(int(q.m.dir.Fd()), q.id)
	if err != nil {
		return Usage{}, err
	}
	return Usage{Bytes: p.Bytes, Inodes: p.Inodes, AsOf: time.Now()}, nil
}
