package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func createCommand(c *cli) *cobra.Command {
	var o containerFlags
	cmd := &cobra.Command{
		Use:   "create IMAGE [-- COMMAND [ARG...]]",
		Short: "Create a container",
		Long: `Create a container from an image, and print the container's name. A container is a sandbox
with a record: its files stay until you remove the container, and you can start the
container many times. Flags replace the settings of the image. See docs/containers.md.`,
		Example: `  fre create --name db -m 512MiB debian:12 -- sleep infinity
  fre start db      run the container
  fre logs db       print its output
  fre inspect db    show its settings
  fre stop db       stop the container
  fre rm db         remove the container and its files`,
		Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeImageFirst(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl := c.client()
			defer cl.Close()
			made, err := cl.Containers().Create(cmd.Context(), o.request(args))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), made.Name)
			return err
		},
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.req.Stdin, "interactive", "i", false, "let the container read the input of fre attach (default no input)")
	cmd.Flags().BoolVar(&o.req.AutoRemove, "rm", false, "remove the container after its end")
	return cmd
}

func startCommand(c *cli) *cobra.Command {
	var j joining
	var attach bool
	cmd := &cobra.Command{
		Use: "start NAME...", Short: "Start containers", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeContainers(c),
		Long: `Start containers that do not run. With --attach or --interactive, start one container and
attach to it like fre attach, from the first byte of its output.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			if attach || j.input {
				if len(names) > 1 {
					return command.Usage(errors.New("--attach and --interactive take one container"))
				}
				box, err := cl.Containers().Get(cmd.Context(), names[0])
				if err != nil {
					return runError{err}
				}
				j.joined = func() error { return cl.Containers().Start(cmd.Context(), box.ID) }
				return j.join(cmd, cl, *box)
			}
			return each(names, func(name string) error {
				err := cl.Containers().Start(cmd.Context(), name)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&attach, "attach", "a", false, "print the container's output, and exit with the container's exit status")
	cmd.Flags().BoolVarP(&j.input, "interactive", "i", false, "attach, and pass standard input to the container too")
	j.flags(cmd)
	return cmd
}

func attachCommand(c *cli) *cobra.Command {
	var j joining
	var noStdin bool
	cmd := &cobra.Command{
		Use: "attach NAME", Short: "Attach to a container's input and output", Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeContainers(c),
		Long: `Attach to a container: print its output from now on, and pass standard input to a
container created with --interactive. If the container does not run, fre waits for its
next run. fre exits with the container's exit status (fre help exit-codes, as for fre
run). Ctrl-C detaches and leaves the container running.

If the container was created with --tty and --interactive, your terminal passes every key
to the container's terminal: Ctrl-C goes to the programs inside, and Ctrl-P Ctrl-Q
detaches.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			box, err := cl.Containers().Get(cmd.Context(), names[0])
			if err != nil {
				return runError{err}
			}
			j.input = !noStdin
			return j.join(cmd, cl, *box)
		},
	}
	j.flags(cmd)
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "do not pass standard input to the container")
	return cmd
}

func renameCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rename NAME NEW", Short: "Rename a container", Args: command.Args(cobra.ExactArgs(2)), ValidArgsFunction: completeContainers(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return cl.Containers().Rename(cmd.Context(), names[0], names[1])
		},
	}
}

func containerCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "container", Short: "Work with all containers at once"})
	cmd.AddCommand(containerPrune(c))
	return cmd
}

func rmCommand(c *cli) *cobra.Command {
	var o client.RemoveOptions
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove containers with their files and logs", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeContainers(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return each(names, func(name string) error {
				err := cl.Containers().Remove(cmd.Context(), name, o)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "kill and remove running containers too")
	return cmd
}
