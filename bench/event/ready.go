package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/memory"
	"github.com/fre-engine/fre/sandbox"
)

// ready is what the sandboxes' host keeps ready for starts, and what that holds
// in bytes of what the machine has available.
type ready struct {
	Things int   `json:"things"` // of each kind
	Pools  int64 `json:"pools"`  // a cgroup and a network namespace each
	Shells int64 `json:"shells"` // parked bare shells, beyond the pools
	PSS    int64 `json:"pss"`    // of that, in the memory of processes
}

// each is a thing's part of so many bytes, in KiB.
func (r *ready) each(bytes int64) float64 { return float64(bytes) / float64(r.Things) / 1024 }

// measureReady fills the pools, once without shells and once with as many.
func measureReady(ctx context.Context, n int) (*ready, error) {
	pools, err := keep(ctx, n, -1)
	if err != nil {
		return nil, err
	}
	all, err := keep(ctx, n, n)
	if err != nil {
		return nil, err
	}
	return &ready{
		Things: n, Pools: pools.available, Shells: all.available - pools.available, PSS: all.pss - pools.pss,
	}, nil
}

// kept is what a host holds, in bytes.
type kept struct{ available, pss int64 }

func keep(ctx context.Context, pool, shells int) (k kept, err error) {
	if err := host.Settle(ctx); err != nil {
		return k, err
	}
	before, err := memory.Available()
	if err != nil {
		return k, err
	}
	dir, err := os.MkdirTemp("", "fre-bench-ready-")
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	h, err := sandbox.Open(sandbox.Config{Dir: dir, PoolSize: pool, Shells: shells})
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	for limit := time.Now().Add(time.Minute); h.Shells().Bare < shells; {
		if time.Now().After(limit) {
			return k, fmt.Errorf("%d of %d shells parked after a minute", h.Shells().Bare, shells)
		}
		if err := host.Settle(ctx); err != nil {
			return k, err
		}
	}
	after, err := steady(ctx, before)
	if err != nil {
		return k, err
	}
	// The spawner and the shells are this program's descendants.
	tree, err := memory.Tree(os.Getpid())
	if err != nil {
		return k, err
	}
	pss, err := memory.PSS(tree)
	return kept{before - after, pss}, err
}

// steady waits until what is available has stopped to fall, or for a while.
func steady(ctx context.Context, last int64) (int64, error) {
	const slack, tries = 1 << 20, 20
	for range tries {
		if err := host.Settle(ctx); err != nil {
			return 0, err
		}
		now, err := memory.Available()
		if err != nil || now > last-slack {
			return now, err
		}
		last = now
	}
	return last, nil
}
