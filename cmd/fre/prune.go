package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/daemon"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func systemGC(c *cli) *cobra.Command {
	var req api.GCRequest
	var format string
	cmd := &cobra.Command{
		Use: "gc", Short: "Collect garbage now", Args: command.Args(cobra.NoArgs),
		Long: `Collect garbage now. The engine removes images by the rules of its configuration ("gc" in
the file of fre serve --config; without rules no images), then all files without an image.
The engine also collects garbage by itself every few hours, without stopping builds or
starts.

--cache also removes the downloads of builds, unless a build runs. Later builds download
the files again.`,
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
	cmd.Flags().BoolVarP(&req.DryRun, "dry-run", "n", false, "list the objects to remove, and remove nothing")
	cmd.Flags().BoolVar(&req.Cache, "cache", false, "also remove the downloads of builds")
	cmd.Flags().StringVar(&format, "format", "", "`template` for the report, as in fre images")
	return cmd
}

func imagePrune(c *cli) *cobra.Command {
	var req api.PruneRequest
	var unused time.Duration
	var until, most, format string
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove unused images", Args: command.Args(cobra.NoArgs),
		Long: `Remove images without a name, or instead the images selected by --all, --unused,
--keep-newest and --max-size. Then remove all files without an image. Images in use by a
function, a sandbox or a build stay. For base environments and the builder's tools, only
--unused and --max-size count.`,
		Example: `  fre image prune --dry-run --unused 720h
  fre image prune --all --keep 'shop:v*'`,
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
			report, err := cl.Images().Prune(cmd.Context(), req)
			if err != nil {
				return err
			}
			return showGC(cmd.OutOrStdout(), format, report)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&req.All, "all", "a", false, "remove all unused images")
	f.DurationVar(&unused, "unused", 0, "remove images without use for this time, such as 720h")
	f.IntVar(&req.PerName, "keep-newest", 0, "keep this many images of each name, and remove the older images")
	f.StringVar(&most, "max-size", "", "remove the least recently used images until all files take at most this `size`, such as 20GiB")
	f.StringVar(&until, "until", "", "remove only images created before this `time` (2026-01-31, RFC 3339) or this long ago (24h)")
	f.StringArrayVar(&req.Labels, "label", nil, "remove only images with this `label`: key or key=value; may be repeated")
	f.StringArrayVar(&req.Keep, "keep", nil, "keep images whose name matches this `pattern`, such as shop or 'shop:v*'; may be repeated")
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, "list the objects to remove, and remove nothing")
	f.StringVar(&format, "format", "", "`template` for the report, as in fre images")
	return cmd
}

func containerPrune(c *cli) *cobra.Command {
	var req api.ContainerPruneRequest
	var until, format string
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove all containers that do not run", Args: command.Args(cobra.NoArgs),
		Long: `Remove all containers that do not run, with their files and logs: ended containers, and
containers that never ran.`,
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
			report, err := cl.Containers().Prune(cmd.Context(), req)
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
	f.StringVar(&until, "until", "", "remove only containers created before this `time` (2026-01-31, RFC 3339) or this long ago (24h)")
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, "list the objects to remove, and remove nothing")
	f.StringVar(&format, "format", "", "`template` for the report, as in fre images")
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
		err = fmt.Errorf("%s is not a positive size", s)
	}
	if err != nil {
		return 0, command.Usage(fmt.Errorf("%s: %w", flag, err))
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
	return time.Time{}, command.Usage(fmt.Errorf("%s: %q is neither a time such as 2026-01-31 or 2026-01-31T15:04:05Z nor a duration such as 24h", flag, s))
}

func showGC(w io.Writer, format string, r api.GCReport) error {
	if format != "" {
		return inspect(w, format, []api.GCReport{r})
	}
	for _, img := range r.Images {
		name := strings.Join(img.Names, ", ")
		if name == "" {
			name = img.Built + " (without a name)"
		}
		fmt.Fprintf(w, "%s %s %s\n", img.Digest, name, img.Rule)
	}
	fmt.Fprintf(w, "%s %s: %d images, %d files, %d inodes\n", freed(r.DryRun), size(r.Bytes), len(r.Images), r.Objects, r.Inodes)
	return nil
}

func systemFsck(c *cli) *cobra.Command {
	var req api.FsckRequest
	var quiet bool
	cmd := &cobra.Command{
		Use: "fsck", Short: "Check all stored data", Args: command.Args(cobra.NoArgs),
		Long: `Check all stored data: the content and metadata of every file, the lists of files, the
directories of images, and the database. The engine keeps working during the check. fre
prints a line for each problem. The exit code is 1 if problems remain.

--repair replaces a damaged file by an intact copy if a copy exists. If a file is lost,
--repair removes the images with this file, so that the next build or pull makes the
images again. Images in use stay.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			out := cmd.OutOrStdout()
			got, err := cl.Fsck(cmd.Context(), req, func(line api.FsckLine) {
				if p := line.Problem; p != nil && !quiet {
					fmt.Fprintln(out, command.Printable(p.Path+": "+p.What)) // a damaged store may hold control characters
					if p.Repair != "" {
						fmt.Fprintln(out, " ", command.Printable(p.Repair))
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
				return failure.Hint(fmt.Errorf("the store has unrepaired problems: %d", got.Problems-got.Repaired), "build or pull the images above again, then repeat the check")
			}
			return failure.Hint(fmt.Errorf("the store has problems: %d", got.Problems), "repair the store: fre system fsck --repair")
		},
	}
	cmd.Flags().BoolVar(&req.Repair, "repair", false, "repair damaged files, and remove images with lost files")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the totals")
	return cmd
}
