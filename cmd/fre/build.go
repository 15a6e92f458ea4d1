package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

func (c *cli) buildCommand() *cobra.Command {
	var p progressFlags
	var base string
	cmd := &cobra.Command{
		Use:   "build DIR | --base NAME",
		Short: "Build the image of a template, or a base environment",
		Long: `Build the image of the template in DIR (which holds fret.yaml) and write
fret.lock beside it: it pins what was resolved, and the next build honours it.
Everything in DIR is sent to the engine, except .git.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: interruptible(func(cmd *cobra.Command, dirs []string) error {
			if (len(dirs) == 0) == (base == "") {
				return usageError{errors.New("name either the template's directory or --base")}
			}
			report, err := p.start(cmd)
			if err != nil {
				return err
			}
			cl := c.client()
			defer cl.Close()
			var built *client.Built
			if base != "" {
				built, err = cl.Base(cmd.Context(), base, report.event)
			} else {
				if err := isTemplate(dirs[0]); err != nil {
					return err
				}
				built, err = cl.Build(cmd.Context(), dirs[0], report.event)
			}
			report.end()
			if err != nil {
				return err
			}
			if base == "" {
				if err := writeLock(dirs[0], built.Lock); err != nil {
					return err
				}
			}
			report.done(built, built.Image.Digest, fmt.Sprintf("built %s:%s %s, %d files, %s", built.Image.Name, built.Image.Version, listing{}.shortID(built.Image.Digest), built.Image.Files, size(built.Image.Size)))
			return nil
		}),
	}
	cmd.Flags().StringVar(&base, "base", "", "build this base environment instead: python, node, native")
	p.flags(cmd, "the image's digest")
	return cmd
}

func (c *cli) deployCommand() *cobra.Command {
	var p progressFlags
	var req api.DeployRequest
	cmd := &cobra.Command{
		Use:   "deploy DIR | --image IMAGE",
		Short: "Build a template and put its function behind a name",
		Long: `Build the template in DIR as fre build does and put its function behind a
name, by default the template's id. A function of the same template is replaced
without losing an event; one of another template only with --replace.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: interruptible(func(cmd *cobra.Command, dirs []string) error {
			if (len(dirs) == 0) == (req.Image == "") {
				return usageError{errors.New("name either the template's directory or --image")}
			}
			report, err := p.start(cmd)
			if err != nil {
				return err
			}
			cl := c.client()
			defer cl.Close()
			var built *client.Built
			if req.Image != "" {
				built, err = cl.Deploy(cmd.Context(), req)
			} else {
				if err := isTemplate(dirs[0]); err != nil {
					return err
				}
				built, err = cl.DeployDir(cmd.Context(), dirs[0], req, report.event)
			}
			report.end()
			if err != nil {
				return err
			}
			if len(dirs) > 0 {
				if err := writeLock(dirs[0], built.Lock); err != nil {
					return err
				}
			}
			if built.Function == nil {
				return errors.New("engine did not say what it deployed")
			}
			report.done(built, built.Function.Name, fmt.Sprintf("deployed %s from %s", built.Function.Name, built.Function.ImageRef))
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the function; default: the template's id")
	f.StringVar(&req.Image, "image", "", "deploy this image, which is already there, instead of a template")
	f.BoolVar(&req.Replace, "replace", false, "take the name over from a function of another template")
	p.flags(cmd, "the function's name")
	_ = cmd.RegisterFlagCompletionFunc("image", c.completeImages) // fails only for a flag that is not there
	return cmd
}

// isTemplate answers the commonest mistake before anything is sent.
func isTemplate(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, api.TemplateFile)); errors.Is(err, fs.ErrNotExist) {
		return &hintError{fmt.Errorf("%s holds no %s", dir, api.TemplateFile), "make a template: fre new python " + dir}
	}
	return nil
}

// writeLock puts the lock file beside the template: whole or not at all, and
// only when it says something new.
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
	f, err := os.CreateTemp(dir, "."+api.LockFile+"-")
	if err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(content.Bytes())
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}
