package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fre-engine/fre/bench/internal/nettrace"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func traceCommand() *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "trace", Short: "Watch the kernel's work for functions"})
	cmd.AddCommand(traceNetCommand())
	return cmd
}

// tracedLines is the maximum number of rows of each table.
const tracedLines = 10

func traceNetCommand() *cobra.Command {
	var format, listen, socket string
	var allocations bool
	var count int
	interval := time.Second
	cmd := &cobra.Command{
		Use: "net", Short: "Count retransmissions, drops and waits for a CPU",
		Long: `Count the kernel's network work, and print the counts every --interval until Ctrl-C:

    retransmissions  TCP segments sent again, by connection; for sandboxes with a network
                     of their own also by function
    drops            packets dropped by the host, by the kernel's reason
    allocations      packet buffers by the kernel's cache; only with --allocations, because
                     the counter then runs at every allocation in the kernel
    soft interrupts  CPU time in soft interrupts, including the network's
    run queue        time for which threads of sandboxes were ready but had no CPU

With --prometheus ADDRESS the command serves metrics at http://ADDRESS/metrics instead.

Run the command as root on the engine's machine. The first three counters are eBPF programs
on tracepoints, and need a kernel with type information (CONFIG_DEBUG_INFO_BTF). The command
reports each unavailable counter and shows the others. Without an engine the counts have no
sandboxes. See docs/trace.md.`,
		Example: `  fre-bench trace net --format json --count 60
  fre-bench trace net --prometheus 127.0.0.1:9101`,
		Args: command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) (err error) {
			switch {
			case format != "text" && format != "json":
				return command.Usage(fmt.Errorf("--format: %q is neither text nor json", format))
			case interval <= 0 || count < 0:
				return command.Usage(fmt.Errorf("--interval %v --count %d: give a positive interval, and a count of 0 or more", interval, count))
			}
			cl := client.New(socket)
			defer cl.Close()
			owners := func() ([]nettrace.Owner, error) { return sandboxOwners(cmd, cl) }
			if _, err := owners(); errors.Is(err, client.ErrUnreachable) {
				fmt.Fprintln(cmd.ErrOrStderr(), "fre-bench: no engine at "+socket+": the counts name no sandboxes")
				owners = nil
			}
			t, err := nettrace.Open(nettrace.Config{Allocations: allocations, Owners: owners})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, t.Close()) }()
			for _, m := range t.Missing() {
				fmt.Fprintln(cmd.ErrOrStderr(), "fre-bench:", m)
			}
			if listen != "" {
				return serveTrace(cmd, t, listen)
			}
			out := cmd.OutOrStdout()
			before, err := t.Sample()
			if err != nil {
				return err
			}
			for n := 0; count == 0 || n < count; n++ {
				select {
				case <-time.After(interval):
				case <-cmd.Context().Done():
					return nil
				}
				now, err := t.Sample()
				if err != nil {
					if cmd.Context().Err() != nil {
						return nil
					}
					return err
				}
				d := now.Since(before)
				if format == "json" {
					err = json.NewEncoder(out).Encode(d)
				} else {
					if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
						fmt.Fprint(out, "\x1b[H\x1b[J")
					}
					err = showTrace(out, d, now.Time.Sub(before.Time))
				}
				if err != nil {
					return err
				}
				before = now
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&socket, "socket", cmp.Or(os.Getenv("FRE_SOCKET"), client.DefaultSocket), "`path` of the engine's control socket (FRE_SOCKET)")
	f.DurationVar(&interval, "interval", interval, "duration of the count for each table")
	f.IntVar(&count, "count", 0, "`number` of tables; 0: until Ctrl-C")
	f.BoolVar(&allocations, "allocations", false, "count allocations of packet buffers; slows all allocations in the kernel a little")
	f.StringVar(&format, "format", "text", "output `format`: text, or json (one object per line, times in nanoseconds)")
	f.StringVar(&listen, "prometheus", "", "serve metrics at this `address` instead, such as 127.0.0.1:9101")
	return cmd
}

// sandboxOwners lists the running sandboxes with their processes. It leaves out a sandbox that ends
// meanwhile.
func sandboxOwners(cmd *cobra.Command, cl *client.Client) ([]nettrace.Owner, error) {
	boxes, err := cl.Sandboxes().List(cmd.Context(), client.SandboxOptions{})
	if err != nil {
		return nil, err
	}
	var owners []nettrace.Owner
	for _, b := range boxes {
		if b.PID == 0 {
			continue
		}
		o := nettrace.Owner{ID: b.ID, Name: b.Function, PIDs: []int{b.PID}}
		if o.Name == "" {
			o.Name = b.Name
		}
		processes, err := cl.Sandboxes().Processes(cmd.Context(), b.ID)
		if err != nil {
			continue // the sandbox has ended
		}
		for _, p := range processes {
			if p.PID != b.PID {
				o.PIDs = append(o.PIDs, p.PID)
			}
		}
		owners = append(owners, o)
	}
	return owners, cmd.Context().Err()
}

func serveTrace(cmd *cobra.Command, t *nettrace.Tracer, address string) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(nettrace.NewMetrics(t))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintf(cmd.ErrOrStderr(), "http://%s/metrics\n", l.Addr())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-cmd.Context().Done():
		err := s.Close()
		<-served
		return err
	}
}

// showTrace prints the tables.
func showTrace(w io.Writer, s *nettrace.Sample, over time.Duration) error {
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(t, format+"\n", values...) } // Flush returns the error
	more := func(n int) {
		if n > tracedLines {
			row("… and %d more", n-tracedLines)
		}
	}
	row("%s, in %v", s.Time.Format(time.TimeOnly), over.Round(time.Millisecond))
	if len(s.Retransmissions) > 0 {
		row("\nRETRANSMITTED\tFROM\tTO\tSANDBOX\tFUNCTION")
		for _, r := range s.Retransmissions[:min(len(s.Retransmissions), tracedLines)] {
			row("%d\t%v\t%v\t%.12s\t%s", r.Count, r.Local, r.Remote, r.Sandbox, command.Printable(r.Function))
		}
		more(len(s.Retransmissions))
	}
	if len(s.Drops) > 0 {
		row("\nDROPPED\tREASON")
		for _, d := range s.Drops[:min(len(s.Drops), tracedLines)] {
			row("%d\t%s", d.Count, d.Reason)
		}
		more(len(s.Drops))
	}
	if len(s.Allocations) > 0 {
		row("\nALLOCATED\tBYTES\tCACHE")
		for _, a := range s.Allocations[:min(len(s.Allocations), tracedLines)] {
			row("%d\t%d\t%s", a.Count, a.Bytes, command.Printable(a.Cache))
		}
		more(len(s.Allocations))
	}
	if len(s.SoftIRQ) > 0 {
		row("\nCPU\tSOFT INTERRUPTS")
		for _, i := range s.SoftIRQ {
			row("%d\t%s %%", i.CPU, strconv.FormatFloat(100*i.Time.Seconds()/over.Seconds(), 'f', 1, 64))
		}
	}
	if len(s.RunQueue) > 0 {
		row("\nWAITED FOR A CPU\tSANDBOX\tFUNCTION")
		for _, d := range s.RunQueue[:min(len(s.RunQueue), tracedLines)] {
			row("%v\t%.12s\t%s", d.Time.Round(time.Microsecond), d.Sandbox, command.Printable(d.Function))
		}
		more(len(s.RunQueue))
	}
	row("")
	return t.Flush()
}
