package python

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// resolve asks uv for the versions and hashes of all required packages.
func (s *site) resolve(ctx context.Context, r *template.Requests) ([]image.LockedPackage, error) {
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
	built := map[string]image.LockedPackage{} // from source, by normal name
	var words string
	for {
		if len(s.index) > 0 {
			project, err := s.indexProject(built)
			if err != nil {
				return nil, err
			}
			if err := b.Write("index/pyproject.toml", project); err != nil {
				return nil, err
			}
		}
		words, err = b.Run(ctx, install.Tool{
			Rootfs: s.step.Rootfs, Env: s.env("/run/uv"), Cache: "uv", Program: program, Network: true, Args: args,
		})
		if err == nil {
			break
		}
		m := wantsSource.FindStringSubmatch(words)
		if m != nil && q.binary.onlyBinary(m[1]) {
			return nil, &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf("%s has no wheel for the base, and --only-binary forbids source distributions: use another version, or remove the option", m[1])}
		}
		if m == nil || built[normalName(m[1])].Name != "" || len(built) == maxSources || s.step.Platform != "" {
			return nil, failed(err, s.nameIndex(words))
		}
		// uv itself would run the package's code with access to the index's credentials.
		p, part, sourceErr := s.fromSource(ctx, image.LockedPackage{Name: m[1]}, q.specifiers(m[1], words))
		if errors.Is(sourceErr, errNoSource) {
			return nil, failed(err, s.nameIndex(words))
		}
		if sourceErr != nil {
			return nil, sourceErr
		}
		name, wheel, err := s.stub(p, part)
		if err != nil {
			return nil, err
		}
		if len(built) == 0 {
			if err := b.Mkdir("wheels"); err != nil {
				return nil, err
			}
			args = append(args, "--find-links", "/work/wheels")
		}
		if err := b.Write("wheels/"+name, wheel); err != nil {
			return nil, err
		}
		built[normalName(p.Name)] = p
	}
	for _, m := range yanked.FindAllStringSubmatch(words, -1) {
		s.step.Report(image.Progress{Step: "warning", Name: m[1], Message: m[0]})
	}
	out, err := b.Read("requirements.txt")
	if err != nil {
		return nil, fmt.Errorf("uv pip compile: %w", err)
	}
	packages, err := parsePinned(out)
	if err != nil {
		return nil, err
	}
	for i, p := range packages {
		if own := built[normalName(p.Name)]; own.Version == p.Version {
			packages[i] = own
			continue
		}
		if q.binary.noBinary(p.Name) {
			if packages[i], err = s.sourceOf(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return packages, q.honour(packages, cmp.Or(r.File, "packages.pip"))
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
