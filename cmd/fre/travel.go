package main

import (
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/command"
)

func pullCommand(c *cli) *cobra.Command {
	var p progressFlags
	var a authFlags
	var req api.PullRequest
	cmd := &cobra.Command{
		Use: "pull REFERENCE", Short: "Pull an image from a registry",
		Long: `Pull an image from a registry. REFERENCE is NAME[:VERSION] at docker.io or
HOST[:PORT]/PATH[:VERSION] at another registry; @sha256:… selects one exact image. Only
missing layers and parts are fetched. An image that FRE built and pushed arrives
unchanged, ready for fre deploy --image.

Without --username, fre uses the login in your docker configuration (docker login),
including credentials helpers.`,
		Example: `  fre pull debian:12
  fre pull registry.example.org/team/hello:1.0`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, refs []string) error {
			req.Ref = refs[0]
			var err error
			if req.Auth, err = a.read(cmd, req.Ref); err != nil {
				return err
			}
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) error {
				img, err := cl.Images().Pull(cmd.Context(), req, report.event)
				if err != nil {
					return err
				}
				report.images("pulled", img)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&req.Platform, "platform", "", "refuse an image for a platform other than `OS/ARCH` (default the engine's platform)")
	a.flags(cmd)
	p.flags(cmd, "the image's digest")
	return cmd
}

func pushCommand(c *cli) *cobra.Command {
	var p progressFlags
	var a authFlags
	var req api.PushRequest
	var keyFile string
	cmd := &cobra.Command{
		Use: "push IMAGE [REFERENCE]", Short: "Push an image to a registry",
		Long: `Push an image to the registry in its name, or to REFERENCE. Logins work as in fre pull.

An image from a registry or an archive is pushed unchanged. An image that FRE built is
pushed as an artifact of its parts: fre pull on another machine makes the same image, and
fetches only the missing parts. With --as-image, FRE pushes an ordinary image for other
engines instead; a pull gives an ordinary image, not a function.`,
		Example: `  fre push hello:1.0 registry.example.org/team/hello:1.0`,
		Args:    command.Args(cobra.RangeArgs(1, 2)), ValidArgsFunction: completeImages(c),
		RunE: command.Interruptible(func(cmd *cobra.Command, refs []string) error {
			req.Image = refs[0]
			if len(refs) > 1 {
				req.To = refs[1]
			}
			var err error
			if req.Auth, err = a.read(cmd, cmp.Or(req.To, req.Image)); err != nil {
				return err
			}
			var key crypto.Signer
			if keyFile != "" {
				if key, err = signKey(cmd, keyFile); err != nil {
					return err
				}
			}
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) error {
				digest, err := cl.Images().Push(cmd.Context(), req, report.event)
				if err != nil {
					return err
				}
				if key != nil {
					if err := sign(cmd, cl, key, signature.Repository(cmp.Or(req.To, req.Image)), digest, req.Auth); err != nil {
						return fmt.Errorf("pushed as %s, but not signed: %w", digest, err)
					}
				}
				report.result(api.TravelLine{Digest: digest}, digest, fmt.Sprintf("pushed %s as %s", cmp.Or(req.To, req.Image), digest))
				return nil
			})
		}),
	}
	cmd.Flags().BoolVar(&req.NoSBOM, "no-sbom", false, "push no bill of materials for an image that FRE built")
	cmd.Flags().StringVar(&keyFile, "sign", "", "sign the image with the private key in this `file`, as fre image sign does")
	cmd.Flags().BoolVar(&req.AsImage, "as-image", false, "push an image that FRE built as an ordinary image")
	a.flags(cmd)
	p.flags(cmd, "the digest of the pushed manifest")
	return cmd
}

func imageLoad(c *cli) *cobra.Command {
	var p progressFlags
	var input string
	cmd := &cobra.Command{
		Use: "load", Short: "Load the images in an archive",
		Long: `Load the images in an archive from docker save, podman save or fre image save, or in an
OCI layout in a tar. The archive may be packed with gzip or zstd.`,
		Example: `  docker save debian:12 | fre image load`,
		Args:    command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			in, err := openInput(cmd, input)
			if err != nil {
				return err
			}
			defer in.Close()
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) error {
				images, err := cl.Images().Load(cmd.Context(), in, report.event)
				if err != nil {
					return err
				}
				report.images("loaded", images...)
				return nil
			})
		}),
	}
	cmd.Flags().StringVarP(&input, "input", "i", "-", "`file` with the archive; - for standard input")
	p.flags(cmd, "the images' digests")
	return cmd
}

func imageSave(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "save IMAGE...", Short: "Save images in an archive",
		Long: `Save images in an archive for docker load, podman load or fre image load. The archive is
an OCI layout with docker's manifest.json.`,
		Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeImages(c),
		RunE: command.Interruptible(func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			if output != "-" {
				return writeWhole(output, 0o644, func(w io.Writer) error { return cl.Images().Save(cmd.Context(), w, refs) })
			}
			if asTerminal(cmd.OutOrStdout()) != nil {
				return command.Usage(errors.New("standard output is a terminal: name a file with -o, or redirect the archive"))
			}
			return cl.Images().Save(cmd.Context(), cmd.OutOrStdout(), refs)
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "-", "`file` to write; - for standard output")
	return cmd
}

func imageImport(c *cli) *cobra.Command {
	var p progressFlags
	var o client.ImportOptions
	cmd := &cobra.Command{
		Use: "import FILE [NAME[:VERSION]]", Short: "Import an archive of a file system as an image",
		Args: command.Args(cobra.RangeArgs(1, 2)),
		RunE: command.Interruptible(func(cmd *cobra.Command, given []string) error {
			if len(given) > 1 {
				o.Name = given[1]
			}
			in, err := openInput(cmd, given[0])
			if err != nil {
				return err
			}
			defer in.Close()
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) error {
				img, err := cl.Images().Import(cmd.Context(), in, o, report.event)
				if err != nil {
					return err
				}
				report.images("imported", img)
				return nil
			})
		}),
	}
	cmd.Flags().StringArrayVarP(&o.Changes, "change", "c", nil, "apply this Dockerfile `instruction` to the configuration; may be repeated: CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME, WORKDIR")
	cmd.Flags().StringVarP(&o.Message, "message", "m", "", "comment for the image's history")
	p.flags(cmd, "the image's digest")
	return cmd
}

func openInput(cmd *cobra.Command, name string) (io.ReadCloser, error) {
	if name != "-" {
		return os.Open(name)
	}
	if asTerminal(cmd.InOrStdin()) != nil {
		return nil, command.Usage(errors.New("standard input is a terminal: name a file, or redirect the archive"))
	}
	return io.NopCloser(cmd.InOrStdin()), nil
}
