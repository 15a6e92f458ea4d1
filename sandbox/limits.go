package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HostMemory is the host's memory in bytes.
func HostMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}

// hostPids is how many processes and threads the kernel has ids for.
func hostPids() (int64, error) {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// roomFor cuts a number of things kept ready, each a shell at most, to what the
// host has memory and process ids for: a twentieth of the one, an eighth of the
// other.
func roomFor(want int, memory, pids int64) int {
	return int(min(int64(want), memory/20/shellBytes, pids/8))
}

// sizePools sets the defaults of the pools' sizes and cuts them, with a warning,
// to what memory and process ids have room for.
func (cfg *Config) sizePools(memory, pids int64) {
	cut := func(what string, want, least int) int {
		most := max(roomFor(want, memory, pids), least)
		if most < want {
			cfg.Log.Warn("fewer are kept ready than configured: the host has no room for more", "what", what, "configured", want, "at_most", most,
				"memory_bytes", memory, "process_ids", pids)
		}
		return most
	}
	if cfg.PoolSize == 0 {
		cfg.PoolSize = 16
	}
	cfg.PoolSize = cut("cgroups and network namespaces", cfg.PoolSize, 1)
	if cfg.Shells == 0 {
		cfg.Shells = 4 * cfg.PoolSize
	}
	cfg.Shells = cut("shells", max(cfg.Shells, 0), 0)
}
