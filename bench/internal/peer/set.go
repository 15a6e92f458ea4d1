package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/fre-engine/fre/bench/internal/cc"
	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/engine"
)

// The names of the deployed functions: the clock, and the clock without libc.
const (
	function  = "bench-clock"
	cFunction = "bench-c-clock"
)

// Set selects the peers. Required: Engine, Spawner.
type Set struct {
	Engine  *engine.Engine
	Also    map[string]*engine.Engine // further engines by the suffix of their names
	Spawner string                    // the result of spawn.Compile
	Runc    bool                      // include runc, if installed
	Docker  *dockerd.Engine           // include Docker; nil: leave Docker out
	C       bool                      // include the clock without libc: bare and by Engine
}

// Names of the peers. The benchmark's own engine is "fre"; further engines add a suffix.
const (
	BareName       = "bare vfork+exec"
	BarePinnedName = "bare vfork+exec, one CPU"
	FREName        = "fre"
	RuncName       = "runc run"
	DockerName     = "docker run --network none"
	DockerHostName = "docker run --network host"
)

// CSuffix ends the names of the peers that start the clock without libc (bench/functions/c-clock).
// The other peers start the clock in Go.
const CSuffix = ", C without libc"

// Open deploys the clock and opens the peers, by name. skipped names the peers left out, with the
// reasons. The caller closes each peer.
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
	template, err := s.Engine.Deploy(ctx, "bench/functions/native-clock", function)
	if err != nil {
		return nil, nil, err
	}
	clock := filepath.Join(template, "clock")
	peers[FREName] = FRE(s.Engine.Addr(), function)
	for name, e := range s.Also {
		if _, err := e.Deploy(ctx, "bench/functions/native-clock", function); err != nil {
			return peers, nil, err
		}
		peers[FREName+" "+name] = FRE(e.Addr(), function)
	}
	if err := s.openBare(peers, clock, ""); err != nil {
		return peers, nil, err
	}
	if s.C {
		if err := s.openC(ctx, peers); err != nil {
			return peers, nil, err
		}
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

// openBare adds bare peers for the program at path, with a suffix to their names.
func (s Set) openBare(peers map[string]Peer, path, suffix string) error {
	for name, open := range map[string]func(spawner, path string) (Peer, error){BareName: Bare, BarePinnedName: BarePinned} {
		p, err := open(s.Spawner, path)
		if err != nil {
			return err
		}
		peers[name+suffix] = p
	}
	return nil
}

// openC compiles and deploys the clock without libc, and adds the peers that start it.
func (s Set) openC(ctx context.Context, peers map[string]Peer) error {
	dir := filepath.Join(s.Engine.Dir(), "c-clock")
	if err := os.CopyFS(dir, os.DirFS("bench/functions/c-clock")); err != nil {
		return fmt.Errorf("copy the clock without libc: %w", err)
	}
	source, err := os.ReadFile(filepath.Join(dir, "clock.c"))
	if err != nil {
		return err
	}
	clock, err := cc.Compile(ctx, dir, "clock", source, "-nostdlib")
	if err != nil {
		return err
	}
	if _, err := s.Engine.Deploy(ctx, dir, cFunction); err != nil {
		return err
	}
	peers[FREName+CSuffix] = FRE(s.Engine.Addr(), cFunction)
	return s.openBare(peers, clock, CSuffix)
}
