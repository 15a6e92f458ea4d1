package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func devCommand(c *cli) *cobra.Command {
	d := &dev{}
	var test, remove bool
	cmd := &cobra.Command{
		Use:   "dev DIR",
		Short: "Deploy a template again after each change of a file",
		Long: `Build and deploy the template in the directory DIR like fre deploy, and again after each
change of a file in DIR, until Ctrl-C. Changes of .git and of files named in .freignore do
not count.

fre prints the function's log and the errors of builds to standard output, or to standard
error with --progress json. After a failed build the function stays as before.

With --test, the function's tests run after each deployment, and changes of DIR/test count
too.`,
		Example: `  fre dev --test hello`,
		Args:    command.Args(cobra.ExactArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, dirs []string) error {
			if err := d.tests.check(); err != nil {
				return err
			}
			if err := isTemplate(dirs[0]); err != nil {
				return err
			}
			d.cmd, d.dir, d.test = cmd, dirs[0], test
			d.client = c.client()
			defer d.client.Close()
			err := d.run(cmd.Context())
			if remove && d.name != "" {
				err = errors.Join(err, d.client.Functions().Remove(context.WithoutCancel(cmd.Context()), d.name))
			}
			if err == nil {
				cmd.SetContext(context.WithoutCancel(cmd.Context()))
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&d.req.Name, "name", "", "name of the function (default the template's id)")
	f.BoolVar(&d.req.Replace, "replace", false, "replace a function of the same name from another template")
	f.BoolVar(&test, "test", false, "run the function's tests after each deployment")
	f.BoolVar(&remove, "rm", false, "remove the function at the end")
	buildFlags(cmd, &d.req.Locked, &d.req.Offline)
	d.tests.flags(cmd)
	d.progress.flags(cmd, "the function's log, errors, and the number of failed tests")
	return cmd
}

// dev is one run of fre dev.
type dev struct {
	cmd      *cobra.Command
	client   *client.Client
	dir      string
	req      api.DeployRequest
	test     bool
	tests    testFlags
	progress progressFlags

	name  string    // of the function, after the first deployment
	begun time.Time // of this run
	old   []string  // digests of replaced images of this run
	image string    // digest of the deployed image

	mu     sync.Mutex
	report *progress // of the running build, whose bars say prints above; nil without a build
}

// run deploys and watches until ctx ends, which is no error.
func (d *dev) run(ctx context.Context) error {
	d.begun = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	w, err := newWatcher(d.dir)
	if err != nil {
		return fmt.Errorf("watch %s: %w", d.dir, err)
	}
	defer w.close()
	for {
		if err := w.look(d.readRules(ctx)); err != nil { // before the build: later changes need another build
			return fmt.Errorf("watch %s: %w", d.dir, err)
		}
		first := d.name == ""
		if err := d.deploy(ctx); err != nil && ctx.Err() == nil {
			if d.fatal(err) {
				return err
			}
			d.complain(err)
		}
		if first && d.name != "" {
			name := d.name // deploy sets d.name again
			following.Go(func() { d.follow(ctx, name) })
		}
		path, err := w.wait(ctx)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if !d.progress.quiet {
			d.say("changed: " + path)
		}
	}
}

// fatal reports whether no change of a file can fix the error.
func (d *dev) fatal(err error) bool {
	var wire *api.Error
	return errors.Is(err, client.ErrUnreachable) || errors.As(err, &wire) && (wire.Code == api.CodeNameTaken || wire.Code == api.CodeClosed || wire.Code == api.CodeForbidden)
}

// readRules returns the rules for the watched files.
func (d *dev) readRules(ctx context.Context) watchRules {
	rules := watchRules{test: d.test}
	src, err := os.ReadFile(filepath.Join(d.dir, api.TemplateFile))
	if err != nil {
		return rules // the build reports the error
	}
	t, err := d.client.CheckTemplate(ctx, src)
	if err == nil {
		rules.read(d.dir, t.Code)
	}
	return rules
}

// deploy builds, deploys and tests once.
func (d *dev) deploy(ctx context.Context) error {
	report, err := d.progress.start(d.cmd)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.report = report
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.report = nil
		report.end()
	}()
	begin := time.Now()
	built, err := buildDir(ctx, d.client, d.dir, func(logins client.Logins) (*client.Built, error) {
		return d.client.Functions().DeployDir(ctx, d.dir, d.req, logins, report.event)
	})
	if err != nil {
		return err
	}
	if built.Function == nil {
		return errors.New("the engine's answer names no deployed function")
	}
	d.name = built.Function.Name
	if report.json || !report.quiet {
		report.built(built, d.name, fmt.Sprintf("deployed %s from %s, %s", d.name, built.Function.ImageRef, brief(time.Since(begin))))
	}
	d.tidy(ctx, built)
	if !d.test {
		return nil
	}
	suite, err := d.tests.runOn(ctx, d.client, report, d.dir, d.name)
	if err != nil {
		return err
	}
	return d.tests.write(d.cmd, suite)
}

// tidy removes nameless images of this run's earlier deployments: an afternoon of work makes
// hundreds. An image that is still in use goes with a later call.
func (d *dev) tidy(ctx context.Context, built *client.Built) {
	if d.image != "" && d.image != built.Image.Digest {
		d.old = append(d.old, d.image)
	}
	d.image = ""
	if built.Image.Created.After(d.begun) {
		d.image = built.Image.Digest
	}
	d.old = slices.DeleteFunc(d.old, func(digest string) bool {
		if digest == built.Image.Digest {
			return true
		}
		img, err := d.client.Images().Get(ctx, digest)
		if err == nil && len(img.Names) == 0 {
			_, err = d.client.Images().Remove(ctx, digest, client.RemoveOptions{})
		}
		var wire *api.Error
		return err == nil || errors.As(err, &wire) && wire.Code != api.CodeInUse
	})
}

// complain prints an error and goes on.
func (d *dev) complain(err error) {
	message, next := explain(err)
	d.say("fre: " + command.PrintableLines(message))
	if next != "" {
		d.say("     " + command.PrintableLines(next))
	}
}

// follow prints the function's log until ctx ends or the function is removed.
func (d *dev) follow(ctx context.Context, name string) {
	err := d.client.Functions().Logs(ctx, name, client.LogOptions{Follow: true}, func(l api.LogLine) error {
		d.say(name + " | " + command.PrintableLines(l.String()))
		return nil
	})
	if ctx.Err() == nil {
		d.say(fmt.Sprintf("fre: the log of %s ended: %v", name, err))
	}
}

// say prints a line for people, above the bars if a build runs.
func (d *dev) say(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.cmd.OutOrStdout()
	if d.progress.mode == progressJSON {
		out = d.cmd.ErrOrStderr()
	}
	if d.report == nil || !d.report.above(line) {
		fmt.Fprintln(out, line)
	}
}
