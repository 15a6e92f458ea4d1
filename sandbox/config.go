package sandbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/egress"
)

// Config configures [Open]. Dir is required.
type Config struct {
	Dir string       // private directory for mount points; created by Open
	Log *slog.Logger // default: discard
	// PoolSize is the number of cgroups, of network namespaces and of bare parked sandboxes to
	// keep ready; default 16. Open reduces the number if the host has no room.
	PoolSize     int
	CgroupParent string // default "fre-" and a hash of Dir
	// Optional are controllers that the host may lack. Their limits are then not enforced, and
	// CheckLimits refuses such limits.
	Optional []cgroup.Controller
	// Parked is the most parked sandboxes; default 4 × PoolSize, none if negative. Open reduces
	// the number if the host has no room.
	Parked   int
	Spawners int           // spawner processes; default 2, or 1 on one CPU
	Egress   egress.Config // for sandboxes with egress; Open sets Name and Log by default
	OwnBase  uint32        // first host id of sandboxes with User.Own; default 0x80000000
}

// complete sets the defaults of a Config.
func (cfg *Config) complete() (err error) {
	if cfg.Dir == "" {
		return errors.New("sandbox: Config.Dir is required")
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Egress.Log == nil {
		cfg.Egress.Log = cfg.Log
	}
	// Names on the host for the engine of this directory.
	sum := sha256.Sum256([]byte(cfg.Dir))
	name := "fre-" + hex.EncodeToString(sum[:6])
	cfg.CgroupParent = cmp.Or(cfg.CgroupParent, name)
	cfg.Egress.Name = cmp.Or(cfg.Egress.Name, name[:15]) // the most bytes in the name of a link
	// A spawner waits for each child's execve. Slowest of 256 starts at once on two CPUs,
	// in ms, one spawner/two spawners: 530/457, 1062/763, 814/748, 771/824; of 64 starts:
	// 192/231, 124/118, 256/195, 191/282 (BenchmarkBurst on a busy machine). The difference
	// is noise, but with two spawners the death of one costs only half of the sandboxes.
	cfg.Spawners = cmp.Or(cfg.Spawners, min(2, runtime.NumCPU()))
	cfg.OwnBase = cmp.Or(cfg.OwnBase, 0x80000000)
	return nil
}

// sizePools sets the default sizes of the pools. If memory or process ids do not suffice,
// sizePools reduces the sizes and logs a warning.
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
	if cfg.Parked == 0 {
		cfg.Parked = 4 * cfg.PoolSize
	}
	cfg.Parked = cut("parked sandboxes", max(cfg.Parked, 0), 0)
}

// roomFor reduces a number of ready objects, each at most as large as a parked sandbox, to the
// room of the host: a twentieth of the memory, an eighth of the process ids.
func roomFor(want int, memory, pids int64) int {
	return int(min(int64(want), memory/20/parkedBytes, pids/8))
}

// parkedBytes is the most kernel memory of an attached parked sandbox, network namespace
// included. A bare parked sandbox takes a tenth.
const parkedBytes = 512 << 10
