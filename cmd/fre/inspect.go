package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func inspectCommand(c *cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "inspect ID|NAME...", Short: "Show sandboxes, containers, functions or images",
		Long: `Show sandboxes, containers, functions or images as JSON, with the data of fre ps, fre
function inspect and fre image inspect. A sandbox also has the list of the defences in
force.

fre looks a NAME up in this order:

    1. id of a sandbox, name of a container
    2. name of a function
    3. name, NAME:VERSION or digest of an image
    4. beginning of a sandbox's id or of an image's digest`,
		Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeAny(completeSandboxes(c), completeContainers(c), completeFunctions(c), completeImages(c)),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			boxes, err := cl.Sandboxes().List(cmd.Context(), client.SandboxOptions{All: true, Size: true, Stats: true})
			if err != nil {
				return err
			}
			found := []any{}
			err = each(names, func(name string) error {
				item, err := lookUp(cmd.Context(), cl, boxes, name)
				if err == nil {
					found = append(found, item)
				}
				return err
			})
			return errors.Join(inspect(cmd.OutOrStdout(), format, found), err)
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for each object, as in fre ps, fre functions and fre images")
	return cmd
}

// lookUp finds an object by name or by the beginning of its id. Names come first, since they do not
// change with the running sandboxes. Errors: CodeAmbiguous, CodeNotFound.
func lookUp(ctx context.Context, cl *client.Client, boxes []api.Sandbox, name string) (any, error) {
	var begin []api.Sandbox
	for _, b := range boxes {
		if b.ID == name || b.Name == name && name != "" {
			return boxOf(ctx, cl, b)
		}
		if name != "" && strings.HasPrefix(b.ID, name) {
			begin = append(begin, b)
		}
	}
	f, err := cl.Functions().Get(ctx, name)
	if err == nil {
		return f, nil
	}
	if !isCode(err, api.CodeNotFound) {
		return nil, err
	}
	img, err := cl.Images().Get(ctx, name)
	if err != nil && !isCode(err, api.CodeNotFound) && !isCode(err, api.CodeAmbiguous) {
		return nil, err
	}
	whole := err == nil && (img.Name == name || slices.Contains(img.Names, name) || img.Digest == name)
	switch {
	case whole || err == nil && len(begin) == 0:
		return img, nil
	case len(begin) == 1:
		return boxOf(ctx, cl, begin[0])
	case len(begin) > 1:
		return nil, &api.Error{
			Code: api.CodeAmbiguous, Message: fmt.Sprintf("%q is the beginning of %d sandbox ids, such as %s and %s", name, len(begin), begin[0].ID, begin[1].ID),
			Next: "give more characters; fre ps -a --no-trunc prints whole ids",
		}
	case isCode(err, api.CodeNotFound):
		return nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no sandbox, function or image is called %q", name)}
	}
	return nil, err
}

// boxOf returns all details of a sandbox or container.
func boxOf(ctx context.Context, cl *client.Client, b api.Sandbox) (any, error) {
	if b.Name == "" {
		return b, nil
	}
	return cl.Containers().Get(ctx, b.ID)
}
