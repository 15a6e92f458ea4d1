package image

import (
	"errors"
	"fmt"
	"strings"
)

// ReservedName reports whether a name is reserved for images that builds find and trust: base
// environments and tools.
func ReservedName(name string) bool {
	return strings.HasPrefix(name, basePrefix) || strings.HasPrefix(name, toolsPrefix)
}

// Check refuses a configuration that no Builder makes, in an image from elsewhere: an image must
// not ask a host for more than a template may.
func (c *Config) Check() error {
	for name, list := range map[string][]string{"args": c.Args, "env": c.Env} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return fmt.Errorf("%s: %q holds a NUL byte", name, s)
			}
		}
	}
	size := 0
	for _, v := range c.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return fmt.Errorf("env: %q is no NAME=value", v)
		}
		size += len(v) + 1
	}
	if size > 2*maxEnvBytes { // the template's and the runtime's
		return fmt.Errorf("env takes %d bytes: the limit is %s", size, formatBytes(2*maxEnvBytes))
	}
	if err := c.checkPipeline(); err != nil {
		return err
	}
	if len(c.Args) == 0 && c.Protocol != ProtocolPipeline {
		return errors.New("args: no program")
	}
	switch c.Protocol {
	case ProtocolNone:
		return nil // not a function: no further checks
	case ProtocolChannel, ProtocolStdio, ProtocolPipeline:
	case ProtocolSnapshot:
		return errors.New("the image is a snapshot of an agent's /work, not a function: use the image with fre agent create")
	default:
		return fmt.Errorf("unknown protocol %q: the image needs a newer FRE", c.Protocol)
	}
	if !ValidName(c.Tenant) {
		return fmt.Errorf("tenant %q is no name", c.Tenant)
	}
	in, r := c.Instances, c.Resources
	for _, f := range []struct {
		name           string
		n, least, most int64
	}{
		{"instances.concurrency", int64(in.Concurrency), 1, maxConcurrency},
		{"instances.min", int64(in.Min), 0, maxInstances},
		{"instances.max", int64(in.Max), max(1, int64(in.Min)), maxInstances},
		{"instances.idle", int64(in.Idle), 0, int64(maxIdle)},
		{"resources.memory", r.MemoryBytes, minMemory, maxMemory},
		{"resources.cpu", r.CPUMillis, minCPU, maxCPU},
		{"resources.pids", r.Pids, 1, maxPids},
		{"resources.tmp", r.TmpBytes, minTmp, maxTmp},
		{"resources.files", r.Files, minFiles, maxFiles},
		{"resources.timeout", int64(r.Timeout), int64(minTimeout), int64(maxTimeout)},
	} {
		if f.n < f.least || f.n > f.most {
			return fmt.Errorf("%s is %d: must be from %d to %d", f.name, f.n, f.least, f.most)
		}
	}
	if in.Isolation != IsolationEvent && in.Isolation != IsolationInstance {
		return fmt.Errorf("instances.isolation %q is unknown", in.Isolation)
	}
	switch {
	case c.Network.Mode != "" && c.Network.Mode != NetworkNone && c.Network.Mode != NetworkEgress && c.Network.Mode != NetworkHost:
		return fmt.Errorf("network %q is unknown", c.Network.Mode)
	case len(c.Network.Allow) > maxAllow || len(c.Network.Allow) > 0 && c.Network.Mode != NetworkEgress:
		return fmt.Errorf("network.allow has %d entries for the mode %s", len(c.Network.Allow), c.Network.Mode)
	}
	if err := c.checkAccess(); err != nil {
		return err
	}
	for _, s := range c.Network.Allow {
		if _, err := ParseDestination(s); err != nil {
			return fmt.Errorf("network.allow: %w", err)
		}
	}
	return nil
}
