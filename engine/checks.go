package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// Check is one line of `fre doctor`: a feature of the host, the result of the probe, the effect
// of the feature's absence and the remedy.
type Check = sandbox.Check

// HostChecks probes the host. It needs no running engine.
func HostChecks() []Check { return sandbox.Probe() }

// Checks probes the host and the state directory. The directory must exist.
func Checks(stateDir string) []Check {
	return append(HostChecks(),
		checkFileSystem(stateDir), checkHardLinks(stateDir), checkVolumes(volume.Probe(stateDir)), checkMapping(sandbox.CanMap(stateDir)),
		checkReflink(stateDir), checkVerity(stateDir), checkDatabase(), checkSpace(stateDir))
}

// checkPrefix begins the names of temporary files of checks in the state directory.
const checkPrefix = "fre-check-"

// removeChecks removes the temporary files of a check that a crash has interrupted.
func removeChecks(stateDir string) error {
	left, err := fs.Glob(os.DirFS(stateDir), checkPrefix+"*")
	for _, name := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(stateDir, name)))
	}
	return err
}

// Measure sets the costs of checks (sandbox.Costs). It works in a directory below stateDir and
// removes the directory. The error says why nothing could be measured. The cost of a check may
// have an error of its own (Cost.Err).
func Measure(checks []Check, stateDir string) (err error) {
	dir, err := os.MkdirTemp(stateDir, checkPrefix)
	if err != nil {
		return fmt.Errorf("measure costs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	costs := sandbox.Costs(dir)
	took, err := store.MeasureCommit(dir)
	costs["database"] = sandbox.Cost{Time: took, Of: "a transaction on disk", Err: err}
	for i, c := range checks {
		checks[i].Cost = costs[c.ID]
	}
	return nil
}

// Require returns an error that lists every id without a check or, if all ids are known, every
// id with a failed check, its effect and the remedy.
func Require(checks []Check, ids []string) error {
	known := make([]string, 0, len(checks))
	byID := make(map[string]Check, len(checks))
	for _, c := range checks {
		known = append(known, c.ID)
		byID[c.ID] = c
	}
	var unknown, lacking []string
	for _, id := range ids {
		if c, ok := byID[id]; !ok {
			unknown = append(unknown, strconv.Quote(id))
		} else if !c.OK {
			lacking = append(lacking, fmt.Sprintf("%s (%s: %s): %s; %s", id, c.Name, c.Found, c.Effect, c.Next))
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("require: unknown check %s; known checks: %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	if len(lacking) > 0 {
		return fmt.Errorf("the host lacks requirements of the configuration:\n  %s", strings.Join(lacking, "\n  "))
	}
	return nil
}

// fileSystems maps the type from statfs(2) to a tested file system and the most links to a file;
// 0 for any number.
var fileSystems = map[int64]struct {
	name  string
	links int
}{
	unix.EXT4_SUPER_MAGIC:      {"ext4", 65_000},
	unix.XFS_SUPER_MAGIC:       {"xfs", 1<<31 - 1},
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", 65_535},
	unix.F2FS_SUPER_MAGIC:      {"f2fs", 1<<32 - 1},
	unix.TMPFS_MAGIC:           {"tmpfs", 0},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", 0},
}

// checkFileSystem describes the file system of the state directory.
func checkFileSystem(dir string) Check {
	c := Check{
		ID: "state_fs", Name: "file system of the state directory", OK: true,
		Does:   "writes of a whole image become durable by one syncfs",
		Effect: "a crash may lose or damage images",
		Next:   "give --state a directory on ext4, xfs or btrfs",
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		c.OK, c.Found = false, err.Error()
		return c
	}
	known, ok := fileSystems[st.Type]
	switch {
	case !ok:
		c.OK, c.Optional, c.Found = false, true, fmt.Sprintf("not tested with FRE (type %#x)", st.Type)
		return c
	case known.links > 0:
		c.Found = fmt.Sprintf("%s, at most %d links to a file", known.name, known.links)
		c.Does += "; a file with too many links is continued in a copy"
	default:
		c.Found = known.name
	}
	if st.Type == unix.TMPFS_MAGIC {
		c.Found += ", gone at the next boot"
	}
	return c
}

// scratchFile calls use with an open file of one byte in dir, then removes the file.
func scratchFile(dir string, use func(f *os.File) error) (err error) {
	f, err := os.CreateTemp(dir, checkPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.WriteString("x"); err != nil {
		return err
	}
	return use(f)
}

func checkReflink(dir string) Check {
	c := Check{
		ID: "reflink", Name: "copies that share blocks", OK: true, Optional: true, Found: "work",
		Does:   "nothing: images share files by hard links, which also share memory; reflink copies share no memory",
		Effect: "nothing: FRE does not need reflinks",
	}
	err := scratchFile(dir, func(from *os.File) error {
		return scratchFile(dir, func(to *os.File) error { return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) })
	})
	if err != nil {
		c.OK, c.Found = false, err.Error()
	}
	return c
}

// checkVolumes describes how directories are counted and limited (package volume).
func checkVolumes(quota, image error) Check {
	c := Check{
		ID: "quota", Name: "sizes and limits of directories", OK: true, Optional: true, Found: "project quotas",
		Does:   "one quotactl counts and limits the files of a tenant or container",
		Effect: "the files of a tenant or container have no limit, and a walk counts sizes now and then",
		Next: "mount the state directory's ext4 or xfs with project quotas (tune2fs -O quota,project, then prjquota), " +
			"or load the module loop and install mkfs.ext4",
	}
	switch {
	case quota == nil:
	case image == nil:
		c.Found = fmt.Sprintf("images on loop devices; no project quotas: %v", quota)
		c.Does = "limited files of a tenant or container are in an ext4 in a sparse file: one statfs counts the size"
	default:
		c.OK, c.Found = false, fmt.Sprintf("project quotas: %v; images on loop devices: %v", quota, image)
	}
	return c
}

// measureVerity is FS_IOC_MEASURE_VERITY (linux/fsverity.h). Its argument begins with a head of
// four bytes.
const measureVerity = 0xc0046686

// checkVerity asks for the digest of a file without one: ENODATA shows that the kernel and the
// file system support fs-verity.
func checkVerity(dir string) Check {
	c := Check{
		ID: "verity", Name: "fs-verity in the state directory", OK: true, Optional: true, Found: "works",
		Does:   "nothing so far: a file is verified when it enters the store",
		Effect: "reads do not notice files that changed on disk",
		Next:   "use a kernel built with CONFIG_FS_VERITY, and ext4 made with -O verity, or btrfs",
	}
	err := scratchFile(dir, func(f *os.File) error {
		_, err := unix.IoctlGetInt(int(f.Fd()), measureVerity)
		return err
	})
	if !errors.Is(err, unix.ENODATA) {
		c.OK, c.Found = false, fmt.Sprint(err)
	}
	return c
}

func checkDatabase() Check {
	return Check{
		ID: "database", Name: "database", OK: true, Found: store.Database,
		Does: "lists are read from memory; a change is acknowledged after the write to disk",
	}
}

// checkHardLinks makes a hard link. Every image consists of hard links.
func checkHardLinks(dir string) Check {
	c := Check{
		ID: "hard_links", Name: "hard links in the state directory", OK: true, Found: "work",
		Does: "images consist of hard links: a file is on disk and in memory once for all images",
	}
	tmp, err := os.MkdirTemp(dir, checkPrefix)
	if err == nil {
		defer func() { _ = os.RemoveAll(tmp) }()
		from := filepath.Join(tmp, "a")
		if err = os.WriteFile(from, []byte("x"), 0o600); err == nil {
			err = os.Link(from, filepath.Join(tmp, "b"))
		}
	}
	if err != nil {
		c.OK, c.Found = false, err.Error()
		c.Effect = "no image can be built"
		c.Next = "give --state a directory on ext4, xfs, btrfs or tmpfs"
	}
	return c
}

// checkMapping reports whether a sandbox can get its tenant's /work if its user namespace was
// made before the tenant was known.
func checkMapping(err error) Check {
	c := Check{
		ID: "idmap", Name: "idmapped mounts of the state directory", OK: err == nil, Found: "work",
		Does:   "a parked interpreter gets the tenant's /work with mapped owners",
		Effect: "no parked interpreters: interpreters start with the function",
		Next:   "give --state a directory on ext4, xfs or btrfs (tmpfs from Linux 6.3)",
	}
	if err != nil {
		c.Found = err.Error()
	}
	return c
}

// checkPools compares the memory limits of the engine's pools with the host's memory.
func checkPools(memory, buffers, interpreters, forks int64) Check {
	taken := buffers + interpreters + forks
	c := Check{
		ID: "pools", Name: "memory of the engine's pools", OK: taken <= memory*3/4, Optional: true,
		Found: fmt.Sprintf("%d MiB of the host's %d MiB at most: buffers %d, parked interpreters %d, fork servers %d; %d MiB are left for functions",
			taken>>20, memory>>20, buffers>>20, interpreters>>20, forks>>20, max(memory-taken, 0)>>20),
		Effect: "the host may run out of memory before functions reach limits",
	}
	if !c.OK {
		c.Next = fmt.Sprintf("write into the engine's configuration: parked_interpreters: {memory: %dMiB}, and buffers: {memory: %dMiB}", memory>>20/10, memory>>20/20)
	}
	return c
}

// lowSpace is less than the size of a base environment with its packages.
const lowSpace = 1 << 30

func checkSpace(dir string) Check {
	c := Check{ID: "space", Name: "free space in the state directory", OK: true}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		c.OK, c.Found = false, err.Error()
		return c
	}
	free := st.Bavail * uint64(st.Bsize)
	c.Found = fmt.Sprintf("%d MiB", free>>20)
	if free < lowSpace {
		c.OK, c.Effect, c.Next = false, "builds may end with \"no space left on device\"", "free some space, or remove images with fre image rm"
	}
	return c
}
