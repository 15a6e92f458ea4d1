package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

func functionRevisions(c *cli) *cobra.Command {
	var l listing
	var remove []string
	cmd := &cobra.Command{
		Use: "revisions NAME", Short: "List a function's revisions and their shares of the events",
		Long: `List the kept revisions of a function, newest first, with the percentage of the events for
each revision. hello@4 (a number), hello@stable (an alias) and hello@latest name a single
revision, for calls and for fre logs. See docs/revisions.md.`,
		Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeFunctions(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			if len(remove) > 0 {
				return each(remove, func(revision string) error {
					err := cl.Functions().RemoveRevision(cmd.Context(), names[0], revision)
					if err == nil {
						fmt.Fprintln(cmd.OutOrStdout(), revision)
					}
					return err
				})
			}
			r, err := cl.Functions().Revisions(cmd.Context(), names[0])
			if err != nil {
				return err
			}
			return showRevisions(cmd.OutOrStdout(), l, &r)
		},
	}
	l.flags(cmd, "numbers")
	cmd.Flags().StringArrayVar(&remove, "rm", nil, "remove this `REVISION`; may be repeated. The newest revision and revisions with events or an alias cannot be removed")
	return cmd
}

func showRevisions(w io.Writer, l listing, r *api.Revisions) error {
	now := time.Now()
	return show(w, l, r.Revisions, func(v api.Revision) string { return strconv.Itoa(v.Number) }, []column[api.Revision]{
		{"REVISION", func(v api.Revision) string { return strconv.Itoa(v.Number) }},
		{"IMAGE", func(v api.Revision) string { return v.ImageRef }},
		{"IMAGE ID", func(v api.Revision) string { return l.shortID(v.Image) }},
		{"EVENTS", func(v api.Revision) string {
			out := []string{strconv.Itoa(v.Percent) + "%"}
			for _, h := range r.Headers {
				if h.Revision == strconv.Itoa(v.Number) {
					out = append(out, h.Name+"="+h.Value)
				}
			}
			return strings.Join(out, " ")
		}},
		{"ALIASES", func(v api.Revision) string { return strings.Join(v.Aliases, ",") }},
		{"INSTANCES", func(v api.Revision) string { return strconv.Itoa(v.Instances) }},
		{"STATE", func(v api.Revision) string {
			switch {
			case v.ImageGone:
				return "image gone"
			case v.Resting:
				return "resting"
			case v.Percent > 0 || len(v.Aliases) > 0 || slices.ContainsFunc(r.Headers, func(h api.HeaderRoute) bool { return h.Revision == strconv.Itoa(v.Number) }):
				return "serving"
			}
			return "kept"
		}},
		{"DEPLOYED", func(v api.Revision) string { return ago(v.Deployed, now) }},
	})
}

func functionSplit(c *cli) *cobra.Command {
	var req api.SplitRequest
	var headers []string
	cmd := &cobra.Command{
		Use: "split NAME [REVISION=PERCENT...]", Short: "Split a function's events among its revisions",
		Long: `Split the events of a function among its revisions. The percentages must add up to 100;
without percentages the split stays as before. --header sends all events with a header to
one revision. The headers in this command replace all earlier headers.

The next fre deploy sends all events to the new revision, except with --no-traffic.`,
		Example: `  fre function split hello 3=90 4=10
  fre function split hello 3=90 4=10 --header X-Canary=1:4`,
		Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeFunctions(c),
		RunE: func(cmd *cobra.Command, words []string) error {
			for _, word := range words[1:] {
				revision, text, ok := strings.Cut(word, "=")
				percent, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
				if !ok || err != nil {
					return command.Usage(fmt.Errorf("%q is not REVISION=PERCENT, such as 4=10", word))
				}
				req.Weights = append(req.Weights, api.Weight{Revision: revision, Percent: percent})
			}
			for _, h := range headers {
				name, rest, ok := strings.Cut(h, "=")
				i := strings.LastIndexByte(rest, ':')
				if !ok || i < 0 {
					return command.Usage(fmt.Errorf("--header: %q is not NAME=VALUE:REVISION, such as X-Canary=1:4", h))
				}
				req.Headers = append(req.Headers, api.HeaderRoute{Name: name, Value: rest[:i], Revision: rest[i+1:]})
			}
			cl := c.client()
			defer cl.Close()
			r, err := cl.Functions().Split(cmd.Context(), words[0], req)
			if err != nil {
				return err
			}
			return showRevisions(cmd.OutOrStdout(), listing{}, &r)
		},
	}
	cmd.Flags().StringArrayVar(&headers, "header", nil, "`NAME=VALUE:REVISION`: send events with this header to this revision; may be repeated")
	cmd.Flags().StringVar(&req.Sticky, "sticky", "", "`header:NAME or cookie:NAME`: send all events with the same value to the same revision")
	return cmd
}

func functionRollback(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rollback NAME [REVISION]", Short: "Send all events to an earlier revision",
		Long: `Send all events of a function to the revision before the current revisions, or to REVISION.
If the revision still has warm instances, no event waits for a start.`,
		Args: command.Args(cobra.RangeArgs(1, 2)), ValidArgsFunction: completeFunctions(c),
		RunE: func(cmd *cobra.Command, words []string) error {
			var req api.RollbackRequest
			if len(words) > 1 {
				req.Revision = words[1]
			}
			cl := c.client()
			defer cl.Close()
			r, err := cl.Functions().Rollback(cmd.Context(), words[0], req)
			if err != nil {
				return err
			}
			for _, v := range r.Revisions {
				if v.Percent == 100 {
					fmt.Fprintf(cmd.OutOrStdout(), "%s is at revision %d, %s\n", r.Function, v.Number, v.ImageRef)
				}
			}
			return nil
		},
	}
}

func functionAlias(c *cli) *cobra.Command {
	var req api.AliasRequest
	cmd := &cobra.Command{
		Use: "alias NAME [ALIAS=REVISION...]", Short: "Set and remove aliases of a function's revisions",
		Long: `Set and remove aliases of a function's revisions. A call of NAME@ALIAS goes to the
revision with this alias. FRE keeps a revision with an alias, even after many deployments.`,
		Example: `  fre function alias hello stable=3
  fre invoke hello@stable`,
		Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeFunctions(c),
		RunE: func(cmd *cobra.Command, words []string) error {
			req.Set = map[string]string{}
			for _, word := range words[1:] {
				alias, revision, ok := strings.Cut(word, "=")
				if !ok {
					return command.Usage(fmt.Errorf("%q is not ALIAS=REVISION, such as stable=3", word))
				}
				req.Set[alias] = revision
			}
			cl := c.client()
			defer cl.Close()
			r, err := cl.Functions().SetAliases(cmd.Context(), words[0], req)
			if err != nil {
				return err
			}
			return showRevisions(cmd.OutOrStdout(), listing{}, &r)
		},
	}
	cmd.Flags().StringArrayVar(&req.Remove, "rm", nil, "remove this `ALIAS`; may be repeated")
	return cmd
}
