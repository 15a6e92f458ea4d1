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
)

func (c *cli) nodesCommand() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "nodes", Aliases: []string{"node"}, Short: "List the engines that work together, and take one out for a while", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Nodes(cmd.Context())
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
	cmd.AddCommand(c.drainCommand(), c.undrainCommand())
	return cmd
}

func (c *cli) drainCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Have a node take nothing on, and wait until it has nothing under way", Args: args(cobra.ExactArgs(1)),
		Long: `Have a node take nothing on: neither events that wait, nor requests of other nodes; what
comes to its own gateway goes to others, and /healthz says 503, for load balancers. What
is under way ends. It stays so over restarts, until fre nodes undrain.`,
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			if err := cl.DrainNode(cmd.Context(), a[0]); err != nil {
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
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long what is under way may take; 0s: do not wait")
	return cmd
}

// awaitDrained waits until a node is drained, lost or gone.
func awaitDrained(ctx context.Context, cl *client.Client, name string, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := cl.Nodes(ctx)
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
				return &hintError{fmt.Errorf("%s drains, and has %d events under way after %v", name, busy, most), "wait longer (--wait), or stop it: what it has not finished runs elsewhere"}
			}
			return ctx.Err()
		}
	}
}

func (c *cli) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "undrain NAME", Aliases: []string{"uncordon"}, Short: "Have a node take events on again", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			if err := cl.UndrainNode(cmd.Context(), a[0]); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), a[0])
			return nil
		},
	}
}
