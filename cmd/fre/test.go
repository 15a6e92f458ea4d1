package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/client/functest"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

// testFlags choose the tests to run and the reports to write.
type testFlags struct {
	run     string
	reports []string

	pattern *regexp.Regexp
}

func (t *testFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.run, "run", "", "run only the tests whose name matches this `REGEXP`")
	cmd.Flags().StringArrayVar(&t.reports, "report", nil, "write a report, as `KIND=FILE`: junit or json; - for standard output; may be repeated")
}

func (t *testFlags) check() (err error) {
	if t.pattern, err = regexp.Compile(t.run); err != nil {
		return command.Usage(fmt.Errorf("--run: %w", err))
	}
	for _, r := range t.reports {
		if kind, file, _ := strings.Cut(r, "="); file == "" || kind != "junit" && kind != "json" {
			return command.Usage(fmt.Errorf("--report: %q is neither junit=FILE nor json=FILE", r))
		}
	}
	return nil
}

// load reads the chosen tests of dir, for the function.
func (t *testFlags) load(dir, function string) ([]functest.Case, error) {
	cases, err := functest.Load(dir, function)
	if err != nil {
		return nil, failure.Hint(err, "docs/testing.md describes the format of tests; fre new creates an example")
	}
	cases = slices.DeleteFunc(cases, func(c functest.Case) bool { return !t.pattern.MatchString(c.Name) })
	if len(cases) == 0 {
		return nil, command.Usage(fmt.Errorf("--run: no test of %s matches %q", dir, t.run))
	}
	return cases, nil
}

func testCommand(c *cli) *cobra.Command {
	var p progressFlags
	var t testFlags
	var function string
	var o client.BuildOptions
	cmd := &cobra.Command{
		Use:   "test DIR",
		Short: "Build a template and run its tests",
		Long: `Build the template in the directory DIR like fre build, and test its function: send the
events DIR/test/NAME.event.json, and compare the answers with DIR/test/NAME.expect.json.
See docs/testing.md. The exit code is 1 if an answer is wrong.

The tests run on a temporary function with an empty /work of its own; deployed functions
stay untouched. --function sends the events to a deployed function instead.`,
		Example: `  fre test hello
  fre test hello --run '^login' --report junit=report.xml`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, dirs []string) error {
			if err := t.check(); err != nil {
				return err
			}
			if function != "" && (o.Locked || o.Offline) {
				return command.Usage(errors.New("--locked and --offline apply to a build, but --function builds nothing"))
			}
			var suite *functest.Suite
			err := reporting(c, cmd, p, func(cl *client.Client, report *progress) (err error) {
				if function != "" {
					suite, err = t.runOn(cmd.Context(), cl, report, dirs[0], function)
				} else {
					suite, err = t.runTemporary(cmd.Context(), cl, report, dirs[0], o)
				}
				return err
			})
			if err == nil {
				err = t.write(cmd, suite)
			}
			if err == nil && suite.Failed > 0 {
				err = silentExitError(exitError)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&function, "function", "", "send the events to this deployed `function`, and build nothing")
	buildFlags(cmd, &o.Locked, &o.Offline)
	t.flags(cmd)
	p.flags(cmd, "the number of failed tests")
	_ = cmd.RegisterFlagCompletionFunc("function", completeFunctions(c)) // fails only for an unknown flag
	return cmd
}

// temporaryName returns an unused name for the function of the template in dir.
func temporaryName(dir string) string {
	name := "test-" + strings.ToLower(rand.Text()[:10])
	if absolute, err := filepath.Abs(dir); err == nil {
		if base := filepath.Base(absolute); templateID.MatchString(base) {
			name = base[:min(len(base), 40)] + "-" + name
		}
	}
	return name
}

// runTemporary runs the tests of dir on a function that is deployed for the test.
func (t *testFlags) runTemporary(ctx context.Context, cl *client.Client, report *progress, dir string, o client.BuildOptions) (_ *functest.Suite, err error) {
	if err := isTemplate(dir); err != nil {
		return nil, err
	}
	name := temporaryName(dir)
	if _, err := t.load(dir, name); err != nil { // before the build
		return nil, err
	}
	if o.Logins, err = baseLogin(ctx, cl, dir); err != nil {
		return nil, err
	}
	built, end, err := cl.Functions().DeployTemporary(ctx, client.Temporary{Name: name, Dir: dir, BuildOptions: o}, report.event)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := writeLock(dir, built.Lock); err != nil {
		return nil, err
	}
	return t.runOn(ctx, cl, report, dir, built.Function.Name)
}

// runOn runs the tests of dir on a deployed function.
func (t *testFlags) runOn(ctx context.Context, cl *client.Client, report *progress, dir, function string) (*functest.Suite, error) {
	cases, err := t.load(dir, function)
	if err != nil {
		return nil, err
	}
	report.end()
	begin := time.Now()
	suite, err := functest.Run(ctx, cl, function, cases, report.test)
	if err != nil {
		return nil, err
	}
	suite.Template = dir
	report.result(testLine{Suite: suite}, fmt.Sprint(suite.Failed), fmt.Sprintf("%d passed, %d failed, %s", suite.Passed, suite.Failed, brief(time.Since(begin))))
	return suite, nil
}

// write writes the reports.
func (t *testFlags) write(cmd *cobra.Command, suite *functest.Suite) error {
	for _, r := range t.reports {
		kind, file, _ := strings.Cut(r, "=")
		write := suite.WriteJSON
		if kind == "junit" {
			write = suite.WriteJUnit
		}
		if file == "-" {
			if err := write(cmd.OutOrStdout()); err != nil {
				return err
			}
			continue
		}
		if err := writeWhole(file, 0o644, func(w io.Writer) error { return write(w) }); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	return nil
}
