package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// toolsKind is the kind of images that lists hide.
const toolsKind = "tools"

func (c *cli) imagesCommand() *cobra.Command {
	return c.imageList("images [NAME]", "List the images of the local registry")
}

func (c *cli) imageCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "image", Short: "Work with images"})
	cmd.AddCommand(c.imageList("ls [NAME]", "List images"), c.imageTag(), c.imageRemove(), c.imagePrune(), c.imageInspect(), c.imageHistory(), c.imageLoad(), c.imageSave(), c.imageImport())
	return cmd
}

func (c *cli) imageList(use, short string) *cobra.Command {
	var l listing
	var all bool
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args(cobra.MaximumNArgs(1)), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			images, err := cl.Images(cmd.Context())
			if err != nil {
				return err
			}
			images = byName(images)
			if len(names) > 0 {
				kept := images[:0]
				for _, img := range images {
					if img.Name == names[0] || img.Name+":"+img.Version == names[0] {
						kept = append(kept, img)
					}
				}
				images = kept
			}
			if len(names) == 0 && !all {
				images = slices.DeleteFunc(images, func(i api.Image) bool { return i.Kind == toolsKind })
			}
			now := time.Now()
			return show(cmd.OutOrStdout(), l, images, func(i api.Image) string { return l.shortID(i.Digest) }, []column[api.Image]{
				{"NAME", func(i api.Image) string { return i.Name }},
				{"VERSION", func(i api.Image) string { return i.Version }},
				{"IMAGE ID", func(i api.Image) string { return l.shortID(i.Digest) }},
				{"BASE", func(i api.Image) string { return i.Base }},
				{"CREATED", func(i api.Image) string { return ago(i.Created, now) }},
				{"FILES", func(i api.Image) string { return strconv.Itoa(i.Files) }},
				{"SIZE", func(i api.Image) string { return size(i.Size) }},
			})
		},
	}
	l.flags(cmd, "image ids")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those the builder keeps its tools in, too")
	return cmd
}

// byName has an image once for each of its names.
func byName(images []api.Image) []api.Image {
	out := make([]api.Image, 0, len(images))
	for _, img := range images {
		if len(img.Names) < 2 {
			out = append(out, img)
			continue
		}
		for _, name := range img.Names {
			colon := strings.LastIndexByte(name, ':')
			img.Name, img.Version = name[:colon], name[colon+1:]
			out = append(out, img)
		}
	}
	return out
}

func (c *cli) imageTag() *cobra.Command {
	return &cobra.Command{
		Use: "tag IMAGE NAME[:VERSION]", Short: "Give an image one more name", Args: args(cobra.ExactArgs(2)), ValidArgsFunction: c.completeImages,
		Long: `Give an image one more name. The version is "latest" where none is given; an
image that has the name already loses it. The name may begin with a registry's
host and port: localhost:5000/team/app:1.2.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			_, err := cl.TagImage(cmd.Context(), names[0], names[1])
			return err
		},
	}
}

func (c *cli) imageRemove() *cobra.Command {
	var o client.RemoveOptions
	cmd := &cobra.Command{
		Use: "rm IMAGE...", Short: "Remove names of images, and images with their last name", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			return each(refs, func(ref string) error {
				gone, err := cl.RemoveImage(cmd.Context(), ref, o)
				if err != nil {
					return err
				}
				for _, name := range gone.Untagged {
					fmt.Fprintf(cmd.OutOrStdout(), "untagged %s\n", name)
				}
				if gone.Deleted {
					fmt.Fprintf(cmd.OutOrStdout(), "deleted %s\n", gone.Digest)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "given a digest, remove the image with all of its names")
	return cmd
}

func (c *cli) imageInspect() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "inspect IMAGE...", Short: "Show what images are made of", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			found := []api.ImageDetails{}
			err := each(refs, func(ref string) error {
				img, err := cl.Image(cmd.Context(), ref)
				if err == nil {
					found = append(found, img)
				}
				return err
			})
			return errors.Join(inspect(cmd.OutOrStdout(), format, found), err)
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for each, as for fre images")
	return cmd
}

func (c *cli) imageHistory() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "history IMAGE", Short: "Show how an image was made, the last step first", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			steps, err := cl.History(cmd.Context(), refs[0])
			if err != nil {
				return err
			}
			now := time.Now()
			return show(cmd.OutOrStdout(), l, steps, nil, []column[api.HistoryStep]{
				{"CREATED", func(s api.HistoryStep) string { return ago(s.Created, now) }},
				{"CREATED BY", func(s api.HistoryStep) string { return l.clip(s.CreatedBy, 45) }},
				{"SIZE", func(s api.HistoryStep) string { return size(s.Size) }},
				{"COMMENT", func(s api.HistoryStep) string { return s.Comment }},
			})
		},
	}
	l.flags(cmd, "")
	return cmd
}

// each goes on after an error, as docker does, and returns them all.
func each(items []string, do func(string) error) error {
	var all []error
	for _, item := range items {
		if err := do(item); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
