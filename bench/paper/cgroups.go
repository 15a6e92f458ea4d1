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

// groups are cgroups with limits, asked for at once.
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

// measureCgroups asks FRE's own pool, once when it is filled and once when it
// holds nothing: then it makes a group in each hierarchy, opens its files and
// writes its limits, as every engine must that keeps none.
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
	// Groups that have been leased before, and cleaned since.
	if _, err := acquire(pool, g.AtOnce); err != nil {
		return nil, err
	}
	if err := host.Settle(ctx); err != nil {
		return nil, err
	}
	return acquire(pool, g.AtOnce)
}

// acquire leases n groups at once, says how long each took, and gives them back.
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

// filled waits until the pool called name has made n groups and rests.
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

// below counts the groups in the group called name, wherever it is in a
// hierarchy.
func below(hierarchy, name string) (n int, err error) {
	err = filepath.WalkDir(hierarchy, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // of another engine's, which removes it
			return nil
		case err == nil && d.IsDir() && filepath.Base(filepath.Dir(path)) == name:
			n++
		}
		return err
	})
	return n, err
}
