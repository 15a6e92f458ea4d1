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

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// period is the period of the quota. The period is short: a node whose quota is used up waits only
// milliseconds.
const period = 20 * time.Millisecond

// errNoV1 reports that the machine lacks the controllers for shares.
var errNoV1 = errors.New("needs the controllers cpu and cpuacct of cgroup v1")

// share is a cgroup for a node and its sandboxes. An engine makes the sandboxes' cgroups at the top
// of the hierarchies; [share.enter] mounts the share at the top of the node's hierarchies.
type share struct {
	groups []group // one group per hierarchy: cpu and cpuacct, or a single group if both are mounted together
}

// group is the cgroup of a share in one hierarchy.
type group struct{ mount, dir string }

// newShare makes the cgroups without a limit. The error is errNoV1 if cgroup v1 is missing.
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

// enter returns a shell script that executes program inside the share and in the network namespace
// bound to the file netns. The process sees the share as the whole of each hierarchy.
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

// weight is the share's weight against other processes (default 1024): within the limit a node gets
// all the CPU time that the node needs.
const weight = 10 * 1024

// limit limits the share to a percentage of one CPU. Cgroups that an engine has just removed count
// for a moment longer, and the kernel refuses a limit below the limit of a child: retry.
func (s *share) limit(ctx context.Context, percent int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, v := range []struct {
		name  string
		value int64
	}{{"cpu.shares", weight}, {"cpu.cfs_period_us", period.Microseconds()}, {"cpu.cfs_quota_us", period.Microseconds() * int64(percent) / 100}} {
		path := filepath.Join(s.groups[0].dir, v.name)
		err := testdaemon.Until(ctx, func() error { return os.WriteFile(path, strconv.AppendInt(nil, v.value, 10), 0) })
		if err != nil {
			return err
		}
	}
	return nil
}

// used returns the CPU time that the share has used so far.
func (s *share) used() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(s.groups[len(s.groups)-1].dir, "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(ns), err
}

// remove removes the cgroups, and waits until the last processes have left.
func (s *share) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	for _, g := range s.groups {
		errs = append(errs, testdaemon.Until(ctx, func() error { return removeGroups(g.dir) }))
	}
	return errors.Join(errs...)
}

// removeGroups removes a cgroup and all descendants, which a killed engine may have left.
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
