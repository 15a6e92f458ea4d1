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
	"github.com/fre-engine/fre/internal/command"
)

func agentCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{
		Use: "agent", Short: "Work with sandboxes for agents: commands, files, snapshots",
		Long: `Work with sandboxes for agents. A sandbox starts in milliseconds from any image and has
a /work directory of its own. Run commands in the sandbox, and copy files in and out.

The engine removes a sandbox some time after its last use (--idle) or after its creation
(--age), and when the engine stops. A snapshot of /work stays. fre mcp offers sandboxes
to a language model.`,
		Example: `  id=$(fre agent create)
  fre agent exec $id -- python3 -c 'print(6 * 7)'
  fre agent cp data.csv $id:data.csv
  fre agent exec $id -- sh -c 'wc -l data.csv > result'
  fre agent cp $id:result -
  fre agent rm $id`,
	})

	cmd.AddCommand(agentCreateCommand(c), agentListCommand(c), agentExecCommand(c), agentFilesCommand(c), agentCopyCommand(c), agentSnapshotCommand(c), agentSnapshotsCommand(c), agentRemoveCommand(c))
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
	f.StringVar(&o.req.Image, "image", "", "base environment (agent, python, node, …) or image (default agent)")
	f.StringVar(&o.req.Tenant, "tenant", "", "`tenant` of the sandbox (default the token's tenant, else \"default\")")
	f.StringVarP(&o.req.Memory, "memory", "m", "", "memory limit, such as 1GiB (default 512MiB)")
	f.Float64Var(&o.cpus, "cpus", 0, "limit of CPUs, such as 0.5 (default 1)")
	f.StringVar(&o.req.Work, "work", "", "size limit of /work, such as 1GiB (default the limit for functions)")
	f.StringVar(&o.req.Network, "network", "", "none or egress (default none)")
	f.StringSliceVar(&o.req.Allow, "allow", nil, "with --network egress: allow only these `DESTINATIONS`, written as in a template, such as pypi.org:443")
	f.DurationVar(&o.idle, "idle", 0, "remove the sandbox this long after its last use, at most 168h (default 15m)")
	f.DurationVar(&o.age, "age", 0, "remove the sandbox this long after its creation, at most 168h (default 8h)")
}

func (o *agentFlags) request() api.AgentRequest {
	r := o.req
	r.CPUMillis = int64(math.Round(o.cpus * 1000))
	r.IdleSeconds, r.AgeSeconds = int64(math.Ceil(o.idle.Seconds())), int64(math.Ceil(o.age.Seconds()))
	return r
}

func agentCreateCommand(c *cli) *cobra.Command {
	var o agentFlags
	cmd := &cobra.Command{
		Use: "create", Short: "Create a sandbox and print its id", Args: command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			a, err := cl.Agents().Create(cmd.Context(), o.request())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), a.ID)
			return nil
		}),
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.req.Snapshot, "snapshot", "", "start /work with the files of this `SNAPSHOT`")
	return cmd
}

func agentListCommand(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "ls", Short: "List agents' sandboxes", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Agents().List(cmd.Context())
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

func agentExecCommand(c *cli) *cobra.Command {
	var req api.AgentExec
	var env []string
	var input bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "exec ID [--] COMMAND [ARG...]", Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. fre prints the command's output as it arrives, and exits with
the command's exit status (fre help exit-codes). After --timeout the engine kills the
command, and the exit status is 124. Ctrl-C kills the command and its process group.`,
		Example: `  fre agent exec $id -- python3 -c 'print(6 * 7)'
  fre agent exec --env A=1 --workdir /tmp $id -- env`,
		Args: command.Args(cobra.MinimumNArgs(2)),
		RunE: command.Interruptible(func(cmd *cobra.Command, a []string) error {
			var id string
			id, req.Args = imageAndCommand(a)
			req.TimeoutMS = timeout.Milliseconds()
			if len(req.Args) == 0 {
				return command.Usage(errors.New("name a command: fre agent exec ID -- COMMAND"))
			}
			for _, v := range env {
				name, value, ok := strings.Cut(v, "=")
				if !ok {
					return command.Usage(fmt.Errorf("--env: %q is not KEY=VALUE", v))
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
			exit, err := cl.Agents().Exec(cmd.Context(), id, req, stdin, func(o api.AgentOutput) error {
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
				fmt.Fprintln(cmd.ErrOrStderr(), "fre: the command reached its time limit and was killed")
				return silentExitError(exitAgentTimeout)
			case exit.Code != 0:
				return silentExitError(exit.Code)
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags behind ID are the command's
	f.StringArrayVarP(&env, "env", "e", nil, "set the environment variable `KEY=VALUE`; may be repeated")
	f.StringVarP(&req.Dir, "workdir", "w", "", "working directory (default /work)")
	f.DurationVar(&timeout, "timeout", 0, "kill the command after this time, at most 1h (default 10m)")
	f.BoolVarP(&input, "interactive", "i", false, "pass standard input to the command")
	return cmd
}

func agentFilesCommand(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "files ID [PATH]", Short: "List the files of a directory in a sandbox, by default of /work", Args: command.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			at := ""
			if len(a) > 1 {
				at = a[1]
			}
			files, err := cl.Agents().ListFiles(cmd.Context(), a[0], at)
			if err != nil {
				return err
			}
			entries := files.Entries
			if files.Type != "directory" {
				entries = []api.AgentFile{files.AgentFile}
			}
			if files.Truncated {
				fmt.Fprintf(cmd.ErrOrStderr(), "fre: the directory has more entries; the list shows %d\n", len(entries))
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

func agentCopyCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy a file to or from a sandbox",
		Long: `Copy a file to or from a sandbox. One argument is ID:PATH, a path in the sandbox; a
relative path is relative to /work. The other argument is a local file, or - for standard
input or output. A destination with a slash at the end is a directory.`,
		Example: `  fre agent cp data.csv $id:data.csv
  fre agent cp $id:result -`,
		Args: command.Args(cobra.ExactArgs(2)),
		RunE: command.Interruptible(func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			from, fromPath, isFrom := agentFile(a[0])
			to, toPath, isTo := agentFile(a[1])
			switch {
			case isFrom == isTo:
				return command.Usage(errors.New("one argument must be ID:PATH, such as agent-0123456789abcdef:main.py"))
			case isTo:
				return copyIn(cmd, cl, a[0], to, toPath)
			}
			in, err := cl.Agents().ReadFile(cmd.Context(), from, fromPath, client.AgentRange{})
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

func copyIn(cmd *cobra.Command, cl *client.Client, from, id, to string) error {
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
	return cl.Agents().WriteFile(cmd.Context(), id, to, mode, in)
}

// agentFile splits ID:PATH.
func agentFile(s string) (id, file string, ok bool) {
	id, file, ok = strings.Cut(s, ":")
	return id, file, ok && strings.HasPrefix(id, "agent-")
}

func agentSnapshotCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "snapshot ID", Short: "Save a sandbox's /work as a snapshot", Args: command.Args(cobra.ExactArgs(1)),
		Long: `Save the files of a sandbox's /work as a snapshot, and print the snapshot's name.
fre agent create --snapshot NAME starts a sandbox with these files. A snapshot is an
image of one part: fre image rm removes the image, fre push copies the image to a
registry.`,
		RunE: command.Interruptible(func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			s, err := cl.Agents().Snapshot(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), s.Name)
			return nil
		}),
	}
}

func agentSnapshotsCommand(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "snapshots", Short: "List snapshots", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Agents().Snapshots(cmd.Context())
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

func agentRemoveCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rm ID...", Short: "Remove sandboxes with their processes and their /work", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				if err := cl.Agents().Remove(cmd.Context(), id); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), id)
				return nil
			})
		},
	}
}
