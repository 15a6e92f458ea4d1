package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/daemon"
	"github.com/fre-engine/fre/internal/command"
)

func tenantCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{
		Use: "tenant", Short: "Work with tenants and their quotas",
		Long: `Work with tenants. A tenant owns functions, a /work directory, tokens and secrets. A
template names the tenant of its function. A tenant needs a record only for quotas. See
docs/tenants.md.`,
		Example: `  fre tenant create acme --instances 20 --memory 4GiB --cpu 8`,
	})

	cmd.AddCommand(tenantList(c), tenantCreate(c), tenantQuota(c), tenantUsage(c), tenantRemove(c))
	return cmd
}

// quotaFlags change quotas: quotas without a flag stay.
type quotaFlags struct {
	instances, images, events     int64
	builds                        int64
	cpu, memory, imageBytes, work string
}

func (q *quotaFlags) add(f *pflag.FlagSet) {
	f.Int64Var(&q.instances, "instances", 0, "running containers, and sandboxes of functions, including idle sandboxes; 0: no limit, as in the other quotas")
	f.StringVar(&q.memory, "memory", "", "sum of the memory limits of these instances, such as 2GiB")
	f.StringVar(&q.cpu, "cpu", "", "sum of the CPU limits of these instances, such as 1500m or 4")
	f.Int64Var(&q.images, "images", 0, "images of the tenant's functions")
	f.StringVar(&q.imageBytes, "image-bytes", "", "size of the files of these images, such as 10GiB")
	f.StringVar(&q.work, "work", "", "size of /work, such as 1GiB; for a /work in use, from the engine's next start on")
	f.Int64Var(&q.events, "events", 0, "events per second")
	f.Int64Var(&q.builds, "builds", 0, "builds at a time, further builds wait; 0: the default, 4")
}

// apply copies the given flags into quotas.
func (q *quotaFlags) apply(f *pflag.FlagSet, to *api.Quotas) error {
	for name, number := range map[string][2]*int64{"instances": {&q.instances, &to.Instances}, "images": {&q.images, &to.Images}, "events": {&q.events, &to.EventsPerSecond}, "builds": {&q.builds, &to.Builds}} {
		if f.Changed(name) {
			*number[1] = *number[0]
		}
	}
	for _, s := range []struct {
		name, text string
		parse      func(string) (int64, error)
		to         *int64
	}{
		{"memory", q.memory, daemon.ParseBytes, &to.MemoryBytes},
		{"cpu", q.cpu, daemon.ParseCPU, &to.CPUMillis},
		{"image-bytes", q.imageBytes, daemon.ParseBytes, &to.ImageBytes},
		{"work", q.work, daemon.ParseBytes, &to.WorkBytes},
	} {
		if !f.Changed(s.name) {
			continue
		}
		n, err := s.parse(s.text)
		if err != nil {
			return command.Usage(fmt.Errorf("--%s: %w", s.name, err))
		}
		*s.to = n
	}
	return nil
}

func tenantList(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "ls", Short: "List tenants with their usage and quotas", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Tenants().List(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), l, all, func(t api.Tenant) string { return t.Name }, tenantColumns)
		},
	}
	l.flags(cmd, "names")
	return cmd
}

var tenantColumns = []column[api.Tenant]{
	{"NAME", func(t api.Tenant) string { return t.Name }},
	{"FUNCTIONS", func(t api.Tenant) string { return count(t.Functions) }},
	{"INSTANCES", func(t api.Tenant) string { return of(t.Instances, t.Quotas.Instances, count) }},
	{"CONTAINERS", func(t api.Tenant) string { return count(t.Containers) }},
	{"MEMORY", func(t api.Tenant) string { return of(t.MemoryBytes, t.Quotas.MemoryBytes, size) }},
	{"CPU", func(t api.Tenant) string { return of(t.CPUMillis, t.Quotas.CPUMillis, cpus) }},
	{"IMAGES", func(t api.Tenant) string { return of(t.Images, t.Quotas.Images, count) }},
	{"IMAGE BYTES", func(t api.Tenant) string { return of(t.ImageBytes, t.Quotas.ImageBytes, size) }},
	{"WORK", func(t api.Tenant) string { return of(t.WorkBytes, t.Quotas.WorkBytes, size) }},
	{"BUILDS", func(t api.Tenant) string { return of(t.Builds, t.Quotas.Builds, count) }},
	{"EVENTS/S", func(t api.Tenant) string {
		if t.Quotas.EventsPerSecond == 0 {
			return "-"
		}
		return count(t.Quotas.EventsPerSecond)
	}},
}

func tenantCreate(c *cli) *cobra.Command {
	var q quotaFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a tenant's record with quotas", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			r := api.TenantRequest{Name: names[0]}
			if err := q.apply(cmd.Flags(), &r.Quotas); err != nil {
				return err
			}
			cl := c.client()
			defer cl.Close()
			t, err := cl.Tenants().Create(cmd.Context(), r)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), t.Name)
			}
			return err
		},
	}
	q.add(cmd.Flags())
	return cmd
}

func tenantQuota(c *cli) *cobra.Command {
	var q quotaFlags
	cmd := &cobra.Command{
		Use: "quota NAME", Short: "Change a tenant's quotas; quotas without a flag stay", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			t, err := cl.Tenants().Get(cmd.Context(), names[0])
			if err != nil {
				return err
			}
			if err := q.apply(cmd.Flags(), &t.Quotas); err != nil {
				return err
			}
			if t, err = cl.Tenants().SetQuotas(cmd.Context(), names[0], t.Quotas); err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), listing{}, []api.Tenant{t}, nil, tenantColumns)
		},
	}
	q.add(cmd.Flags())
	return cmd
}

func tenantUsage(c *cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "usage NAME...", Short: "Show the usage and quotas of tenants", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			var found []api.Tenant
			err := each(names, func(name string) error {
				t, err := cl.Tenants().Get(cmd.Context(), name)
				if err == nil {
					found = append(found, t)
				}
				return err
			})
			if showErr := inspect(cmd.OutOrStdout(), format, found); err == nil {
				err = showErr
			}
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for each tenant, as in fre tenant ls")
	return cmd
}

func tenantRemove(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Short: "Remove tenants without functions: record, tokens, secrets and events; /work stays", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return each(names, func(name string) error {
				err := cl.Tenants().Remove(cmd.Context(), name)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
}
