package sandbox

import (
	"log/slog"
	"strings"
	"testing"
)

// TestPoolSizes: pools are no larger than memory and process ids allow, and a
// smaller one than was asked for is warned of.
func TestPoolSizes(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		name            string
		pool, shells    int
		memory, pids    int64
		poolGot, parked int
		warnings        []string
	}{
		{"defaults", 0, 0, 16 * gib, 32768, 16, 64, nil},
		{"no shells", 16, -1, 16 * gib, 32768, 16, 0, nil},
		{"room for all", 64, 256, 16 * gib, 32768, 64, 256, nil},
		{"memory for some shells", 64, 256, gib, 32768, 64, 102, []string{"what=shells"}},
		{"memory for some of both", 256, 8192, gib, 32768, 102, 102, []string{`what="cgroups and network namespaces"`, "what=shells"}},
		{"memory for a large pool", 8192, 8192, 16 * gib, 32768, 1638, 1638, []string{`what="cgroups and network namespaces"`, "what=shells"}},
		{"process ids for some", 8192, -1, 1024 * gib, 32768, 4096, 0, []string{`what="cgroups and network namespaces"`}},
		{"few process ids", 64, 0, 16 * gib, 100, 12, 12, []string{`what="cgroups and network namespaces"`, "what=shells"}},
		{"no room", 64, 256, 4 << 20, 4, 1, 0, []string{`what="cgroups and network namespaces"`, "what=shells"}},
	} {
		var log strings.Builder
		cfg := Config{PoolSize: test.pool, Shells: test.shells, Log: slog.New(slog.NewTextHandler(&log, nil))}
		cfg.sizePools(test.memory, test.pids)
		if cfg.PoolSize != test.poolGot || cfg.Shells != test.parked {
			t.Errorf("%s: pool of %d and %d shells, want %d and %d", test.name, cfg.PoolSize, cfg.Shells, test.poolGot, test.parked)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != len(test.warnings) {
			t.Errorf("%s: %d warnings, want %q:\n%s", test.name, n, test.warnings, log.String())
		}
		for _, w := range test.warnings {
			if !strings.Contains(log.String(), w) {
				t.Errorf("%s: no warning of %q:\n%s", test.name, w, log.String())
			}
		}
	}
}
