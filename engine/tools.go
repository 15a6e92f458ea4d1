package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// A program of build steps that parks (image.Command.Parks) is started ahead, warm
// before the next build needs it, for as long as somebody builds again and again:
// who edits code does so within toolIdle.
const (
	toolIdle  = 5 * time.Minute
	toolShell = 2 // parked for each program after great demand
)

// tool returns the pool of parked programs that c can be run by, nil if there cannot
// be one. Like a function's runtime shells they are sandboxes of nobody's, each with
// a user of its own, and used once.
func (s *shells) tool(c *image.Command, env []string, limits sandbox.Limits) *shellPool {
	if !c.Parks || c.Network || s.cfg.Off || s.e.mapErr != nil {
		return nil
	}
	p := &shellPool{all: s, tool: true, limits: limits, config: image.Config{
		Base:  "build:" + path.Base(c.Args[0]),
		Shell: &image.Shell{Args: c.Args[:len(c.Args)-1], Env: env},
	}}
	for _, b := range c.Binds {
		if !b.Writable {
			p.mounts = append(p.mounts, sandbox.Mount{Source: b.Source, Target: b.Target})
		}
	}
	var root unix.Stat_t
	if unix.Stat(c.Rootfs, &root) != nil { // the step says so
		return nil
	}
	// The inode: what was made in a root that has been removed since is of no use.
	text, err := json.Marshal([]any{c.Rootfs, root.Ino, p.config.Shell, p.mounts, p.limits})
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(text)
	p.key = "tool:" + hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.pools[p.key]; have != nil {
		return have
	}
	// What is made ahead must not take the CPU from the build that it comes too late for.
	p.fill(c.Rootfs, 0, toolShell, toolIdle, func() bool { return p.running.Load() > 0 })
	s.pools[p.key] = p
	return p
}

// closeTools drops the programs that are parked. No build is under way any more.
func (s *shells) closeTools() {
	s.mu.Lock()
	var tools []*shellPool
	for _, p := range s.pools {
		if p.tool {
			tools = append(tools, p)
		}
	}
	s.mu.Unlock()
	for _, p := range tools {
		p.pool.Load().Close()
	}
}

// runParked has a parked program of p's do what c asks of it. ran is false where
// there is none: then nothing has happened.
func (r buildRunner) runParked(ctx context.Context, c *image.Command, p *shellPool, limits sandbox.Limits, tail *tailWriter) (status sandbox.ExitStatus, ran bool, err error) {
	f := sandbox.Furnishing{Limits: limits}
	for _, b := range c.Binds {
		if b.Writable {
			f.Mounts = append(f.Mounts, sandbox.Mount{Source: b.Source, Target: b.Target, Writable: true, Mapped: true})
		}
	}
	for sh := p.lease(); sh != nil; sh = p.lease() {
		err := ownBinds(c.Binds, functionUID)
		if err == nil {
			err = sh.sb.Furnish(f)
		}
		if errors.Is(err, os.ErrProcessDone) {
			r.e.shells.died.Add(1)
			sh.drop()
			continue
		}
		if err != nil {
			sh.drop()
			r.e.log.WarnContext(ctx, "parked program not furnished: it starts with the build step", "program", c.Args[0], "error", err)
			return sandbox.ExitStatus{}, false, nil
		}
		status, err := r.finish(ctx, c, sh, tail)
		return status, true, err
	}
	return sandbox.ExitStatus{}, false, nil
}

// finish runs a furnished program to its end.
func (r buildRunner) finish(ctx context.Context, c *image.Command, sh *shell, tail *tailWriter) (sandbox.ExitStatus, error) {
	defer func() { _ = sh.conn.Close() }()
	out, errs := follow(sh.stdout, c.Stdout, tail), follow(sh.stderr, c.Stderr, tail)
	b := r.newBox(sh.id, c)
	r.e.boxes.adopt(r.e, b, sh.sb)
	loadErr := sh.conn.Load(ctx, &channel.Load{Handler: c.Args[len(c.Args)-1], Dir: c.Dir})
	if loadErr != nil {
		b.kill()
	}
	status, err := r.e.waitEnd(ctx, b)
	<-out
	<-errs
	return status, errors.Join(err, loadErr)
}
