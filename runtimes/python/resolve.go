package python

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// resolve asks uv for the versions and hashes of all required packages.
func (s *site) resolve(ctx context.Context, r *template.Requests) ([]image.LockedPackage, error) {
	t, err := s.newResolution(ctx, r)
	if err != nil {
		return nil, err
	}
	words, err := t.run(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range yanked.FindAllStringSubmatch(words, -1) {
		s.step.Report(image.Progress{Step: "warning", Name: m[1], Message: m[0]})
	}
	packages, err := t.answer(ctx)
	if err != nil {
		return nil, err
	}
	return packages, t.request.honour(packages, cmp.Or(r.File, "packages.pip"))
}

// resolution is a task for uv's resolver. uv runs again after each package without a wheel: FRE
// builds the package, because uv would run the package's code with access to the index's
// credentials.
type resolution struct {
	*site
	request *request
	bench   *install.Bench
	program string                         // directory of uv
	args    []string                       // of uv
	built   map[string]image.LockedPackage // from source, by normal name
}

func (s *site) newResolution(ctx context.Context, r *template.Requests) (*resolution, error) {
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return nil, err
	}
	q, err := s.requests(ctx, r)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Write("requirements.in", text(q.list)), b.Write("constraints.txt", text(q.constraints))); err != nil {
		return nil, err
	}
	args := s.compileArgs()
	if len(s.index) > 0 {
		if err := b.Mkdir("index"); err != nil {
			return nil, err
		}
		args = append(args, "/work/index/pyproject.toml")
	}
	if len(q.constraints) > 0 {
		args = append(args, "--constraint", "/work/constraints.txt")
	}
	if q.complete {
		args = append(args, "--no-deps")
	}
	if q.pre {
		args = append(args, "--prerelease", "allow")
	}
	return &resolution{site: s, request: q, bench: b, program: program, args: args, built: map[string]image.LockedPackage{}}, nil
}

// run runs uv until it has an answer, and returns its output.
func (t *resolution) run(ctx context.Context) (words string, err error) {
	for {
		if len(t.index) > 0 {
			project, err := t.indexProject(t.built)
			if err != nil {
				return "", err
			}
			if err := t.bench.Write("index/pyproject.toml", project); err != nil {
				return "", err
			}
		}
		words, err := t.bench.Run(ctx, install.Tool{
			Rootfs: t.step.Rootfs, Env: t.env("/run/uv"), Cache: "uv", Program: t.program, Network: true, Args: t.args,
		})
		if err == nil {
			return words, nil
		}
		if err := t.buildWanted(ctx, words, err); err != nil {
			return "", err
		}
	}
}

// buildWanted builds the package whose wheel uv misses in its output words, or returns the user's
// error from uv's error.
func (t *resolution) buildWanted(ctx context.Context, words string, uvErr error) error {
	m := wantsSource.FindStringSubmatch(words)
	if m != nil && t.request.binary.onlyBinary(m[1]) {
		return &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf("%s has no wheel for the base, and --only-binary forbids source distributions: use another version, or remove the option", m[1])}
	}
	if m == nil || t.built[normalName(m[1])].Name != "" || len(t.built) == maxSources || t.step.Platform != "" {
		return failed(uvErr, t.nameIndex(words))
	}
	p, part, err := t.fromSource(ctx, image.LockedPackage{Name: m[1]}, t.request.specifiers(m[1], words))
	if errors.Is(err, errNoSource) {
		return failed(uvErr, t.nameIndex(words))
	}
	if err != nil {
		return err
	}
	return t.addWheel(p, part)
}

// addWheel gives uv the metadata of a package built from source.
func (t *resolution) addWheel(p image.LockedPackage, part store.Part) error {
	name, wheel, err := t.stub(p, part)
	if err != nil {
		return err
	}
	if len(t.built) == 0 {
		if err := t.bench.Mkdir("wheels"); err != nil {
			return err
		}
		t.args = append(t.args, "--find-links", "/work/wheels")
	}
	t.built[normalName(p.Name)] = p
	return t.bench.Write("wheels/"+name, wheel)
}

// answer returns the packages that uv has pinned. The packages that --no-binary names become source
// distributions.
func (t *resolution) answer(ctx context.Context) ([]image.LockedPackage, error) {
	out, err := t.bench.Read("requirements.txt")
	if err != nil {
		return nil, fmt.Errorf("uv pip compile: %w", err)
	}
	packages, err := parsePinned(out)
	if err != nil {
		return nil, err
	}
	for i, p := range packages {
		if own := t.built[normalName(p.Name)]; own.Version == p.Version {
			packages[i] = own
			continue
		}
		if t.request.binary.noBinary(p.Name) {
			if packages[i], err = t.sourceOf(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return packages, nil
}

// sourceOf returns the locked form of a package that --no-binary names.
func (s *site) sourceOf(ctx context.Context, p image.LockedPackage) (image.LockedPackage, error) {
	fail := func(why string) (image.LockedPackage, error) {
		return p, &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf("--no-binary: %s %s %s", p.Name, p.Version, why)}
	}
	if s.step.Platform != "" {
		return fail("cannot be built for a foreign base: remove the option")
	}
	source, _, err := s.fromSource(ctx, image.LockedPackage{Name: p.Name, Version: p.Version}, nil)
	if errors.Is(err, errNoSource) {
		return fail("has no source distribution: remove the option for the package, or use another version")
	}
	return source, err
}

// yanked matches uv's message that an author has withdrawn a version.
var yanked = regexp.MustCompile("`([^`\n]+)` is yanked( \\(reason: [^\n]*\\))?")
