package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/daemon"
)

func (c *cli) systemGC() *cobra.Command {
	var req api.GCRequest
	var format string
	cmd := &cobra.Command{
		Use: "gc", Short: "Collect garbage now", Args: args(cobra.NoArgs),
		Long: `Collect garbage now: images by the rules of the engine's configuration ("gc" in
the file of fre serve --config; without it none), then every file that no image
refers to. The engine does the same by itself every few hours, while it builds
and starts.

--cache removes what builds have downloaded, too, unless one runs: the next ones
download it again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			report, err := cl.GC(cmd.Context(), req)
			if err != nil {
				return err
			}
			return showGC(cmd.OutOrStdout(), format, report)
		},
	}
	cmd.Flags().BoolVarP(&req.DryRun, "dry-run", "n", false, "say what would go, remove nothing")
	cmd.Flags().BoolVar(&req.Cache, "cache", false, "also what builds have downloaded")
	cmd.Flags().StringVar(&format, "format", "", "`template` for the report, as for fre images")
	return cmd
}

func (c *cli) imagePrune() *cobra.Command {
	var req api.PruneRequest
	var unused time.Duration
	var until, most, format string
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove images that nobody uses", Args: args(cobra.NoArgs),
		Long: `Remove images without a name, or those that the rules --all, --unused,
--keep-newest and --max-size name, and every file that no image refers to. What
a function, a sandbox or a build uses stays. Base environments and the builder's
tools go by --unused and --max-size only.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if req.MaxBytes, err = flagBytes("--max-size", most); err != nil {
				return err
			}
			if until != "" {
				before, err := flagTime("--until", until, time.Now())
				if err != nil {
					return err
				}
				req.Before = &before
			}
			req.UnusedNanos = unused.Nanoseconds()
			cl := c.client()
			defer cl.Close()
			report, err := cl.PruneImages(cmd.Context(), req)
			if err != nil {
				return err
			}
			return showGC(cmd.OutOrStdout(), format, report)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&req.All, "all", "a", false, "every image that nobody uses")
	f.DurationVar(&unused, "unused", 0, "images that were not used for so long, such as 720h")
	f.IntVar(&req.PerName, "keep-newest", 0, "all but so many of the images of one name")
	f.StringVar(&most, "max-size", "", "least recently used images, until all files take no more than this `size`, such as 20GiB")
	f.StringVar(&until, "until", "", "only images made before this `time`, or so long ago")
	f.StringArrayVar(&req.Labels, "label", nil, "only images with this `label`: key or key=value")
	f.StringArrayVar(&req.Keep, "keep", nil, "never images with a name like this `pattern`, such as shop or 'shop:v*'")
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, "say what would go, remove nothing")
	f.StringVar(&format, "format", "", "`template` for the report, as for fre images")
	return cmd
}

func (c *cli) containerPrune() *cobra.Command {
	var req api.ContainerPruneRequest
	var until, format string
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove the containers that do not run", Args: args(cobra.NoArgs),
		Long: `Remove the containers that do not run, with what they wrote and printed: those
that have ended, and those that never ran.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if until != "" {
				before, err := flagTime("--until", until, time.Now())
				if err != nil {
					return err
				}
				req.Before = &before
			}
			cl := c.client()
			defer cl.Close()
			report, err := cl.PruneContainers(cmd.Context(), req)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if format != "" {
				return inspect(out, format, []api.ContainerPruneReport{report})
			}
			for _, gone := range report.Containers {
				fmt.Fprintf(out, "%s %s %s\n", listing{}.shortID(gone.ID), gone.Name, size(gone.Bytes))
			}
			fmt.Fprintf(out, "%s %s: %d containers, %d inodes\n", freed(report.DryRun), size(report.Bytes), len(report.Containers), report.Inodes)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&until, "until", "", "only containers made before this `time`, or so long ago")
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, "say what would go, remove nothing")
	f.StringVar(&format, "format", "", "`template` for the report, as for fre images")
	return cmd
}

func freed(dry bool) string {
	if dry {
		return "would free about"
	}
	return "freed"
}

func flagBytes(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := daemon.ParseBytes(s)
	if err == nil && n < 1 {
		err = fmt.Errorf("%s is nothing", s)
	}
	if err != nil {
		return 0, usageError{fmt.Errorf("%s: %w", flag, err)}
	}
	return n, nil
}

// flagTime parses a time, or a duration before now.
func flagTime(flag, s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError{fmt.Errorf("%s: %q is neither a time such as 2026-01-31 or 2026-01-31T15:04:05Z nor a duration such as 24h", flag, s)}
}

func showGC(w io.Writer, format string, r api.GCReport) error {
	if format != "" {
		return inspect(w, format, []api.GCReport{r})
	}
	for _, img := range r.Images {
		name := strings.Join(img.Names, ", ")
		if name == "" {
			name = img.Built + " (no name any more)"
		}
		fmt.Fprintf(w, "%s %s %s\n", img.Digest, name, img.Rule)
	}
	fmt.Fprintf(w, "%s %s: %d images, %d files, %d inodes\n", freed(r.DryRun), size(r.Bytes), len(r.Images), r.Objects, r.Inodes)
	return nil
}

func (c *cli) systemFsck() *cobra.Command {
	var req api.FsckRequest
	var quiet bool
	cmd := &cobra.Command{
		Use: "fsck", Short: "Check everything that is stored", Args: args(cobra.NoArgs),
		Long: `Check everything that is stored: the content and metadata of every file, the
lists of files, the images' directories and the database. The engine goes on
working meanwhile. What is wrong is printed, one line each; the exit status is 1
if anything is left that --repair has not put right.

--repair takes a sound copy where there is one. An image that has lost a file for
good is removed, so that building or pulling it makes it again; one that is in
use stays.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			out := cmd.OutOrStdout()
			got, err := cl.Fsck(cmd.Context(), req, func(line api.FsckLine) {
				if p := line.Problem; p != nil && !quiet {
					fmt.Fprintln(out, printable(p.Path+": "+p.What)) // a damaged store may hold control characters
					if p.Repair != "" {
						fmt.Fprintln(out, " ", printable(p.Repair))
					}
				}
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%d files (%s), %d trees, %d images: problems: %d, repaired: %d\n",
				got.Objects, size(got.Bytes), got.Trees, got.Images, got.Problems, got.Repaired)
			switch {
			case got.Problems == got.Repaired:
				return nil
			case req.Repair:
				return &hintError{fmt.Errorf("the store has problems that are not repaired: %d", got.Problems-got.Repaired), "build or pull again what the lines above name, then repeat this"}
			}
			return &hintError{fmt.Errorf("the store has problems: %d", got.Problems), "fre system fsck --repair puts right what it can"}
		},
	}
	cmd.Flags().BoolVar(&req.Repair, "repair", false, "put right what can be, remove what is lost")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the sum only")
	return cmd
}
