package main

import (
	"cmp"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
)

// completeFunctions and completeImages ask the engine; without an engine they complete nothing.
func completeFunctions(c *cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl := c.client()
		defer cl.Close()
		functions, err := cl.Functions().List(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, f := range functions {
			names = append(names, f.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeImages(c *cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl := c.client()
		defer cl.Close()
		images, err := cl.Images().List(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, img := range images {
			names = append(names, img.Names...)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeImageFirst completes IMAGE; the user's shell completes the command behind it.
func completeImageFirst(c *cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, s string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return completeImages(c)(cmd, args, s)
	}
}

func completeContainers(c *cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl := c.client()
		defer cl.Close()
		boxes, err := cl.Sandboxes().List(cmd.Context(), client.SandboxOptions{All: true})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, b := range boxes {
			if b.Name != "" {
				names = append(names, b.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeSandboxes(c *cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl := c.client()
		defer cl.Close()
		boxes, err := cl.Sandboxes().List(cmd.Context(), client.SandboxOptions{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []string
		for _, b := range boxes {
			ids = append(ids, cmp.Or(b.Name, b.ID))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeAny joins the results of several completion functions.
func completeAny(others ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, done []string, begun string) ([]string, cobra.ShellCompDirective) {
		all := map[string]bool{}
		for _, complete := range others {
			names, _ := complete(cmd, done, begun)
			for _, name := range names {
				all[name] = true
			}
		}
		return slices.Sorted(maps.Keys(all)), cobra.ShellCompDirectiveNoFileComp
	}
}
