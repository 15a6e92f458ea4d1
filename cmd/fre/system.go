package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

func systemCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "system", Short: "Work with the engine's storage"})
	cmd.AddCommand(diskUsageCommand(c), systemGC(c), systemFsck(c))
	return cmd
}

func diskUsageCommand(c *cli) *cobra.Command {
	var l listing
	var verbose bool
	cmd := &cobra.Command{
		Use: "df", Short: "Show disk usage and reclaimable space",
		Long: `Show the disk usage of images, containers, tenants' /work and the downloads of builds, in
allocated blocks. RECLAIMABLE is the space of unused images, of containers that do not
run, and of the downloads. --verbose lists each image with its shared and its unique
bytes, each container and each tenant.

The command is fast: the engine counts images as they come and go, and reads the other
sizes from quotas or from separate file systems. On a host without either, AS OF gives the
age of the last count.`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			u, err := cl.DiskUsage(cmd.Context())
			if err != nil {
				return err
			}
			if l.format != "" {
				return formatEach(cmd.OutOrStdout(), l.format, []api.DiskUsage{u})
			}
			if verbose {
				return showUsage(cmd.OutOrStdout(), l, u)
			}
			return showSummary(cmd.OutOrStdout(), u)
		},
	}
	f := cmd.Flags()
	f.StringVar(&l.format, "format", "", "`template` for the report: 'json', or Go's text/template such as '{{.ReclaimableBytes}}'")
	f.BoolVar(&l.noTrunc, "no-trunc", false, "do not shorten ids")
	f.BoolVarP(&verbose, "verbose", "v", false, "list each image, container and tenant")
	return cmd
}

// showSummary prints a line for each kind of object.
func showSummary(w io.Writer, u api.DiskUsage) error {
	type line struct {
		what           string
		count, active  int
		bytes, reclaim int64
	}
	images := line{what: "Images", count: len(u.Images), bytes: u.ImageBytes, reclaim: u.ReclaimableBytes}
	for _, i := range u.Images {
		if i.InUse {
			images.active++
		}
	}
	work := line{what: "Tenants' /work", count: len(u.Tenants), active: len(u.Tenants)}
	for _, t := range u.Tenants {
		work.bytes += t.Bytes
	}
	containers := line{what: "Containers", count: len(u.Containers)}
	for _, c := range u.Containers {
		containers.bytes += c.Bytes
		if c.Running {
			containers.active++
		} else {
			containers.reclaim += c.Bytes
		}
	}
	cache := line{what: "Build cache", count: int(u.Cache.Inodes), bytes: u.Cache.Bytes, reclaim: u.Cache.Bytes}
	return show(w, listing{}, []line{images, containers, work, cache}, nil, []column[line]{
		{"TYPE", func(l line) string { return l.what }},
		{"TOTAL", func(l line) string { return strconv.Itoa(l.count) }},
		{"IN USE", func(l line) string { return strconv.Itoa(l.active) }},
		{"SIZE", func(l line) string { return size(l.bytes) }},
		{"RECLAIMABLE", func(l line) string {
			if l.bytes == 0 {
				return size(l.reclaim)
			}
			return fmt.Sprintf("%s (%d%%)", size(l.reclaim), l.reclaim*100/l.bytes)
		}},
	})
}

func showUsage(w io.Writer, l listing, u api.DiskUsage) error {
	err := show(w, listing{}, u.Images, nil, []column[api.ImageUsage]{
		{"NAME", func(i api.ImageUsage) string { return i.Name }},
		{"VERSION", func(i api.ImageUsage) string { return i.Version }},
		{"IMAGE ID", func(i api.ImageUsage) string { return l.shortID(i.Digest) }},
		{"SIZE", func(i api.ImageUsage) string { return size(i.Bytes) }},
		{"SHARED", func(i api.ImageUsage) string { return size(i.Bytes - i.UniqueBytes) }},
		{"UNIQUE", func(i api.ImageUsage) string { return size(i.UniqueBytes) }},
		{"INODES", func(i api.ImageUsage) string { return strconv.FormatInt(i.Inodes, 10) }},
		{"IN USE", func(i api.ImageUsage) string { return strconv.FormatBool(i.InUse) }},
	})
	if err != nil {
		return err
	}
	now := time.Now()
	counted := func(asOf *time.Time) string {
		if asOf == nil {
			return "not yet"
		}
		return ago(*asOf, now)
	}
	fmt.Fprintln(w)
	err = show(w, listing{}, u.Containers, nil, []column[api.ContainerUsage]{
		{"CONTAINER ID", func(c api.ContainerUsage) string { return l.shortID(c.ID) }},
		{"NAME", func(c api.ContainerUsage) string { return c.Name }},
		{"RUNNING", func(c api.ContainerUsage) string { return strconv.FormatBool(c.Running) }},
		{"WRITTEN", func(c api.ContainerUsage) string { return size(c.Bytes) }},
		{"INODES", func(c api.ContainerUsage) string { return strconv.FormatInt(c.Inodes, 10) }},
		{"AS OF", func(c api.ContainerUsage) string { return counted(c.AsOf) }},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	err = show(w, listing{}, []api.CacheUsage{u.Cache}, nil, []column[api.CacheUsage]{
		{"BUILD CACHE", func(c api.CacheUsage) string { return size(c.Bytes) }},
		{"INODES", func(c api.CacheUsage) string { return strconv.FormatInt(c.Inodes, 10) }},
		{"AS OF", func(c api.CacheUsage) string { return counted(c.AsOf) }},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	return show(w, listing{}, u.Tenants, nil, []column[api.TenantUsage]{
		{"TENANT", func(t api.TenantUsage) string { return t.Name }},
		{"/WORK", func(t api.TenantUsage) string { return size(t.Bytes) }},
		{"LIMIT", func(t api.TenantUsage) string {
			if t.LimitBytes == 0 {
				return "none"
			}
			return size(t.LimitBytes)
		}},
		{"INODES", func(t api.TenantUsage) string { return strconv.FormatInt(t.Inodes, 10) }},
		{"COUNTED BY", func(t api.TenantUsage) string {
			return map[string]string{"quota": "quota", "image": "file system", "plain": "walk"}[t.Kind]
		}},
		{"AS OF", func(t api.TenantUsage) string {
			if t.Kind == "plain" {
				return counted(t.AsOf)
			}
			return "now"
		}},
	})
}
