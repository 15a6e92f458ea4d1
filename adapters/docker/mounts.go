package docker

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// mounts applies Binds, Mounts and Tmpfs.
func (c *creation) mounts(h *hostConfig) error {
	for _, b := range h.Binds {
		source, target, ok := strings.Cut(b, ":")
		if !ok {
			source, target = workVolume, b
		}
		target, options, _ := strings.Cut(target, ":")
		if err := c.mount(source, target, options, false); err != nil {
			return err
		}
	}
	for i := range h.Mounts {
		if err := c.mountOf(&h.Mounts[i]); err != nil {
			return err
		}
	}
	for target, options := range h.Tmpfs {
		if err := c.tmpfs(target, options); err != nil {
			return err
		}
	}
	return nil
}

// mount applies one mount. Only the tenant's directory, at /work, is supported.
func (c *creation) mount(source, target, options string, readOnly bool) error {
	const instead = "mount the tenant's persistent directory: -v /work, or -v " + workVolume + ":/work"
	switch absolute := strings.HasPrefix(source, "/"); {
	case absolute && path.Clean(source) != workDir:
		return leftOut("mounts of the host's "+source, instead)
	case !absolute && source != workVolume:
		return leftOut("custom volumes ("+source+")", instead)
	}
	if path.Clean(target) != workDir {
		return leftOut("volumes at "+target, "the tenant's directory is at /work: -v /work")
	}
	for o := range strings.SplitSeq(options, ",") {
		switch o {
		case "", "rw", "z", "Z", "nocopy":
		case "ro":
			readOnly = true
		default:
			return badRequest("invalid mode %q of volume %s: use rw or ro", o, target)
		}
	}
	c.work, c.workDenied = true, readOnly
	return nil
}

func (c *creation) mountOf(m *hostMount) error {
	switch m.Type {
	case "volume":
		if m.partial() {
			return leftOut("mounts of a part of a volume, or by a driver", "mount the tenant's directory as a whole: -v /work")
		}
		return c.mount(cmp.Or(m.Source, workVolume), m.Target, "", m.ReadOnly)
	case "tmpfs":
		if path.Clean(m.Target) != "/tmp" {
			return noTmpfs(m.Target)
		}
		if o := m.TmpfsOptions; o != nil {
			if o.Mode != 0 && o.Mode != 0o1777 || len(o.Options) > 0 {
				return leftOut("tmpfs options but the size", tmpfsNext)
			}
			c.tmpBytes = o.SizeBytes
		}
		return nil
	}
	return leftOut(m.Type+" mounts of the host", "mount the tenant's directory: -v /work")
}

// partial reports whether the mount is of a part of a volume, or by a driver.
func (m *hostMount) partial() bool {
	o := m.VolumeOptions
	return o != nil && (o.Subpath != "" || o.DriverConfig != nil && o.DriverConfig.Name != "")
}

// tmpfs applies the options of a mount at target: a size, and options that the sandbox's /tmp has.
func (c *creation) tmpfs(target, options string) error {
	if path.Clean(target) != "/tmp" {
		return noTmpfs(target)
	}
	for o := range strings.SplitSeq(options, ",") {
		size, sized := strings.CutPrefix(o, "size=")
		if !sized {
			if !slices.Contains([]string{"", "rw", "nosuid", "nodev", "exec", "mode=1777"}, o) {
				return leftOut("tmpfs option "+o, tmpfsNext)
			}
			continue
		}
		n, err := parseSize(size)
		if err != nil {
			return badRequest("Tmpfs: %v", err)
		}
		c.tmpBytes = n
	}
	return nil
}

const tmpfsNext = "/tmp is writable for all, with nosuid and nodev: give the size alone"

func noTmpfs(target string) error {
	return leftOut("tmpfs at "+target, "/tmp is a tmpfs already (--tmpfs /tmp:size=64m), and the root is writable unless --read-only")
}
