package main

import (
	"context"
	"errors"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/memory"
)

// ready is what an engine that keeps things ready holds more than one that
// keeps next to nothing.
type ready struct {
	Things    int    `json:"things"`
	Serve     string `json:"serve"`     // arguments that keep them
	Available int64  `json:"available"` // bytes that the host has less
	PSS       int64  `json:"pss"`       // bytes of the engine's own processes, growth
}

// each is a thing's part of so many bytes, in KiB.
func (r *ready) each(bytes int64) float64 { return float64(bytes) / float64(r.Things) / 1024 }

// measureReady runs the two engines one after the other.
func measureReady(ctx context.Context, o options) (*ready, error) {
	little, err := held(ctx, engine.Options{Bin: o.Bin, Serve: "--pool 1"})
	if err != nil {
		return nil, err
	}
	much, err := held(ctx, engine.Options{Bin: o.Bin, Serve: o.readyServe})
	if err != nil {
		return nil, err
	}
	return &ready{
		Things: o.ready, Serve: o.readyServe,
		Available: much.available - little.available, PSS: much.pss - little.pss,
	}, nil
}

// holding is what an engine has, in bytes.
type holding struct{ available, pss int64 }

func held(ctx context.Context, o engine.Options) (h holding, err error) {
	if err := host.Settle(ctx); err != nil {
		return h, err
	}
	before, err := memory.Available()
	if err != nil {
		return h, err
	}
	e, err := engine.Open(ctx, o)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	after, err := steady(ctx, before)
	if err != nil {
		return h, err
	}
	tree, err := memory.Tree(e.PID())
	if err != nil {
		return h, err
	}
	pss, err := memory.PSS(tree)
	return holding{before - after, pss}, err
}

// steady waits until what is available has stopped to fall, or for a while.
func steady(ctx context.Context, last int64) (int64, error) {
	const slack, tries = 1 << 20, 30
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
