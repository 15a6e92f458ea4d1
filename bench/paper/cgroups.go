package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// groups holds the times of simultaneous requests for cgroups with limits.
type groups struct {
	How    string            `json:"how"` // "create" or "reuse"
	AtOnce int               `json:"at_once"`
	Rounds [][]time.Duration `json:"rounds_ns"`
}

func (g *groups) summary() stats.Summary {
	var all []time.Duration
	for _, round := range g.Rounds {
		all = append(all, round...)
	}
	return stats.Summarize(all)
}

var groupLimits = cgroup.Limits{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 64}

// measureCgroups measures FRE's cgroup pool, once filled and once empty. An empty pool makes a
// cgroup in each hierarchy, opens the files and writes the limits, like any engine without a pool.
func (r *result) measureCgroups(ctx context.Context) error {
	for _, n := range r.Size.Cgroups {
		create, reuse := &groups{How: "create", AtOnce: n}, &groups{How: "reuse", AtOnce: n}
		r.Cgroups = append(r.Cgroups, create, reuse)
		for range r.Size.Rounds {
			for _, g := range []*groups{create, reuse} {
				if err := host.Settle(ctx); err != nil {
					return err
				}
				took, err := g.measure(ctx)
				if err != nil {
					return fmt.Errorf("%s %d: %w", g.How, n, err)
				}
				g.Rounds = append(g.Rounds, took)
			}
		}
	}
	return nil
}

func (g *groups) measure(ctx context.Context) (took []time.Duration, err error) {
	ready := 1
	if g.How == "reuse" {
		ready = g.AtOnce
	}
	name := fmt.Sprintf("fre-bench-paper-%d", os.Getpid())
	pool, err := cgroup.Open(cgroup.Config{Parent: name, Size: ready})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	if err := filled(ctx, name, ready); err != nil {
		return nil, err
	}
	if g.How == "create" {
		last, err := pool.Acquire(groupLimits)
		if err != nil {
			return nil, err
		}
		defer pool.Release(last)
		return acquire(pool, g.AtOnce)
	}
	// The measured cgroups have been leased before and cleaned since.
	if _, err := acquire(pool, g.AtOnce); err != nil {
		return nil, err
	}
	if err := host.Settle(ctx); err != nil {
		return nil, err
	}
	return acquire(pool, g.AtOnce)
}

// acquire leases n cgroups at once, returns the time of each lease, and releases all cgroups.
func acquire(pool *cgroup.Pool, n int) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	leased := make([]*cgroup.Group, n)
	errs := make([]error, n)
	start := make(chan struct{})
	var asking sync.WaitGroup
	for i := range n {
		asking.Go(func() {
			<-start
			began := time.Now()
			leased[i], errs[i] = pool.Acquire(groupLimits)
			took[i] = time.Since(began)
		})
	}
	close(start)
	asking.Wait()
	for i, group := range leased {
		if errs[i] == nil {
			pool.Release(group)
		}
	}
	return took, errors.Join(errs...)
}

// filled waits until the pool called name has made n cgroups and is idle.
func filled(ctx context.Context, name string, n int) error {
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	for made := 0; made < n; {
		if made, err = below(layout.Mounts[cgroup.Memory], name); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return host.Settle(ctx)
}

// below returns the number of children of cgroups called name, anywhere in a hierarchy.
func below(hierarchy, name string) (n int, err error) {
	err = filepath.WalkDir(hierarchy, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another engine removes the cgroup
			return nil
		case err == nil && d.IsDir() && filepath.Base(filepath.Dir(path)) == name:
			n++
		}
		return err
	})
	return n, err
}
