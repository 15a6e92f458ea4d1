package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/memory"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// ready is what the sandboxes' host keeps ready for starts. Of each kind few are
// kept and then many: what one costs is the slope between the two, which leaves
// out what is there once.
type ready struct {
	Few    int         `json:"few"`
	Many   int         `json:"many"`
	Rounds []readyTurn `json:"rounds"`
}

// readyTurn is one round: bytes, few and many.
type readyTurn struct {
	Groups [2]held `json:"groups"` // cgroups alone
	Pools  [2]held `json:"pools"`  // a host's cgroups and network namespaces
	Shells [2]held `json:"shells"` // the same and parked bare shells, each in one more cgroup
}

// held is in bytes.
type held struct {
	Kernel  int64 `json:"kernel"`
	Spawner int64 `json:"spawner_pss"` // what the shells use of the spawners' memory
	Engine  int64 `json:"engine_pss"`  // of this program, which has the host
}

func (h held) minus(o held) held {
	return held{h.Kernel - o.Kernel, h.Spawner - o.Spawner, h.Engine - o.Engine}
}

func (h held) total() int64 { return h.Kernel + h.Spawner + h.Engine }

// cost of one thing, the median of the rounds; of tells a round's costs apart.
func (r *ready) cost(of func(group, pools, shells held) held) held {
	var all []held
	for _, t := range r.Rounds {
		all = append(all, of(t.Groups[1].minus(t.Groups[0]), t.Pools[1].minus(t.Pools[0]), t.Shells[1].minus(t.Shells[0])))
	}
	slices.SortFunc(all, func(a, b held) int { return int(a.total() - b.total()) })
	h, n := all[len(all)/2], int64(r.Many-r.Few)
	return held{h.Kernel / n, h.Spawner / n, h.Engine / n}
}

// shell is a parked one without its cgroup, bare what is parked with it.
func (r *ready) shell() held {
	return r.cost(func(group, pools, shells held) held { return shells.minus(pools).minus(group) })
}

func (r *ready) bare() held {
	return r.cost(func(_, pools, shells held) held { return shells.minus(pools) })
}

func (r *ready) group() held {
	return r.cost(func(group, _, _ held) held { return group })
}

func (r *ready) network() held {
	return r.cost(func(group, pools, _ held) held { return pools.minus(group) })
}

// measureReady takes turns between the kinds, after one of each that does not
// count: what the kernel keeps of it for the next is no thing's cost.
func measureReady(ctx context.Context, n, rounds int) (*ready, error) {
	r := &ready{Few: max(n/10, 1), Many: n}
	for round := range rounds + 1 {
		var t readyTurn
		for i, n := range []int{r.Few, r.Many} {
			for _, kind := range []struct {
				into *held
				keep func(ctx context.Context, dir string, n int) (func() error, error)
			}{{&t.Groups[i], keepGroups}, {&t.Pools[i], keepPools}, {&t.Shells[i], keepShells}} {
				var err error
				if *kind.into, err = measureKept(ctx, n, kind.keep); err != nil {
					return nil, err
				}
			}
		}
		if round > 0 {
			r.Rounds = append(r.Rounds, t)
		}
	}
	return r, nil
}

func measureKept(ctx context.Context, n int, keep func(ctx context.Context, dir string, n int) (func() error, error)) (h held, err error) {
	dir, err := os.MkdirTemp("", "fre-bench-ready-")
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	before, err := holds(ctx)
	if err != nil {
		return h, err
	}
	closeAll, err := keep(ctx, dir, n)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	after, err := holds(ctx)
	return after.minus(before), err
}

// keepGroups fills a pool of cgroups.
func keepGroups(_ context.Context, _ string, n int) (func() error, error) {
	pool, err := cgroup.Open(cgroup.Config{Parent: fmt.Sprintf("fre-bench-ready-%d", os.Getpid()), Size: n})
	if err != nil {
		return nil, err
	}
	return pool.Close, nil
}

// keepPools opens a host without shells.
func keepPools(_ context.Context, dir string, n int) (func() error, error) {
	h, err := sandbox.Open(sandbox.Config{Dir: dir, PoolSize: n, Shells: -1})
	if err != nil {
		return nil, err
	}
	return h.Close, nil
}

// keepShells opens a host and waits for its shells.
func keepShells(ctx context.Context, dir string, n int) (func() error, error) {
	h, err := sandbox.Open(sandbox.Config{Dir: dir, PoolSize: n, Shells: n})
	if err != nil {
		return nil, err
	}
	for limit := time.Now().Add(time.Minute); h.Shells().Bare < n; {
		err := host.Settle(ctx)
		if err == nil && time.Now().After(limit) {
			err = fmt.Errorf("%d of %d shells parked after a minute", h.Shells().Bare, n)
		}
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
	}
	return h.Close, nil
}

// holds waits until the kernel neither takes nor gives back any more, or for a
// while, and says what it and this program and its descendants hold.
func holds(ctx context.Context) (h held, err error) {
	const slack, rests, tries, pause = 1 << 20, 2, 15, 200 * time.Millisecond
	var last int64
	for try, rested := 0, 0; try < tries && rested < rests; try++ {
		debug.FreeOSMemory()
		if err := memory.DropObjects(); err != nil {
			return h, err
		}
		select {
		case <-ctx.Done():
			return h, ctx.Err()
		case <-time.After(pause):
		}
		if h.Kernel, err = memory.Kernel(); err != nil {
			return h, err
		}
		rested++
		if change := h.Kernel - last; change > slack || change < -slack {
			rested = 0
		}
		last = h.Kernel
	}
	tree, err := memory.Tree(os.Getpid())
	if err != nil {
		return h, err
	}
	if h.Engine, err = memory.PSS(tree[:1]); err != nil {
		return h, err
	}
	h.Spawner, err = memory.PSS(tree[1:])
	return h, err
}
