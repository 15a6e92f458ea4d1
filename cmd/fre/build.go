package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func buildCommand(c *cli) *cobra.Command {
	var p progressFlags
	var base string
	var o client.BuildOptions
	cmd := &cobra.Command{
		Use:   "build DIR | --base NAME",
		Short: "Build the image of a template, or a base environment",
		Long: `Build the image of the template in the directory DIR, which contains fret.yaml. The build
writes the resolved versions to DIR/fret.lock, and the next build uses the same versions.
fre sends all files in DIR to the engine, except .git and the files
named in .freignore.`,
		Example: `  fre build hello
  fre build --base python`,
		Args: command.Args(cobra.MaximumNArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, dirs []string) error {
			if (len(dirs) == 0) == (base == "") {
				return command.Usage(errors.New("give either the template's directory or --base"))
			}
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) (err error) {
				var built *client.Built
				if base != "" {
					built, err = cl.Images().Base(cmd.Context(), base, report.event)
				} else {
					built, err = buildDir(cmd.Context(), cl, dirs[0], func(logins client.Logins) (*client.Built, error) {
						o.Logins = logins
						return cl.Images().Build(cmd.Context(), dirs[0], o, report.event)
					})
				}
				if err != nil {
					return err
				}
				report.built(built, built.Image.Digest, fmt.Sprintf("built %s:%s %s, %d files, %s", built.Image.Name, built.Image.Version, listing{}.shortID(built.Image.Digest), built.Image.Files, size(built.Image.Size)))
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&base, "base", "", "build this base environment instead of a template: python, node, java, php, ruby, native, or NAME:RELEASE")
	buildFlags(cmd, &o.Locked, &o.Offline)
	p.flags(cmd, "the image's digest")
	return cmd
}

func deployCommand(c *cli) *cobra.Command {
	var p progressFlags
	var req api.DeployRequest
	cmd := &cobra.Command{
		Use:   "deploy DIR | --image IMAGE",
		Short: "Build a template and deploy its function",
		Long: `Build the template in the directory DIR like fre build, and deploy its function. With
--image, deploy an image of the store, for example a pulled image.

The function's name is the template's id, or --name. In the tenant "default" the function
is called NAME, in every other tenant NAME.TENANT, with the tenant of the template.
--name NAME.TENANT deploys the function in another tenant.

A new deployment replaces a function of the same template without losing an event. To
replace a function of another template, add --replace.`,
		Example: `  fre deploy hello
  fre deploy --image registry.example.org/team/hello:1.0`,
		Args: command.Args(cobra.MaximumNArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, dirs []string) error {
			if (len(dirs) == 0) == (req.Image == "") {
				return command.Usage(errors.New("give either the template's directory or --image"))
			}
			if req.Image != "" && (req.Locked || req.Offline) {
				return command.Usage(errors.New("--locked and --offline apply to the build of a template, but --image builds nothing"))
			}
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) (err error) {
				var built *client.Built
				if req.Image != "" {
					built, err = cl.Functions().Deploy(cmd.Context(), req)
				} else {
					built, err = buildDir(cmd.Context(), cl, dirs[0], func(logins client.Logins) (*client.Built, error) {
						return cl.Functions().DeployDir(cmd.Context(), dirs[0], req, logins, report.event)
					})
				}
				if err != nil {
					return err
				}
				if built.Function == nil {
					return errors.New("the engine's answer names no deployed function")
				}
				report.built(built, built.Function.Name, deployed(built))
				return nil
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the function (default the template's id)")
	f.StringVar(&req.Image, "image", "", "deploy this `image` of the store instead of a template")
	f.BoolVar(&req.NoTraffic, "no-traffic", false, "deploy without sending traffic to the new revision, except calls of NAME@latest")
	f.BoolVar(&req.Replace, "replace", false, "replace a function of the same name from another template")
	buildFlags(cmd, &req.Locked, &req.Offline)
	p.flags(cmd, "the function's name")
	_ = cmd.RegisterFlagCompletionFunc("image", completeImages(c)) // fails only for an unknown flag
	return cmd
}

// deployed describes a deployment's result.
func deployed(built *client.Built) string {
	f := built.Function
	out := fmt.Sprintf("deployed %s from %s", f.Name, f.ImageRef)
	if f.Latest > 1 {
		out += fmt.Sprintf(", revision %d", f.Latest)
	}
	if f.Latest != f.Revision {
		out = fmt.Sprintf("deployed %s@latest, revision %d: traffic stays with revision %d, or split as before", f.Name, f.Latest, f.Revision)
	}
	return out
}

// buildFlags adds the flags that restrict a build.
func buildFlags(cmd *cobra.Command, locked, offline *bool) {
	cmd.Flags().BoolVar(locked, "locked", false, "fail if the build needs a version that fret.lock does not give")
	cmd.Flags().BoolVar(offline, "offline", false, "fail instead of using the network: all parts must be in the store")
}

// buildDir builds a template with the user's registry logins, and writes the lock file.
func buildDir(ctx context.Context, cl *client.Client, dir string, build func(client.Logins) (*client.Built, error)) (*client.Built, error) {
	if err := isTemplate(dir); err != nil {
		return nil, err
	}
	logins, err := baseLogin(ctx, cl, dir)
	if err != nil {
		return nil, err
	}
	built, err := build(logins)
	if err != nil {
		return nil, err
	}
	return built, writeLock(dir, built.Lock)
}

// isTemplate catches the most common mistake before the upload.
func isTemplate(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, api.TemplateFile)); errors.Is(err, fs.ErrNotExist) {
		return failure.Hint(fmt.Errorf("%s holds no %s", dir, api.TemplateFile), "make a template: fre new python "+dir)
	}
	return nil
}

// writeLock writes the lock file beside the template: whole or not at all, and only if the content
// changes.
func writeLock(dir string, lock json.RawMessage) error {
	if len(lock) == 0 {
		return nil
	}
	var content bytes.Buffer
	if err := json.Indent(&content, lock, "", "  "); err != nil {
		return fmt.Errorf("engine sent a malformed lock file: %w", err)
	}
	content.WriteByte('\n')
	path := filepath.Join(dir, api.LockFile)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content.Bytes()) {
		return nil
	}
	err := writeWhole(path, 0o644, func(w io.Writer) error {
		_, err := content.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}

// writeWhole makes or replaces the file at path after the whole content is on disk. It writes
// directly to a path that is no regular file, such as /dev/null.
func writeWhole(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = write(f)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
