package image

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// asked returns the sections of a lock that the template needs.
func (b *Builder) asked(t *template.Template) []string {
	var out []string
	for _, site := range b.Sites {
		if r := t.Packages.Of(site.Name()); !r.None() {
			out = append(out, site.Name())
		}
	}
	if !t.Packages.Of("deb").None() || len(t.Libs) > 0 {
		out = append(out, "deb")
	}
	if t.Code.Git != nil {
		out = append(out, "git")
	}
	return out
}

// read reads the files with requests for packages that the template names.
func (b *Builder) read(t *template.Template, dir *os.Root) error {
	for _, site := range b.Sites {
		r := t.Packages.Of(site.Name())
		if r.File == "" {
			continue
		}
		if err := readRequests(r, dir, site); err != nil {
			field := "packages." + site.Name()
			return &template.FieldError{Field: field, Message: fmt.Sprintf("%s: %s", field, err)}
		}
	}
	return nil
}

// maxRequestFiles exceeds the number of requirement files that include each other in practice.
const maxRequestFiles = 64

func readRequests(r *template.Requests, dir *os.Root, site Site) (err error) {
	if r.Text, err = readSmall(dir, r.File, template.MaxBytes); err != nil {
		return err
	}
	reader, ok := site.(RequestReader)
	if !ok {
		return nil
	}
	r.Beside = map[string][]byte{}
	return reader.ReadRequests(r, func(name string) ([]byte, error) {
		name = path.Clean(name)
		if text, ok := r.Beside[name]; ok {
			return text, nil
		}
		if len(r.Beside) == maxRequestFiles {
			return nil, fmt.Errorf("%s names more than %d further files", r.File, maxRequestFiles)
		}
		text, err := readSmall(dir, name, maxLockBytes)
		if err != nil {
			return nil, err
		}
		r.Beside[name] = text
		return text, nil
	})
}

// packages has the sites install the requested packages, in the order of b.Sites.
func (b *Builder) packages(ctx context.Context, of *buildOf) ([]store.Part, error) {
	var parts []store.Part
	for _, site := range b.Sites {
		if r := of.t.Packages.Of(site.Name()); r.None() {
			continue
		}
		of.report(Progress{Step: "packages", Message: site.Name()})
		err := b.step(of, func(s *Step) error {
			more, err := site.Packages(ctx, s, of.t, of.lock)
			if err != nil {
				return err
			}
			parts = append(parts, more...)
			p, ok := site.(Programs)
			if !ok {
				return nil
			}
			links, dir, err := p.Programs(ctx, s, of.lock)
			if err == nil && links.Tree != "" {
				parts, of.programs = append(parts, links), append(of.programs, path.Join("/", dir))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		of.report(Progress{Step: "packages", Message: site.Name(), End: true})
	}
	of.lock.prune(of.t) // otherwise sections that answer no request would stay for ever
	return parts, nil
}

// environment returns the variables of the runtime, then of the package sites in use, then of the
// template. A site does not replace a variable of the runtime; the template does.
func (b *Builder) environment(t *template.Template, runtime []string) []string {
	env := slices.Clone(runtime)
	for _, site := range b.Sites {
		if r := t.Packages.Of(site.Name()); r.None() {
			continue
		}
		if p, ok := site.(ProgramDirs); ok {
			env = withProgramDirs(env, p.ProgramDirs())
		}
		for _, v := range site.Env() {
			name, _, _ := strings.Cut(v, "=")
			if !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
				env = append(env, v)
			}
		}
	}
	return mergeEnv(env, t.Env)
}
