package docker

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// limits applies the resource limits.
func (c *creation) limits(h *hostConfig) error {
	if err := c.limitMemory(h); err != nil {
		return err
	}
	if err := c.limitCPU(h); err != nil {
		return err
	}
	if h.PidsLimit != nil {
		if *h.PidsLimit < 0 {
			return leftOut("containers of any number of processes", "give a number: --pids-limit")
		}
		c.pids = *h.PidsLimit
	}
	for _, u := range h.Ulimits {
		if u.Name != "nofile" || u.Soft != u.Hard || u.Hard <= 0 {
			return leftOut("ulimit "+u.Name, "use --ulimit nofile=N, --pids-limit, -m or --cpus")
		}
		c.files = u.Hard
	}
	return c.limitStorage(h.StorageOpt)
}

func (c *creation) limitMemory(h *hostConfig) error {
	const least = 6 << 20 // Docker's minimum
	switch {
	case h.Memory < 0 || h.Memory > 0 && h.Memory < least:
		return badRequest("Memory: minimum memory limit allowed is 6MB")
	case h.MemorySwap != 0 && (h.MemorySwap != h.Memory || h.Memory == 0):
		return leftOut("swap limits", "the memory limit counts swap as well: give --memory-swap the same value as -m, or leave it out")
	}
	c.memoryBytes = h.Memory
	return nil
}

func (c *creation) limitCPU(h *hostConfig) error {
	switch {
	case min(h.NanoCpus, h.CPUQuota, h.CPUPeriod) < 0:
		return badRequest("CPU limits must not be negative")
	case h.NanoCpus > 0 && (h.CPUQuota > 0 || h.CPUPeriod > 0):
		return badRequest("Conflicting options: Nano CPUs and CPU Period or Quota cannot both be set")
	}
	c.cpuMillis = h.NanoCpus / 1e6
	if h.CPUQuota > 0 {
		c.cpuMillis = h.CPUQuota * 1000 / cmp.Or(h.CPUPeriod, 100_000)
	}
	if c.cpuMillis == 0 && (h.NanoCpus > 0 || h.CPUQuota > 0) {
		return badRequest("CPU limit: 0.001 CPUs are the least")
	}
	return nil
}

func (c *creation) limitStorage(options map[string]string) error {
	for key, v := range options {
		if key != "size" {
			return leftOut("storage option "+key, "use --storage-opt size=1g")
		}
		n, err := parseSize(v)
		if err != nil {
			return badRequest("StorageOpt: %v", err)
		}
		c.scratch = n
	}
	return nil
}

// parseSize parses a size with a binary unit, in docker's notation: 64m, 1g, 1GiB.
func parseSize(text string) (int64, error) {
	digits := strings.TrimRight(strings.ToLower(text), "bi")
	shift := 0
	if digits != "" {
		if i := strings.IndexByte("kmgt", digits[len(digits)-1]); i >= 0 {
			digits, shift = digits[:len(digits)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	if err != nil || n <= 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is not a size, for example 64m", text)
	}
	return n << shift, nil
}
