package engine

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
)

// Check is one line of `fre doctor`: a feature of the host, what was found,
// what follows from its absence and what to do about it.
type Check = sandbox.Check

// HostChecks probes the host; it needs no running engine.
func HostChecks() []Check { return sandbox.Probe() }

// Checks probes the host and the state directory.
func (e *Engine) Checks() []Check {
	return append(HostChecks(), checkHardLinks(e.cfg.StateDir), checkSpace(e.cfg.StateDir))
}

// checkHardLinks tries what every image is made of.
func checkHardLinks(dir string) Check {
	c := Check{Name: "hard links in the state directory", OK: true, Found: "work"}
	tmp, err := os.MkdirTemp(dir, "check-")
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

// lowSpace is less than a base environment with its packages takes.
const lowSpace = 1 << 30

func checkSpace(dir string) Check {
	c := Check{Name: "free space in the state directory", OK: true}
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
