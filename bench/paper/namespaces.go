package main

import (
	"context"
	_ "embed" // clones.c
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/cc"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/stats"
)

//go:embed c/clones.c
var clonesSource []byte

// clones holds the times of processes made at once with the same kinds of namespaces.
type clones struct {
	Namespaces string          `json:"namespaces"`
	AtOnce     int             `json:"at_once"`
	Rounds     []stats.Summary `json:"rounds"` // time from the beginning until each process ran

	flags int
}

// slowest returns the median over the rounds of the time until the last process ran.
func (c *clones) slowest() time.Duration {
	all := make([]time.Duration, len(c.Rounds))
	for i, s := range c.Rounds {
		all[i] = s.Slowest
	}
	return stats.Median(all)
}

const allButNet = unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID

var namespaceCases = []clones{
	{Namespaces: "none"},
	{Namespaces: "ipc", flags: unix.CLONE_NEWIPC},
	{Namespaces: "uts", flags: unix.CLONE_NEWUTS},
	{Namespaces: "user", flags: unix.CLONE_NEWUSER},
	{Namespaces: "mount", flags: unix.CLONE_NEWNS},
	{Namespaces: "pid", flags: unix.CLONE_NEWPID},
	{Namespaces: "net", flags: unix.CLONE_NEWNET},
	{Namespaces: "all but net", flags: allButNet},
	{Namespaces: "all", flags: allButNet | unix.CLONE_NEWNET},
}

func (r *result) measureNamespaces(ctx context.Context, dir string) error {
	bin, err := cc.Compile(ctx, dir, "clones", clonesSource)
	if err != nil {
		return err
	}
	for _, n := range r.Size.Clones {
		first := len(r.Namespaces)
		for _, c := range namespaceCases {
			c.AtOnce = n
			r.Namespaces = append(r.Namespaces, &c)
		}
		for range r.Size.Rounds {
			for _, c := range r.Namespaces[first:] {
				// Meanwhile the kernel destroys the namespaces of the last round.
				if err := host.Settle(ctx); err != nil {
					return err
				}
				s, err := c.measure(ctx, bin)
				if err != nil {
					return fmt.Errorf("%d at once, %s: %w", n, c.Namespaces, err)
				}
				c.Rounds = append(c.Rounds, s)
			}
		}
	}
	return nil
}

func (c *clones) measure(ctx context.Context, bin string) (stats.Summary, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, bin, strconv.Itoa(c.flags), strconv.Itoa(c.AtOnce))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return stats.Summary{}, fmt.Errorf("%w: %s", err, firstLine(stderr.String()))
	}
	var all []time.Duration
	for line := range strings.Lines(string(out)) {
		ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return stats.Summary{}, err
		}
		all = append(all, time.Duration(ns))
	}
	return stats.Summarize(all), nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
