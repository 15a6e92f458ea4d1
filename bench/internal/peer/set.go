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

// The names under which the clock and the one without libc are deployed.
const (
	function  = "bench-clock"
	cFunction = "bench-c-clock"
)

// Set says which peers to open. Required: Engine, Spawner.
type Set struct {
	Engine  *engine.Engine
	Also    map[string]*engine.Engine // further engines by what sets them apart
	Spawner string                    // what spawn.Compile made
	Runc    bool                      // runc too, where it is installed
	Docker  *dockerd.Engine           // docker too; nil: not
	C       bool                      // the clock without libc too: bare and by Engine
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

// CSuffix is what the names of peers end in that start the clock without libc
// (bench/functions/c-clock); the others start the one in Go.
const CSuffix = ", C without libc"

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

// openBare adds the program at path as a bare process, under names with a suffix.
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

// openC compiles and deploys the clock without libc and adds those that start it.
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
