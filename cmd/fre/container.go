package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
)

func (c *cli) createCommand() *cobra.Command {
	var o containerFlags
	cmd := &cobra.Command{
		Use:   "create IMAGE [-- COMMAND [ARG...]]",
		Short: "Make a container, which fre start runs",
		Long: `Make a container out of an image: a sandbox that keeps what it writes to its
root until it is removed, and can be started again. What is not said here, the
image says; fre start runs it, fre stop ends it, fre logs prints its output,
fre inspect describes it, fre rm removes it. The name is printed.`,
		Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeImageFirst,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl := c.client()
			defer cl.Close()
			made, err := cl.CreateContainer(cmd.Context(), o.request(args))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), made.Name)
			return err
		},
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.req.Stdin, "interactive", "i", false, "it reads what fre attach sends, to its end; else it has no input")
	cmd.Flags().BoolVar(&o.req.AutoRemove, "rm", false, "remove it once it has ended")
	return cmd
}

// imageAndCommand splits the arguments IMAGE [--] [COMMAND [ARG...]]. pflag leaves dashes behind
// the first argument in the list.
func imageAndCommand(args []string) (image string, command []string) {
	command = args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	return args[0], command
}

// completeImageFirst completes IMAGE; the user's shell completes the command behind it.
func (c *cli) completeImageFirst(cmd *cobra.Command, args []string, s string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return c.completeImages(cmd, args, s)
}

func (c *cli) startCommand() *cobra.Command {
	var j joining
	var attach bool
	cmd := &cobra.Command{
		Use: "start NAME...", Short: "Start containers", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeContainers,
		Long: `Start containers that do not run. With --attach or --interactive one of them, and
go on as fre attach does, from the first that it prints.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			if attach || j.input {
				if len(names) > 1 {
					return usageError{errors.New("one container can be attached to, not several")}
				}
				box, err := cl.Container(cmd.Context(), names[0])
				if err != nil {
					return runError{err}
				}
				j.joined = func() error { return cl.StartContainer(cmd.Context(), box.ID) }
				return j.join(cmd, cl, *box)
			}
			return each(names, func(name string) error {
				err := cl.StartContainer(cmd.Context(), name)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&attach, "attach", "a", false, "join what it prints; the exit status is its own")
	cmd.Flags().BoolVarP(&j.input, "interactive", "i", false, "join what it reads, too")
	j.flags(cmd)
	return cmd
}

func (c *cli) attachCommand() *cobra.Command {
	var j joining
	var noStdin bool
	cmd := &cobra.Command{
		Use: "attach NAME", Short: "Join what a container reads and prints", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: c.completeContainers,
		Long: `Join what a container reads, where it was made with --interactive, and prints,
from now on; of one that does not run, its next run. The exit status is the
container's (fre help exit-codes, as of fre run); Ctrl-C leaves it running. A
terminal of the container's, if it was made with --tty too, takes the place of the
one here: Ctrl-C goes to what runs inside, and Ctrl-P Ctrl-Q leaves it running.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			box, err := cl.Container(cmd.Context(), names[0])
			if err != nil {
				return runError{err}
			}
			j.input = !noStdin
			return j.join(cmd, cl, *box)
		},
	}
	j.flags(cmd)
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "leave its input to others")
	return cmd
}

func (c *cli) renameCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rename NAME NEW", Short: "Give a container another name", Args: args(cobra.ExactArgs(2)), ValidArgsFunction: c.completeContainers,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return cl.RenameContainer(cmd.Context(), names[0], names[1])
		},
	}
}

func (c *cli) containerCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "container", Short: "Work with all containers"})
	cmd.AddCommand(c.containerPrune())
	return cmd
}

func (c *cli) rmCommand() *cobra.Command {
	var o client.RemoveOptions
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove containers, with what they wrote and printed", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeContainers,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return each(names, func(name string) error {
				err := cl.RemoveContainer(cmd.Context(), name, o)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "kill those that run")
	return cmd
}

func (c *cli) completeContainers(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	cl := c.client()
	defer cl.Close()
	boxes, err := cl.Sandboxes(cmd.Context(), client.SandboxOptions{All: true})
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
