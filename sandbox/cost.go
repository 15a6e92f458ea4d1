package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
)

// Costs measures parts of starts, of bind mounts and of file operations, and returns them by
// the id of their [Check]. dir must be a directory of the caller on the state directory's file
// system; Costs leaves dir empty and attaches no mount. Costs needs root and takes some tenths
// of a second. A failed measurement sets Err.
func Costs(dir string) map[string]Cost {
	costs := map[string]Cost{}
	put := func(id, of string, took time.Duration, err error) {
		if err != nil {
			took = 0
		}
		costs[id] = Cost{Time: took, Of: of, Err: err}
	}
	in, ofJoin, err := processCosts()
	for _, c := range []struct{ id, name, of string }{
		{"kernel", "syscall", "a system call"},
		{"clone3", "exec", "vfork, exec and exit of a static program"},
		{"userns", "userns", "a process in a new user namespace, and its end"},
		{"cgroups", "join", ofJoin},
		{"cpus", "pipe", "a byte through pipes to a process on another CPU and back"},
	} {
		ns, e := in[c.name], err
		if ns <= 0 && e == nil {
			e = unix.Errno(-ns)
		}
		put(c.id, c.of, time.Duration(ns), e)
	}
	took, err := costOf(101, func() error { return closing(cloneTree(dir, unix.MOUNT_ATTR_RDONLY)) })
	put("open_tree", "a read-only bind mount, and its end", took, err)
	took, err = costOfMapped(dir)
	put("idmap", "a bind mount with mapped owners, and its end", took, err)
	took, err = costOfOverlay(dir)
	put("overlay", "an overlay mount, and its end", took, err)
	took, err = costOfStatfs()
	put("tmpfs", "the size of all that is in one, by statfs", took, err)
	took, err = costOfLink(dir)
	put("hard_links", "a hard link", took, err)
	took, err = costOfSync(dir)
	put("state_fs", "a small file made durable by syncfs", took, err)
	return costs
}

// costOf returns the median of n runs of do, or of fewer runs if they take longer than costTime
// in total.
func costOf(n int, do func() error) (time.Duration, error) {
	const costTime = 200 * time.Millisecond
	var samples []time.Duration
	for begin := time.Now(); len(samples) < n; {
		at := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		samples = append(samples, time.Since(at))
		if time.Since(begin) > costTime {
			break
		}
	}
	slices.Sort(samples)
	return samples[len(samples)/2], nil
}

// processCosts has fre-spawner measure operations too short to measure in Go. The result is
// nanoseconds, or -errno, by the names in cost.c. ofJoin describes "join".
func processCosts() (found asked, ofJoin string, err error) {
	ofJoin = "a thread moved to another group of each hierarchy"
	how, groups := "none", []*os.File(nil)
	joinErr := withGroups(func(a, b *cgroup.Group) {
		how, groups = "tasks", slices.Concat(a.Files(), b.Files())
		if a.V2() {
			how, groups = "into", a.Files()
			ofJoin = "a process made in another group, and its end"
		}
		found, err = ask(groups, "cost", how)
	})
	if joinErr == nil || err != nil {
		return found, ofJoin, err
	}
	if found, err = ask(nil, "cost", how); err == nil {
		found["join"] = -int(unix.EIO)
		var errno unix.Errno
		if errors.As(joinErr, &errno) {
			found["join"] = -int(errno)
		}
	}
	return found, ofJoin, err
}

// withGroups calls use with two cgroups without limits. A lock of the host serialises the
// calls: the groups have a fixed name, so that the next call removes the leftovers of a crash.
func withGroups(use func(a, b *cgroup.Group)) (err error) {
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	mounts := slices.Sorted(maps.Values(layout.Mounts))
	if len(mounts) == 0 {
		return cgroup.ErrMissing
	}
	lock, err := os.Open(mounts[0])
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	pool, err := cgroup.Open(cgroup.Config{Parent: "fre-doctor", Size: 2, Optional: layout.Missing()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	limits := cgroup.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 16}
	a, err := pool.Acquire(limits)
	if err != nil {
		return err
	}
	defer pool.Release(a)
	b, err := pool.Acquire(limits)
	if err != nil {
		return err
	}
	defer pool.Release(b)
	use(a, b)
	return nil
}

func costOfMapped(dir string) (took time.Duration, err error) {
	err = withUserns(func(userns *os.File) (err error) {
		took, err = costOf(51, func() error { return closing(cloneMapped(dir, 0, userns)) })
		return err
	})
	return took, err
}

func costOfOverlay(dir string) (took time.Duration, err error) {
	options := [][2]string{{"lowerdir", "lower"}, {"upperdir", "upper"}, {"workdir", "work"}}
	for i, o := range options {
		options[i][1] = filepath.Join(dir, o[1])
		if err := os.Mkdir(options[i][1], 0o700); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(options[i][1])) }()
	}
	return costOf(31, func() error { return closing(newMount("overlay", 0, options...)) })
}

// costOfStatfs measures statfs of a tmpfs with a size, as /tmp of a sandbox has.
func costOfStatfs() (time.Duration, error) {
	const times = 100 // for each sample: reading the clock takes a tenth as long
	fd, err := newTmp(1<<20, 1024, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	took, err := costOf(31, func() error {
		var st unix.Statfs_t
		for range times {
			if err := unix.Fstatfs(fd, &st); err != nil {
				return err
			}
		}
		return nil
	})
	return took / times, err
}

func costOfLink(dir string) (took time.Duration, err error) {
	from := filepath.Join(dir, "file")
	if err := os.WriteFile(from, []byte("x"), 0o600); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(from)) }()
	n := 0
	defer func() {
		for i := range n {
			err = errors.Join(err, os.Remove(fmt.Sprint(from, i)))
		}
	}()
	return costOf(101, func() error {
		err := os.Link(from, fmt.Sprint(from, n))
		if err == nil {
			n++
		}
		return err
	})
}

func costOfSync(dir string) (took time.Duration, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	path := filepath.Join(dir, "file")
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	return costOf(9, func() error {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			return err
		}
		return unix.Syncfs(int(f.Fd()))
	})
}
