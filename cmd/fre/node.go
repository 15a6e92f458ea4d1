package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func nodesCommand(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "nodes", Aliases: []string{"node"}, Short: "List the nodes of the cluster", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Nodes().List(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), l, all, func(n api.Node) string { return n.Name }, []column[api.Node]{
				{"NAME", func(n api.Node) string {
					if n.Self {
						return n.Name + " *"
					}
					return n.Name
				}},
				{"STATE", func(n api.Node) string { return n.State }},
				{"VERSION", func(n api.Node) string { return n.Version }},
				{"ADDRESS", func(n api.Node) string { return n.Address }},
				{"INSTANCES", func(n api.Node) string { return strconv.Itoa(n.Instances) }},
				{"BUSY", func(n api.Node) string { return strconv.Itoa(n.Busy) }},
				{"LACKING", func(n api.Node) string { return strings.Join(n.Lacking, " ") }},
			})
		},
	}
	l.flags(cmd, "names")
	cmd.AddCommand(drainCommand(c), undrainCommand(c))
	return cmd
}

func drainCommand(c *cli) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Drain a node: stop new work, and wait until the node is idle", Args: command.Args(cobra.ExactArgs(1)),
		Long: `Drain a node, for example before an upgrade, and wait until the node is idle. A draining
node takes no waiting events and no requests of other nodes. It forwards the requests at
its own gateway, and answers /healthz with 503 for load balancers. Running events finish.
The node stays drained, even after a restart, until fre nodes undrain.`,
		Example: `  fre nodes drain fre-1 && systemctl stop fre`,
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			if err := cl.Nodes().Drain(cmd.Context(), a[0]); err != nil {
				return err
			}
			if wait > 0 {
				if err := awaitDrained(cmd.Context(), cl, a[0], wait); err != nil {
					return err
				}
			}
			fmt.Fprintln(cmd.OutOrStdout(), a[0])
			return nil
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long to wait until the node is idle; 0s: do not wait")
	return cmd
}

// awaitDrained waits until a node is drained, lost or gone.
func awaitDrained(ctx context.Context, cl *client.Client, name string, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := cl.Nodes().List(ctx)
		if err != nil {
			return err
		}
		busy := 0
		there := false
		for _, n := range all {
			if n.Name == name && n.State != "drained" && n.State != "lost" {
				there, busy = true, n.Busy
			}
		}
		if !there {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return failure.Hint(fmt.Errorf("node %s drains, but still runs %d events after %v", name, busy, most), "wait longer (--wait), or stop the node: other nodes then run its unfinished asynchronous events")
			}
			return ctx.Err()
		}
	}
}

func undrainCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "undrain NAME", Aliases: []string{"uncordon"}, Short: "Let a drained node take events again", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			if err := cl.Nodes().Undrain(cmd.Context(), a[0]); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), a[0])
			return nil
		},
	}
}
