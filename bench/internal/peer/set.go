package peer

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"

	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/engine"
)

// function is the name under which the clock is deployed.
const function = "bench-clock"

// Set says which peers to open. Required: Engine, Spawner.
type Set struct {
	Engine  *engine.Engine
	Also    map[string]*engine.Engine // further engines by what sets them apart
	Spawner string                    // what spawn.Compile made
	Runc    bool                      // runc too, where it is installed
	Docker  *dockerd.Engine           // docker too; nil: not
}

// Names of the peers that FRE is compared with; the benchmark's own engine is
// "fre", others have what sets them apart behind it.
const (
	BareName       = "bare vfork+exec"
	BarePinnedName = "bare vfork+exec, one CPU"
	FREName        = "fre"
	RuncName       = "runc run"
	DockerName     = "docker run --network none"
	DockerHostName = "docker run --network host"
)

// Open deploys the clock and opens the peers, by name. What is left out is said
// in skipped. Close of each is the caller's.
func (s Set) Open(ctx context.Context) (peers map[string]Peer, skipped []string, err error) {
	peers = map[string]Peer{}
	defer func() {
		if err != nil {
			for _, p := range peers {
				err = errors.Join(err, p.Close())
			}
			peers = nil
		}
	}()
	template, err := s.Engine.Deploy(ctx, "templates/native-clock", function)
	if err != nil {
		return nil, nil, err
	}
	clock := filepath.Join(template, "clock")
	peers[FREName] = FRE(s.Engine.Addr(), function)
	for name, e := range s.Also {
		if _, err := e.Deploy(ctx, "templates/native-clock", function); err != nil {
			return peers, nil, err
		}
		peers[FREName+" "+name] = FRE(e.Addr(), function)
	}
	if peers[BareName], err = Bare(s.Spawner, clock); err != nil {
		delete(peers, BareName)
		return peers, nil, err
	}
	if peers[BarePinnedName], err = BarePinned(s.Spawner, clock); err != nil {
		delete(peers, BarePinnedName)
		return peers, nil, err
	}
	if s.Runc {
		switch p, err := Runc(ctx, s.Spawner, clock, s.Engine.Dir()); {
		case errors.Is(err, exec.ErrNotFound):
			skipped = append(skipped, "runc, which is not installed (make deps-bench)")
		case err != nil:
			return peers, nil, err
		default:
			peers[RuncName] = p
		}
	}
	if s.Docker == nil {
		return peers, skipped, nil
	}
	for name, network := range map[string]string{DockerName: "none", DockerHostName: "host"} {
		p, err := Docker(ctx, s.Spawner, clock, s.Engine.Dir(), s.Docker, network)
		if err != nil {
			return peers, nil, err
		}
		peers[name] = p
	}
	return peers, skipped, nil
}
