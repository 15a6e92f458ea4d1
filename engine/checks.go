package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
)

// Check is one line of `fre doctor`: a feature of the host, what was found,
// what follows from its absence and what to do about it.
type Check = sandbox.Check

// HostChecks probes the host; it needs no running engine.
func HostChecks() []Check { return sandbox.Probe() }

// Checks probes the host and the state directory, which must exist.
func Checks(stateDir string) []Check {
	return append(HostChecks(), checkHardLinks(stateDir), checkMapping(sandbox.CanMap(stateDir)), checkSpace(stateDir))
}

// Checks probes the host and the state directory.
func (e *Engine) Checks() []Check { return Checks(e.cfg.StateDir) }

// Require returns an error that names each of the ids whose check is not OK, what
// follows and what to do, or those that no check has.
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
		return fmt.Errorf("require: no check is called %s; there are %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	if len(lacking) > 0 {
		return fmt.Errorf("this host lacks what the configuration requires:\n  %s", strings.Join(lacking, "\n  "))
	}
	return nil
}

// checkHardLinks tries what every image is made of.
func checkHardLinks(dir string) Check {
	c := Check{ID: "hard_links", Name: "hard links in the state directory", OK: true, Found: "work"}
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

// checkMapping says whether tenants' directories can be given to a sandbox whose
// user namespace was there before its tenant was known.
func checkMapping(err error) Check {
	c := Check{
		ID: "idmap", Name: "idmapped mounts of the state directory", OK: err == nil, Found: "work",
		Effect: "no runtime shells: interpreters start with their function",
		Next:   "give --state a directory on ext4, xfs or btrfs (tmpfs from Linux 6.3)",
	}
	if err != nil {
		c.Found = err.Error()
	}
	return c
}

// lowSpace is less than a base environment with its packages takes.
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
