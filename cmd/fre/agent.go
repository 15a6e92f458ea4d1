package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

func (c *cli) agentCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "agent", Short: "Sandboxes for agents: run commands, keep files, for a while",
		Long: `Sandboxes for agents: made in milliseconds of any image, with a /work of their
own. Commands run in them, and files are written and read, until they have not
been used for a while (--idle), are too old (--age), or the engine stops. A
snapshot of /work stays. fre mcp gives the same to a language model.

  id=$(fre agent create)
  fre agent exec $id -- python3 -c 'print(6 * 7)'
  fre agent cp data.csv $id:data.csv
  fre agent exec $id -- sh -c 'wc -l data.csv > result'
  fre agent cp $id:result -
  fre agent rm $id
`,
	})
	cmd.AddCommand(c.agentCreateCommand(), c.agentListCommand(), c.agentExecCommand(), c.agentFilesCommand(), c.agentCopyCommand(), c.agentSnapshotCommand(), c.agentSnapshotsCommand(), c.agentRemoveCommand())
	return cmd
}

// agentFlags describe the sandbox to make.
type agentFlags struct {
	req       api.AgentRequest
	cpus      float64
	idle, age time.Duration
}

func (o *agentFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.req.Image, "image", "", "a base's name (agent, python, node, …) or an image; default: agent")
	f.StringVar(&o.req.Tenant, "tenant", "", "whose it is; default: the token's, else default")
	f.StringVarP(&o.req.Memory, "memory", "m", "", "limit, as in 512MiB, which is the default")
	f.Float64Var(&o.cpus, "cpus", 0, "limit; default: 1")
	f.StringVar(&o.req.Work, "work", "", "limit of /work, as in 1GiB; default: as functions have it")
	f.StringVar(&o.req.Network, "network", "", "none or egress; default: none")
	f.StringSliceVar(&o.req.Allow, "allow", nil, "with egress: nothing but these `DESTINATIONS`, as a template has them")
	f.DurationVar(&o.idle, "idle", 0, "removed that long after its last use; default: 15m")
	f.DurationVar(&o.age, "age", 0, "and that long after it was made; default: 8h")
}

func (o *agentFlags) request() api.AgentRequest {
	r := o.req
	r.CPUMillis = int64(math.Round(o.cpus * 1000))
	r.IdleSeconds, r.AgeSeconds = int64(math.Ceil(o.idle.Seconds())), int64(math.Ceil(o.age.Seconds()))
	return r
}

func (c *cli) agentCreateCommand() *cobra.Command {
	var o agentFlags
	cmd := &cobra.Command{
		Use: "create", Short: "Make a sandbox and print its id", Args: args(cobra.NoArgs),
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			a, err := cl.CreateAgent(cmd.Context(), o.request())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), a.ID)
			return nil
		}),
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.req.Snapshot, "snapshot", "", "`SNAPSHOT` whose files /work begins with")
	return cmd
}

func (c *cli) agentListCommand() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "ls", Short: "List agents' sandboxes", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Agents(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), l, all, func(a api.Agent) string { return a.ID }, []column[api.Agent]{
				{"ID", func(a api.Agent) string { return a.ID }},
				{"TENANT", func(a api.Agent) string { return a.Tenant }},
				{"IMAGE", func(a api.Agent) string { return a.Image }},
				{"NETWORK", func(a api.Agent) string { return a.Network }},
				{"BUSY", func(a api.Agent) string { return fmt.Sprint(a.Busy) }},
				{"EXPIRES", func(a api.Agent) string { return a.Expires.Format(time.RFC3339) }},
			})
		},
	}
	l.flags(cmd, "ids")
	return cmd
}

func (c *cli) agentExecCommand() *cobra.Command {
	var req api.AgentExec
	var env []string
	var input bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "exec ID [--] COMMAND [ARG...]", Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. Its output comes as it is written; its exit status is
passed on (fre help exit-codes), as 124 where it ran into --timeout. Ctrl-C kills
it with its process group.`,
		Args: args(cobra.MinimumNArgs(2)),
		RunE: interruptible(func(cmd *cobra.Command, a []string) error {
			var id string
			id, req.Args = imageAndCommand(a)
			req.TimeoutMS = timeout.Milliseconds()
			if len(req.Args) == 0 {
				return usageError{errors.New("name a command: fre agent exec ID -- COMMAND")}
			}
			for _, v := range env {
				name, value, ok := strings.Cut(v, "=")
				if !ok {
					return usageError{fmt.Errorf("--env: %q is not KEY=VALUE", v)}
				}
				if req.Env == nil {
					req.Env = map[string]string{}
				}
				req.Env[name] = value
			}
			cl := c.client()
			defer cl.Close()
			var stdin io.Reader
			if input {
				stdin = cmd.InOrStdin()
			}
			exit, err := cl.ExecAgent(cmd.Context(), id, req, stdin, func(o api.AgentOutput) error {
				if _, err := io.WriteString(cmd.OutOrStdout(), o.Stdout+string(o.StdoutBase64)); err != nil {
					return err
				}
				_, err := io.WriteString(cmd.ErrOrStderr(), o.Stderr+string(o.StderrBase64))
				return err
			})
			switch {
			case err != nil:
				return runError{err}
			case exit.TimedOut:
				fmt.Fprintln(cmd.ErrOrStderr(), "fre: the command took too long and was killed")
				return silentExitError(exitAgentTimeout)
			case exit.Code != 0:
				return silentExitError(exit.Code)
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags behind ID are the command's
	f.StringArrayVarP(&env, "env", "e", nil, "`KEY=VALUE`; may be repeated")
	f.StringVarP(&req.Dir, "workdir", "w", "", "working directory; default: /work")
	f.DurationVar(&timeout, "timeout", 0, "kill it after that; default: 10m, at most 1h")
	f.BoolVarP(&input, "interactive", "i", false, "pass input on")
	return cmd
}

func (c *cli) agentFilesCommand() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "files ID [PATH]", Short: "List files in a sandbox, of /work if no other directory is named", Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			at := ""
			if len(a) > 1 {
				at = a[1]
			}
			files, err := cl.ListAgentFiles(cmd.Context(), a[0], at)
			if err != nil {
				return err
			}
			entries := files.Entries
			if files.Type != "directory" {
				entries = []api.AgentFile{files.AgentFile}
			}
			if files.Truncated {
				fmt.Fprintf(cmd.ErrOrStderr(), "fre: these are %d of its entries: there are more\n", len(entries))
			}
			return show(cmd.OutOrStdout(), l, entries, func(f api.AgentFile) string { return f.Name }, []column[api.AgentFile]{
				{"NAME", func(f api.AgentFile) string { return f.Name }},
				{"TYPE", func(f api.AgentFile) string { return f.Type }},
				{"SIZE", func(f api.AgentFile) string { return fmt.Sprint(f.Size) }},
				{"MODE", func(f api.AgentFile) string { return f.Mode }},
				{"MODIFIED", func(f api.AgentFile) string { return f.Modified.Format(time.RFC3339) }},
			})
		},
	}
	l.flags(cmd, "names")
	return cmd
}

func (c *cli) agentCopyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy a file into a sandbox or out of it",
		Long: `Copy a file. One of the two is ID:PATH, in a sandbox, where a path that is not
absolute is below /work; the other one is a file here, or - for standard input or
output. A destination that ends in / is a directory.`,
		Args: args(cobra.ExactArgs(2)),
		RunE: interruptible(func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			from, fromPath, isFrom := agentFile(a[0])
			to, toPath, isTo := agentFile(a[1])
			switch {
			case isFrom == isTo:
				return usageError{errors.New("one of the two is ID:PATH, such as agent-0123456789abcdef:main.py")}
			case isTo:
				return c.copyIn(cmd, cl, a[0], to, toPath)
			}
			in, err := cl.ReadAgentFile(cmd.Context(), from, fromPath, client.AgentRange{})
			if err != nil {
				return err
			}
			defer in.Close()
			if a[1] == "-" {
				_, err = io.Copy(cmd.OutOrStdout(), in)
				return err
			}
			name := a[1]
			if info, err := os.Stat(name); strings.HasSuffix(name, "/") || err == nil && info.IsDir() {
				name = filepath.Join(name, path.Base(fromPath))
			}
			out, err := os.Create(name)
			if err != nil {
				return err
			}
			_, err = io.Copy(out, in)
			return errors.Join(err, out.Close())
		}),
	}
}

func (c *cli) copyIn(cmd *cobra.Command, cl *client.Client, from, id, to string) error {
	in, mode, base := cmd.InOrStdin(), "", "stdin"
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		in, mode, base = f, fmt.Sprintf("%o", info.Mode().Perm()), filepath.Base(from)
	}
	if to == "" || strings.HasSuffix(to, "/") {
		to += base
	}
	return cl.WriteAgentFile(cmd.Context(), id, to, mode, in)
}

// agentFile splits ID:PATH.
func agentFile(s string) (id, file string, ok bool) {
	id, file, ok = strings.Cut(s, ":")
	return id, file, ok && strings.HasPrefix(id, "agent-")
}

func (c *cli) agentSnapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use: "snapshot ID", Short: "Keep what is in a sandbox's /work, and print the snapshot's name", Args: args(cobra.ExactArgs(1)),
		Long: `Keep what is in a sandbox's /work, and print the snapshot's name, which
fre agent create --snapshot takes. It is an image of one part: fre image rm
removes it, fre push takes it elsewhere.`,
		RunE: interruptible(func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			s, err := cl.SnapshotAgent(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), s.Name)
			return nil
		}),
	}
}

func (c *cli) agentSnapshotsCommand() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "snapshots", Short: "List snapshots", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Snapshots(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), l, all, func(s api.Snapshot) string { return s.Name }, []column[api.Snapshot]{
				{"NAME", func(s api.Snapshot) string { return s.Name }},
				{"TENANT", func(s api.Snapshot) string { return s.Tenant }},
				{"FILES", func(s api.Snapshot) string { return fmt.Sprint(s.Files) }},
				{"BYTES", func(s api.Snapshot) string { return fmt.Sprint(s.Bytes) }},
				{"CREATED", func(s api.Snapshot) string { return s.Created.Format(time.RFC3339) }},
			})
		},
	}
	l.flags(cmd, "names")
	return cmd
}

func (c *cli) agentRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID...", Short: "Kill what runs in sandboxes, and remove them with their /work", Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				if err := cl.RemoveAgent(cmd.Context(), id); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), id)
				return nil
			})
		},
	}
}
