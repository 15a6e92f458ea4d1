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

// ready holds the memory of resources that a host keeps ready for starts. Each kind is measured
// with few and with many resources. The slope between both is the cost of one resource, without the
// cost of resources that exist only once.
type ready struct {
	Few    int         `json:"few"`
	Many   int         `json:"many"`
	Rounds []readyTurn `json:"rounds"`
}

// readyTurn is one round, in bytes. Index 0 is few, index 1 is many.
type readyTurn struct {
	Groups [2]held `json:"groups"` // cgroups alone
	Pools  [2]held `json:"pools"`  // a host's cgroups and network namespaces
	Parked [2]held `json:"parked"` // the same plus parked sandboxes, each in a further cgroup
}

// held is in bytes.
type held struct {
	Kernel  int64 `json:"kernel"`
	Spawner int64 `json:"spawner_pss"` // the parked sandboxes' part of the spawners' memory
	Engine  int64 `json:"engine_pss"`  // of this program, which contains the host
}

func (h held) minus(o held) held {
	return held{h.Kernel - o.Kernel, h.Spawner - o.Spawner, h.Engine - o.Engine}
}

func (h held) total() int64 { return h.Kernel + h.Spawner + h.Engine }

// cost returns the cost of one resource, as the median over rounds. of computes the cost in a
// round.
func (r *ready) cost(of func(group, pools, parked held) held) held {
	var all []held
	for _, t := range r.Rounds {
		all = append(all, of(t.Groups[1].minus(t.Groups[0]), t.Pools[1].minus(t.Pools[0]), t.Parked[1].minus(t.Parked[0])))
	}
	slices.SortFunc(all, func(a, b held) int { return int(a.total() - b.total()) })
	h, n := all[len(all)/2], int64(r.Many-r.Few)
	return held{h.Kernel / n, h.Spawner / n, h.Engine / n}
}

// bareAlone returns the cost of a parked sandbox without its cgroup, bare the cost with the cgroup.
func (r *ready) bareAlone() held {
	return r.cost(func(group, pools, parked held) held { return parked.minus(pools).minus(group) })
}

func (r *ready) bare() held {
	return r.cost(func(_, pools, parked held) held { return parked.minus(pools) })
}

func (r *ready) group() held {
	return r.cost(func(group, _, _ held) held { return group })
}

func (r *ready) network() held {
	return r.cost(func(group, pools, _ held) held { return pools.minus(group) })
}

// measureReady measures the kinds in turns. The first round is not counted, because the kernel
// keeps memory of earlier resources for later ones.
func measureReady(ctx context.Context, n, rounds int) (*ready, error) {
	r := &ready{Few: max(n/10, 1), Many: n}
	for round := range rounds + 1 {
		var t readyTurn
		for i, n := range []int{r.Few, r.Many} {
			for _, kind := range []struct {
				into *held
				keep func(ctx context.Context, dir string, n int) (func() error, error)
			}{{&t.Groups[i], keepGroups}, {&t.Pools[i], keepPools}, {&t.Parked[i], keepParked}} {
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

// keepPools opens a host without parked sandboxes.
func keepPools(_ context.Context, dir string, n int) (func() error, error) {
	h, err := sandbox.Open(sandbox.Config{Dir: dir, PoolSize: n, Parked: -1})
	if err != nil {
		return nil, err
	}
	return h.Close, nil
}

// keepParked opens a host and waits for the parked sandboxes.
func keepParked(ctx context.Context, dir string, n int) (func() error, error) {
	h, err := sandbox.Open(sandbox.Config{Dir: dir, PoolSize: n, Parked: n})
	if err != nil {
		return nil, err
	}
	for limit := time.Now().Add(time.Minute); h.Parked().Bare < n; {
		err := host.Settle(ctx)
		if err == nil && time.Now().After(limit) {
			err = fmt.Errorf("%d of %d sandboxes parked after a minute", h.Parked().Bare, n)
		}
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
	}
	return h.Close, nil
}

// holds waits until the kernel's memory is stable, with a limit, and returns the memory of the
// kernel, of this program and of all descendants.
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
