package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// A build tool that can park (image.Command.Parks) is started ahead of the next build, as long as
// builds follow each other within toolIdle: after an edit of the code the next build is near.
const (
	toolIdle         = 5 * time.Minute
	toolInterpreters = 2 // parked for each tool after great demand
)

// tool returns the pool of parked tools that can run c, or nil if c cannot use a parked tool.
// Like parked interpreters, parked tools are sandboxes without a tenant, each with its own user,
// and are used once.
func (s *interpreters) tool(c *image.Command, env []string, limits sandbox.Limits) *interpreterPool {
	if !c.Parks || c.Network || s.cfg.Off || s.host.tenants.MapErr != nil {
		return nil
	}
	p := &interpreterPool{all: s, tool: true, limits: limits, config: image.Config{
		Base:   "build:" + path.Base(c.Args[0]),
		Parked: &image.ParkedInterpreter{Args: c.Args[:len(c.Args)-1], Env: env},
	}}
	for _, b := range c.Binds {
		if !b.Writable {
			p.mounts = append(p.mounts, sandbox.Mount{Source: b.Source, Target: b.Target})
		}
	}
	var root unix.Stat_t
	if unix.Stat(c.Rootfs, &root) != nil { // the build step reports the error
		return nil
	}
	// The inode tells a new root from a removed one of the same path: old tools are useless.
	text, err := json.Marshal([]any{c.Rootfs, root.Ino, p.config.Parked, p.mounts, p.limits})
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
	// Park no tool while a build runs: the tool would take CPU from the build, and come too late.
	p.fill(c.Rootfs, 0, toolInterpreters, toolIdle, func() bool { return p.running.Load() > 0 })
	s.pools[p.key] = p
	return p
}

// closeTools drops all parked tools. No build may be under way.
func (s *interpreters) closeTools() {
	s.mu.Lock()
	var tools []*interpreterPool
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
