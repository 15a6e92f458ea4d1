package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/client/functest"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

// slimSuffix ends the version of a slimmed image without --tag.
const slimSuffix = "-slim"

// slimFlags are the flags of fre image slim.
type slimFlags struct {
	testFlags
	trace  string // the template's directory
	tag    string
	keep   []string
	dryRun bool
}

// slimLine is the last line of fre image slim --progress json.
type slimLine struct {
	Slimmed *api.Slimmed `json:"slimmed"`
}

func imageSlim(c *cli) *cobra.Command {
	var p progressFlags
	var s slimFlags
	cmd := &cobra.Command{
		Use: "slim --trace DIR [IMAGE]", Short: "Make a smaller image without the files that a function never opens",
		Long: `Make a smaller image of a function. The command works in three steps:

    1. Build the template in DIR, or take IMAGE, an existing image of this template. Send
       the function the events in DIR/test (docs/testing.md) twice, and record the files
       that the function opens.
    2. Make an image with the function's own code, and with only these files of the base
       environment and the packages: the opened files, the files that belong to them, and
       the files named by keep in the template and by --keep. docs/bases.md has the rules.
    3. Send the same events to the slimmed image. If an answer differs from the expected
       answer or from the earlier answers, remove the slimmed image. Otherwise name the
       slimmed image NAME:VERSION-slim, or by --tag.

The original image stays. Files that only untested events need are missing from the slimmed
image; --dry-run lists the files to omit.`,
		Example: `  fre image slim --trace hello
  fre deploy --image hello:1.0-slim    deploy the slimmed image
  fre deploy --image hello:1.0         go back to the original image`,
		Args: command.Args(cobra.MaximumNArgs(1)), ValidArgsFunction: completeImages(c),
		RunE: command.Interruptible(func(cmd *cobra.Command, images []string) error {
			if s.trace == "" {
				return command.Usage(errors.New("--trace is missing: name the directory of the function's template and tests"))
			}
			if err := s.check(); err != nil {
				return err
			}
			return reporting(c, cmd, p, func(cl *client.Client, report *progress) error {
				return s.slim(cmd.Context(), cl, report, strings.Join(images, ""))
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&s.trace, "trace", "", "`directory` of the template and its tests")
	f.StringVar(&s.run, "run", "", "run only the tests whose name matches this `REGEXP`")
	f.StringArrayVar(&s.keep, "keep", nil, "keep also the files that this path `glob` matches; may be repeated")
	f.StringVarP(&s.tag, "tag", "t", "", "`name` of the slimmed image: NAME[:VERSION] (default NAME:VERSION-slim)")
	f.BoolVar(&s.dryRun, "dry-run", false, "make no image; list the files to omit")
	p.flags(cmd, "the digest of the slimmed image")
	return cmd
}

func (s *slimFlags) slim(ctx context.Context, cl *client.Client, report *progress, ref string) error {
	name := temporaryName(s.trace)
	cases, err := s.load(s.trace, name)
	if err == nil && ref == "" {
		err = isTemplate(s.trace)
	}
	if err != nil { // before the build
		return err
	}
	of := client.Temporary{Name: name, Dir: s.trace, Image: ref, Trace: true}
	if ref == "" {
		if of.Logins, err = baseLogin(ctx, cl, s.trace); err != nil {
			return err
		}
	}
	built, runs, slimmed, err := s.traced(ctx, cl, report, of, cases)
	if err != nil {
		return err
	}
	shrinks := fmt.Sprintf("%s → %s, %d → %d files", size(slimmed.Before.Bytes), size(slimmed.After.Bytes), slimmed.Before.Files, slimmed.After.Files)
	if s.dryRun {
		if !report.json && !report.quiet {
			for _, f := range slimmed.Gone {
				fmt.Fprintf(report.out, "%8s  %s\n", size(f.Size), command.Printable(f.Path))
			}
		}
		report.result(slimLine{&slimmed}, "", shrinks+": would be slimmed")
		return nil
	}
	if err := s.verify(ctx, cl, report, slimmed.Image.Digest, runs); err != nil {
		if len(slimmed.Image.Names) == 0 { // an image with a name belongs to an earlier call
			err = errors.Join(err, removeUnused(context.WithoutCancel(ctx), cl, slimmed.Image.Digest))
		}
		return err
	}
	tag := s.tag
	if tag == "" {
		tag = built.Image.Name + ":" + built.Image.Version + slimSuffix
	}
	img, err := cl.Images().Tag(ctx, slimmed.Image.Digest, tag)
	if err != nil {
		return err
	}
	slimmed.Image = &img
	report.result(slimLine{&slimmed}, img.Digest, tag+" "+shrinks)
	return nil
}

// traced runs the cases twice on the original function, and has its image slimmed.
func (s *slimFlags) traced(ctx context.Context, cl *client.Client, report *progress, t client.Temporary, cases []functest.Case) (built *client.Built, runs [2]*functest.Suite, slimmed api.Slimmed, err error) {
	built, end, err := cl.Functions().DeployTemporary(ctx, t, report.event)
	if err != nil {
		return nil, runs, slimmed, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if t.Image == "" {
		if err := writeLock(t.Dir, built.Lock); err != nil {
			return nil, runs, slimmed, err
		}
	}
	report.end()
	for i := range runs {
		if runs[i], err = functest.Run(ctx, cl, built.Function.Name, cases, failures(report)); err != nil {
			return nil, runs, slimmed, err
		}
		if n := runs[i].Failed; n > 0 {
			return nil, runs, slimmed, failure.Hint(fmt.Errorf("%d of %d tests fail on the original image", n, len(cases)), "run fre test "+t.Dir+" and correct the tests, or choose other tests (--run)")
		}
	}
	slimmed, err = cl.Functions().Slim(ctx, built.Function.Name, api.SlimRequest{Keep: s.keep, DryRun: s.dryRun})
	return built, runs, slimmed, err
}

// verify runs the cases on the slimmed image: its answers must equal the earlier answers.
func (s *slimFlags) verify(ctx context.Context, cl *client.Client, report *progress, digest string, runs [2]*functest.Suite) (err error) {
	name := temporaryName(s.trace) // a new name: the first function may not be gone yet
	cases, err := s.load(s.trace, name)
	if err != nil {
		return err
	}
	built, end, err := cl.Functions().DeployTemporary(ctx, client.Temporary{Name: name, Image: digest}, report.event)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	after, err := functest.Run(ctx, cl, built.Function.Name, cases, failures(report))
	if err != nil {
		return err
	}
	const next = "name the missing files with --keep, or with keep in fret.yaml; --dry-run lists the omitted files"
	if after.Failed > 0 {
		return failure.Hint(fmt.Errorf("the slimmed image fails %d of %d tests, so it was not kept", after.Failed, len(cases)), next)
	}
	if changed := functest.Changed(runs[0], runs[1], after); len(changed) > 0 {
		return failure.Hint(fmt.Errorf("the slimmed image answers %s differently from the original image, so it was not kept", strings.Join(changed, ", ")), next)
	}
	return nil
}

// removeUnused removes an image after the last sandbox of a removed function has ended.
func removeUnused(ctx context.Context, cl *client.Client, digest string) error {
	const patience = 10 * time.Second
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		_, err := cl.Images().Remove(ctx, digest, client.RemoveOptions{})
		if e := new(api.Error); !errors.As(err, &e) || e.Code != api.CodeInUse || wait > patience {
			return err
		}
		<-time.After(wait)
	}
}

// failures reports only tests that fail.
func failures(report *progress) func(functest.Result) {
	return func(r functest.Result) {
		if !r.Passed {
			report.test(r)
		}
	}
}
