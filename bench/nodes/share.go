package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/daemon"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// period is over which a share is kept: short, so that a node that has used its part up
// waits for milliseconds.
const period = 20 * time.Millisecond

// errNoV1 says that the machine cannot bound a node as share does.
var errNoV1 = errors.New("needs the controllers cpu and cpuacct of cgroup v1")

// share is a control group of a node, with its sandboxes: an engine makes their groups at
// the top of the hierarchies that it sees, and a node sees its share there ([share.enter]).
type share struct {
	groups []group // one for each hierarchy: cpu and cpuacct, which are one where they are mounted together
}

// group is a share's part in a hierarchy.
type group struct{ mount, dir string }

// newShare makes the group, without a bound. The error is errNoV1 where that is so.
func newShare(name string) (s *share, err error) {
	layout, err := cgroup.Detect()
	if err != nil {
		return nil, err
	}
	s = &share{}
	for _, c := range []cgroup.Controller{cgroup.CPU, cgroup.CPUAcct} {
		mount, ok := layout.Mounts[c]
		if !ok || layout.Version != cgroup.V1 {
			return nil, errNoV1
		}
		if len(s.groups) > 0 && s.groups[0].mount == mount {
			continue
		}
		g := group{mount, filepath.Join(mount, name)}
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			return nil, errors.Join(err, s.remove(context.Background()))
		}
		s.groups = append(s.groups, g)
	}
	return s, nil
}

// enter is a shell's commands to become program, in the share, which it sees as the whole of
// the hierarchies, in the network namespace that is bound to a file.
func (s *share) enter(netns, program string) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh -e\n")
	var mounts []string
	for _, g := range s.groups {
		fmt.Fprintf(&b, "echo $$ >%s/cgroup.procs\n", g.dir)
		mounts = append(mounts, fmt.Sprintf("mount --bind %s %s", g.dir, g.mount))
	}
	fmt.Fprintf(&b, "exec nsenter --net=%s unshare --mount sh -c '%s && exec \"$0\" \"$@\"' %s \"$@\"\n", netns, strings.Join(mounts, " && "), program)
	return b.String()
}

// weight is a share's beside whatever else wants the CPUs (1024 is a process's): within its
// bound it gets what it wants.
const weight = 10 * 1024

// limit bounds it to so much of one CPU. Groups below it that an engine has just removed count
// for a moment longer, and the kernel refuses it while one of them might have more.
func (s *share) limit(ctx context.Context, percent int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, v := range []struct {
		name  string
		value int64
	}{{"cpu.shares", weight}, {"cpu.cfs_period_us", period.Microseconds()}, {"cpu.cfs_quota_us", period.Microseconds() * int64(percent) / 100}} {
		path := filepath.Join(s.groups[0].dir, v.name)
		err := daemon.Until(ctx, func() error { return os.WriteFile(path, strconv.AppendInt(nil, v.value, 10), 0) })
		if err != nil {
			return err
		}
	}
	return nil
}

// used is what the share has used so far.
func (s *share) used() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(s.groups[len(s.groups)-1].dir, "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(ns), err
}

// remove removes the share, from which all processes have gone or are about to.
func (s *share) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	for _, g := range s.groups {
		errs = append(errs, daemon.Until(ctx, func() error { return removeGroups(g.dir) }))
	}
	return errors.Join(errs...)
}

// removeGroups removes a group and those below, which an engine that was killed has left.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(dir))
}
