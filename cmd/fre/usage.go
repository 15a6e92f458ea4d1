package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func topCommand(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "top ID", Short: "List the processes of a sandbox", Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeSandboxes(c),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			processes, err := cl.Sandboxes().Processes(cmd.Context(), ids[0])
			if err != nil {
				return err
			}
			now := time.Now()
			return show(cmd.OutOrStdout(), l, processes, nil, []column[api.Process]{
				{"PID", func(p api.Process) string { return strconv.Itoa(p.PID) }},
				{"PARENT", func(p api.Process) string { return strconv.Itoa(p.Parent) }},
				{"UID", func(p api.Process) string { return strconv.Itoa(p.UID) }},
				{"STARTED", func(p api.Process) string { return ago(p.Started, now) }},
				{"CPU", func(p api.Process) string { return time.Duration(p.CPUNanos).String() }},
				{"COMMAND", func(p api.Process) string { return l.clip(p.Command, 60) }},
			})
		},
	}
	l.flags(cmd, "")
	return cmd
}

// usage is a row of fre stats: a sandbox's resources, and its share of one CPU since the row
// before, or since its start.
type usage struct {
	api.Sandbox
	CPUPercent float64 `json:"cpu_percent"`
}

func statsCommand(c *cli) *cobra.Command {
	var l listing
	var stream bool
	interval := time.Second
	cmd := &cobra.Command{
		Use: "stats [ID...]", Short: "Show the CPU, memory and processes of sandboxes", ValidArgsFunction: completeSandboxes(c),
		Long: `Show the resources that sandboxes use, by default of all running sandboxes: the
share of one CPU during --interval, CPU time since the start, memory, processes,
and bytes in /tmp. With --stream the table is updated until Ctrl-C or until the
named sandboxes end.`,
		RunE: command.Interruptible(func(cmd *cobra.Command, ids []string) error {
			if interval <= 0 {
				return command.Usage(fmt.Errorf("--interval: %v is not a positive duration", interval))
			}
			cl := c.client()
			defer cl.Close()
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			var before map[string]int64
			var then time.Time
			for first := true; ; first = false {
				boxes, err := cl.Sandboxes().List(ctx, client.SandboxOptions{Stats: true})
				if err != nil {
					return err
				}
				now := time.Now()
				rows, err := usages(boxes, ids, before, now.Sub(then), now)
				switch {
				case err != nil && first:
					return err
				case len(rows) == 0 && len(ids) > 0:
					return nil
				case !first:
					if stream && l.format == "" && asTerminal(out) != nil {
						fmt.Fprint(out, "\x1b[H\x1b[J")
					}
					if err := show(out, l, rows, nil, usageColumns(l)); err != nil {
						return err
					}
					if !stream {
						return nil
					}
				}
				then, before = now, map[string]int64{}
				for _, r := range rows {
					before[r.ID] = r.Stats.CPUNanos
				}
				if err := pause(ctx, interval); err != nil {
					return err
				}
			}
		}),
	}
	l.flags(cmd, "")
	cmd.Flags().BoolVar(&stream, "stream", false, "continue until Ctrl-C")
	cmd.Flags().DurationVar(&interval, "interval", interval, "how long to measure")
	return cmd
}

// usages returns a row for each box that ids name; without ids, for all. before holds the CPU time
// of each box, in nanoseconds, at the time took before now. Errors: CodeNotFound for the first id
// without a box.
func usages(boxes []api.Sandbox, ids []string, before map[string]int64, took time.Duration, now time.Time) ([]usage, error) {
	var err error
	for _, id := range ids {
		if err == nil && !slices.ContainsFunc(boxes, func(b api.Sandbox) bool { return isCalled(b, id) }) {
			err = &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no running sandbox is called %q", id)}
		}
	}
	var rows []usage
	for _, b := range boxes {
		if b.Stats == nil || len(ids) > 0 && !slices.ContainsFunc(ids, func(id string) bool { return isCalled(b, id) }) {
			continue
		}
		used, over := b.Stats.CPUNanos, now.Sub(b.Created)
		if earlier, ok := before[b.ID]; ok {
			used, over = used-earlier, took
		}
		row := usage{Sandbox: b}
		if over > 0 {
			row.CPUPercent = 100 * float64(used) / float64(over)
		}
		rows = append(rows, row)
	}
	return rows, err
}

// isCalled reports whether id is the sandbox's id, a prefix of that, or the name of its container
// or function.
func isCalled(b api.Sandbox, id string) bool {
	return id != "" && (strings.HasPrefix(b.ID, id) || b.Name == id || b.Function == id)
}

func usageColumns(l listing) []column[usage] {
	return []column[usage]{
		{"SANDBOX ID", func(u usage) string { return l.shortID(u.ID) }},
		{"FUNCTION", func(u usage) string { return cmp.Or(u.Function, u.Name) }},
		{"CPU %", func(u usage) string { return strconv.FormatFloat(u.CPUPercent, 'f', 1, 64) }},
		{"CPU", func(u usage) string { return time.Duration(u.Stats.CPUNanos).Round(time.Millisecond).String() }},
		{"MEMORY", func(u usage) string { return size(u.Stats.MemoryBytes) }},
		{"PROCESSES", func(u usage) string { return strconv.Itoa(u.Stats.Processes) }},
		{"/TMP", func(u usage) string { return size(u.Stats.TmpBytes) }},
	}
}
