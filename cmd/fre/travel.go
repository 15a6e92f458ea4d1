package main

import (
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image/signature"
)

func (c *cli) pullCommand() *cobra.Command {
	var p progressFlags
	var a authFlags
	var req api.PullRequest
	cmd := &cobra.Command{
		Use: "pull REFERENCE", Short: "Get an image from a registry",
		Long: `Get an image from a registry: NAME[:VERSION] of docker.io, or
HOST[:PORT]/PATH[:VERSION], or with @sha256:… for the very one. Layers and parts
that are here already are not fetched. What FRE built and pushed comes back as it
was: fre deploy --image deploys it. Without --username the login is that of your
docker configuration (docker login), credentials helpers among it.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: interruptible(func(cmd *cobra.Command, refs []string) error {
			req.Ref = refs[0]
			var err error
			if req.Auth, err = a.read(cmd, req.Ref); err != nil {
				return err
			}
			return c.reporting(cmd, p, func(cl *client.Client, report *progress) error {
				img, err := cl.Pull(cmd.Context(), req, report.event)
				if err != nil {
					return err
				}
				report.images("pulled", img)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&req.Platform, "platform", "", "refuse another `OS/ARCH`; default: the engine's")
	a.flags(cmd)
	p.flags(cmd, "the image's digest")
	return cmd
}

func (c *cli) pushCommand() *cobra.Command {
	var p progressFlags
	var a authFlags
	var req api.PushRequest
	var keyFile string
	cmd := &cobra.Command{
		Use: "push IMAGE [REFERENCE]", Short: "Send an image to a registry",
		Long: `Send an image to the registry that its name says, or that REFERENCE does.
What came from elsewhere is sent as it came; what FRE built as an artifact of its
parts: a pull on another machine makes the same image of it, and fetches the
parts that are not there. With --as-image it is sent as an ordinary image, which
other engines run, and which comes back as one. Logins are as with fre pull.`,
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: c.completeImages,
		RunE: interruptible(func(cmd *cobra.Command, refs []string) error {
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
			return c.reporting(cmd, p, func(cl *client.Client, report *progress) error {
				digest, err := cl.Push(cmd.Context(), req, report.event)
				if err != nil {
					return err
				}
				if key != nil {
					if err := sign(cmd, cl, key, signature.Repository(cmp.Or(req.To, req.Image)), digest, req.Auth); err != nil {
						return fmt.Errorf("pushed as %s, and not signed: %w", digest, err)
					}
				}
				report.result(api.TravelLine{Digest: digest}, digest, fmt.Sprintf("pushed %s as %s", cmp.Or(req.To, req.Image), digest))
				return nil
			})
		}),
	}
	cmd.Flags().BoolVar(&req.NoSBOM, "no-sbom", false, "put no bill of materials beside what FRE built")
	cmd.Flags().StringVar(&keyFile, "sign", "", "`file` of a private key to sign it with, as fre image sign does")
	cmd.Flags().BoolVar(&req.AsImage, "as-image", false, "send what FRE built as an ordinary image")
	a.flags(cmd)
	p.flags(cmd, "the digest of the manifest there")
	return cmd
}

func (c *cli) imageLoad() *cobra.Command {
	var p progressFlags
	var input string
	cmd := &cobra.Command{
		Use: "load", Short: "Take in the images of an archive",
		Long: `Take in the images of an archive that docker save, podman save or fre image
save made, or of an OCI layout in a tar, packed with gzip or zstd or not at all.`,
		Args: args(cobra.NoArgs),
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			in, err := openInput(cmd, input)
			if err != nil {
				return err
			}
			defer in.Close()
			return c.reporting(cmd, p, func(cl *client.Client, report *progress) error {
				images, err := cl.Load(cmd.Context(), in, report.event)
				if err != nil {
					return err
				}
				report.images("loaded", images...)
				return nil
			})
		}),
	}
	cmd.Flags().StringVarP(&input, "input", "i", "-", "`file` of the archive; - is the standard input")
	p.flags(cmd, "the images' digests")
	return cmd
}

func (c *cli) imageSave() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "save IMAGE...", Short: "Write images as an archive",
		Long: `Write images as an archive that docker load, podman load and fre image load
read: an OCI layout with docker's manifest.json beside it.`,
		Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeImages,
		RunE: interruptible(func(cmd *cobra.Command, refs []string) error {
			cl := c.client()
			defer cl.Close()
			if output != "-" {
				return writeWhole(output, 0o644, func(w io.Writer) error { return cl.Save(cmd.Context(), w, refs) })
			}
			if asTerminal(cmd.OutOrStdout()) != nil {
				return usageError{errors.New("an archive is nothing for a terminal: name a file with -o, or redirect")}
			}
			return cl.Save(cmd.Context(), cmd.OutOrStdout(), refs)
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "-", "`file` to write; - is the standard output")
	return cmd
}

func (c *cli) imageImport() *cobra.Command {
	var p progressFlags
	var o client.ImportOptions
	cmd := &cobra.Command{
		Use: "import FILE [NAME[:VERSION]]", Short: "Make an image of a plain archive of a file system",
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: interruptible(func(cmd *cobra.Command, given []string) error {
			if len(given) > 1 {
				o.Name = given[1]
			}
			in, err := openInput(cmd, given[0])
			if err != nil {
				return err
			}
			defer in.Close()
			return c.reporting(cmd, p, func(cl *client.Client, report *progress) error {
				img, err := cl.Import(cmd.Context(), in, o, report.event)
				if err != nil {
					return err
				}
				report.images("imported", img)
				return nil
			})
		}),
	}
	cmd.Flags().StringArrayVarP(&o.Changes, "change", "c", nil, "a Dockerfile `instruction` for the configuration: CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME, WORKDIR")
	cmd.Flags().StringVarP(&o.Message, "message", "m", "", "for the image's history")
	p.flags(cmd, "the image's digest")
	return cmd
}

// authFlags are a registry's login.
type authFlags struct {
	user  string
	stdin bool
}

func (a *authFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.user, "username", "", "`name` to log in with; needs --password-stdin")
	cmd.Flags().BoolVar(&a.stdin, "password-stdin", false, "read the password from the standard input")
}

// read returns the login for the registry of a reference: from the flags, or docker's.
func (a *authFlags) read(cmd *cobra.Command, ref string) (*api.RegistryAuth, error) {
	if (a.user == "") == a.stdin {
		return nil, usageError{errors.New("--username and --password-stdin go together")}
	}
	if a.user == "" {
		return login(cmd.Context(), ref)
	}
	b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 64<<10))
	if err != nil {
		return nil, fmt.Errorf("read password: %w", err)
	}
	return &api.RegistryAuth{Username: a.user, Password: strings.TrimRight(string(b), "\r\n")}, nil
}

func openInput(cmd *cobra.Command, name string) (io.ReadCloser, error) {
	if name != "-" {
		return os.Open(name)
	}
	if asTerminal(cmd.InOrStdin()) != nil {
		return nil, usageError{errors.New("the standard input is a terminal: name a file, or redirect")}
	}
	return io.NopCloser(cmd.InOrStdin()), nil
}

// images prints the received images.
func (p *progress) images(verb string, images ...api.Image) {
	p.end()
	if p.json {
		p.line(api.TravelLine{Images: images})
		return
	}
	for _, img := range images {
		what := listing{}.shortID(img.Digest)
		if len(img.Names) > 0 {
			what = strings.Join(img.Names, ", ") + " " + what
		}
		p.result(nil, img.Digest, fmt.Sprintf("%s %s, %d files, %s", verb, what, img.Files, size(img.Size)))
	}
}
