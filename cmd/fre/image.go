package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

// toolsKind is the kind of images that lists hide.
const toolsKind = "tools"

func imagesCommand(c *cli) *cobra.Command {
	return imageList(c, "images [NAME]", "List the images of the store")
}

func imageCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "image", Short: "Work with images"})
	cmd.AddCommand(imageList(c, "ls [NAME]", "List images"), imageTag(c), imageRemove(c), imagePrune(c), imageInspect(c), imageHistory(c), imageLoad(c), imageSave(c), imageImport(c), imageSign(c), imageSBOM(c), imageSlim(c))
	return cmd
}

func imageList(c *cli, use, short string) *cobra.Command {
	var l listing
	var all bool
	cmd := &cobra.Command{
		Use: use, Short: short, Args: command.Args(cobra.MaximumNArgs(1)), ValidArgsFunction: completeImages(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			images, err := cl.Images().List(cmd.Context())
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
	cmd.Flags().BoolVarP(&all, "all", "a", false, "list the images of the builder's tools too")
	return cmd
}

// byName repeats an image for each of its names.
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

func imageTag(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "tag IMAGE NAME[:VERSION]", Short: "Give an image another name", Args: command.Args(cobra.ExactArgs(2)), ValidArgsFunction: completeImages(c),
		Long: `Give an image another name. The default VERSION is "latest". If another image has the
name already, the name moves to IMAGE. A name may begin with the host and port of a
registry.`,
		Example: `  fre image tag hello:1.0 localhost:5000/team/hello:1.0`,
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			_, err := cl.Images().Tag(cmd.Context(), names[0], names[1])
			return err
		},
	}
}

func imageRemove(c *cli) *cobra.Command {
	var o client.RemoveOptions
	cmd := &cobra.Command{
		Use: "rm IMAGE...", Short: "Remove images by name; an image goes with its last name", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeImages(c),
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			return each(refs, func(ref string) error {
				gone, err := cl.Images().Remove(cmd.Context(), ref, o)
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
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "remove an image given by its digest, with all its names")
	return cmd
}

func imageInspect(c *cli) *cobra.Command {
	var l listing
	var leftOut bool
	cmd := &cobra.Command{
		Use: "inspect IMAGE...", Short: "Show the parts and the configuration of images", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeImages(c),
		Long: `Show the parts and the configuration of images as JSON. The field config.left_out lists
the omitted packages and files; --left-out prints only this list, as a table.`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			found := []api.ImageDetails{}
			err := each(refs, func(ref string) error {
				img, err := cl.Images().Get(cmd.Context(), ref)
				if err == nil {
					found = append(found, img)
				}
				return err
			})
			if leftOut {
				return errors.Join(showLeftOut(cmd.OutOrStdout(), l, found), err)
			}
			return errors.Join(inspect(cmd.OutOrStdout(), l.format, found), err)
		},
	}
	cmd.Flags().StringVar(&l.format, "format", "", "`template` for each image, as in fre images")
	cmd.Flags().BoolVar(&leftOut, "left-out", false, "print only a table of the omitted packages and files")
	return cmd
}

// leftOutRow is one reason for missing files or packages of an image.
type leftOutRow struct {
	Image  string `json:"image"`
	What   string `json:"what"` // "packages": Debian packages; "files": of the included packages; "apart": in a separate package; "unopened": by fre image slim
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	Bytes  int64  `json:"bytes"`
}

// showLeftOut lists the packages and files that images leave out.
func showLeftOut(w io.Writer, l listing, images []api.ImageDetails) error {
	var rows []leftOutRow
	for i := range images {
		img := &images[i]
		left, err := img.LeftOut()
		if err != nil {
			return fmt.Errorf("configuration of %s: %w", img.Digest, err)
		}
		if left == nil {
			continue
		}
		name := img.Name + ":" + img.Version
		if len(left.Packages) > 0 {
			rows = append(rows, leftOutRow{name, "packages", "not needed to run: " + strings.Join(left.Packages, " "), len(left.Packages), left.PackageBytes})
		}
		for _, f := range left.Files {
			rows = append(rows, leftOutRow{name, "files", f.Pattern, f.Files, f.Bytes})
		}
		for _, asked := range slices.Sorted(maps.Keys(left.Apart)) {
			rows = append(rows, leftOutRow{Image: name, What: "apart", Reason: asked + " is in the Debian package " + left.Apart[asked]})
		}
		for _, p := range left.Unopened {
			rows = append(rows, leftOutRow{name, "unopened", p.Part, p.Files, p.Bytes})
		}
	}
	return show(w, l, rows, nil, []column[leftOutRow]{
		{"IMAGE", func(r leftOutRow) string { return r.Image }},
		{"LEFT OUT", func(r leftOutRow) string { return r.What }},
		{"COUNT", func(r leftOutRow) string { return strconv.Itoa(r.Count) }},
		{"SIZE", func(r leftOutRow) string { return size(r.Bytes) }},
		{"REASON", func(r leftOutRow) string { return l.clip(r.Reason, 60) }},
	})
}

func imageHistory(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "history IMAGE", Short: "Show the build steps of an image, last step first", Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeImages(c),
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			steps, err := cl.Images().History(cmd.Context(), refs[0])
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

func imageSBOM(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "sbom IMAGE", Short: "Write an image's bill of materials in CycloneDX", Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeImages(c),
		Long: `Write an image's bill of materials as CycloneDX 1.6 in JSON: the packages of the image's
parts and of its base, with their package URLs. The same image gives the same bytes.`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			doc, err := cl.Images().SBOM(cmd.Context(), refs[0])
			if err != nil {
				return err
			}
			write := func(w io.Writer) error {
				_, err := fmt.Fprintln(w, strings.TrimSpace(string(doc)))
				return err
			}
			if output != "-" {
				return writeWhole(output, 0o644, write)
			}
			return write(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "-", "`file` to write; - for standard output")
	return cmd
}
