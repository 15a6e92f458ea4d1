package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/peer"
)

// serial holds a number of sequential starts by each peer.
type serial struct {
	Count  int            `json:"count"`
	Series []*peer.Series `json:"series"`
}

// peerNames lists the peers in the order of the tables.
var peerNames = []string{peer.BareName, peer.FREName, peer.RuncName, peer.DockerName}

func (r *result) measureStarts(ctx context.Context, set peer.Set) (err error) {
	peers, skipped, err := set.Open(ctx)
	if err != nil {
		return err
	}
	r.Skipped = append(r.Skipped, skipped...)
	var entries []peer.Entry
	for _, name := range peerNames {
		p := peers[name]
		if p == nil {
			continue
		}
		e := peer.Entry{Name: name, Peer: p, N: peer.MaxBurst, Burst: peer.MaxBurst, Rounds: r.Size.Rounds}
		if name == peer.RuncName || name == peer.DockerName {
			e.Rounds = 1 // 256 simultaneous starts take docker most of a minute on two cores
		}
		entries = append(entries, e)
		delete(peers, name)
	}
	defer func() {
		err = errors.Join(err, peer.Close(entries))
		for _, p := range peers { // the peers that the paper does not compare
			err = errors.Join(err, p.Close())
		}
	}()
	// The first starts read the program and the tools from the disk; do not count them.
	if _, err := peer.Sequential(ctx, entries, 2, 0); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	for _, n := range r.Size.Serial {
		if err := host.Settle(ctx); err != nil {
			return err
		}
		series, err := peer.Sequential(ctx, entries, n, 0)
		if err != nil {
			return err
		}
		r.Serial = append(r.Serial, &serial{n, series})
	}
	for _, n := range r.Size.Bursts {
		series, err := peer.Bursts(ctx, entries, n, r.Size.Rounds, host.Settle)
		if err != nil {
			return err
		}
		r.Bursts = append(r.Bursts, series...)
	}
	return nil
}
