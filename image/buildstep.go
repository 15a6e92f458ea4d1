package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// stepTools are the Debian packages with the tools that every shell script expects.
var stepTools = []string{"coreutils", "findutils", "grep", "sed"}

// runBuild makes the tree of the function's files by the template's build step, or finds an earlier
// result.
//
//	code ─ copy ─→ /work ─ code.build.run ─→ code.build.output ─→ the tree
//	root: the base's tools, the function's packages, those of code.build
func (b *Builder) runBuild(ctx context.Context, of *buildOf, code *os.Root) (tree store.Digest, err error) {
	root, programs, err := b.buildRoot(ctx, of)
	if err != nil {
		return "", err
	}
	step := of.t.Code.Build
	err = b.step(of, func(s *Step) error {
		source := filepath.Join(s.Scratch, "source")
		_, digest, err := copySource(ctx, code, of.t.Code.Path, source)
		if err != nil {
			return err
		}
		text, err := json.Marshal([]any{step, root.Digest, programs})
		if err != nil {
			return err
		}
		key, err := builtKey(of, "step", string(text), digest)
		if err != nil {
			return err
		}
		unlock, err := b.lock(ctx, key)
		if err != nil {
			return err
		}
		defer unlock()
		if part, ok := b.Store.Part(key); ok {
			tree = part.Tree
			return nil
		}
		of.report(Progress{Step: "code", Name: of.t.ID, Message: "build"})
		if err := b.Run.Run(ctx, Command{
			Rootfs: b.Store.Rootfs(root.Digest), Args: []string{"/bin/sh", "-c", step.Run}, Dir: "/work",
			Env:   []string{strings.Join(append([]string{systemPath}, programs...), ":"), "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8"},
			Binds: []Bind{{Source: source, Target: "/work", Writable: true}},
		}); err != nil {
			var exit *ExitError
			if errors.As(err, &exit) {
				return &template.FieldError{Field: "code.build.run", Message: fmt.Sprintf("the build step ended with status %d:\n%s", exit.Status, strings.TrimRight(exit.Output, "\n"))}
			}
			return err
		}
		err = openedIn(s, source, func(top *os.Root) error {
			// The step's output may be a symbolic link to anywhere, so open it below top.
			out, err := top.OpenRoot(step.Output)
			if err != nil {
				return &template.FieldError{Field: "code.build.output", Message: fmt.Sprintf("code.build.output %q: the build step did not create the directory: %s", step.Output, err)}
			}
			defer func() { _ = out.Close() }()
			tree, err = b.storeCode(ctx, of, out, ".")
			return err
		})
		if err != nil {
			return err
		}
		return b.Store.PutPart(ctx, key, store.Part{Kind: "code", Name: of.t.ID, Version: digest[:12], Prefix: codePrefix, Tree: tree})
	})
	return tree, err
}

// buildRoot finds or makes the image in which a build step runs, and returns its directories with
// the packages' programs.
func (b *Builder) buildRoot(ctx context.Context, of *buildOf) (root *store.Image, programs []string, err error) {
	step := of.t.Code.Build
	ref, err := template.ParseBase(of.t.Base)
	if err != nil {
		return nil, nil, err
	}
	if ref.Kind != template.BaseDebian {
		return nil, nil, &template.FieldError{Field: "code.build", Message: fmt.Sprintf("code.build needs a base of FRE's, not %s: build the code before, or in the image", ref)}
	}
	packages := slices.Concat(stepTools, step.Packages.Of("deb").List)
	if of.lock.Deb != nil {
		for _, p := range of.lock.Deb.Packages {
			packages = append(packages, p.Name)
		}
	}
	tools, err := b.tools(ctx, ref, packages, of.report)
	if err != nil {
		return nil, nil, err
	}
	parts := slices.Clone(tools.Parts)

	// Resolve the packages of function and step together, as if the function requested all.
	t := *of.t
	t.Packages = template.Packages{}
	for _, site := range b.Sites {
		own, more := *of.t.Packages.Of(site.Name()), step.Packages.Of(site.Name())
		if own.File != "" && len(more.List) > 0 {
			field := "code.build.packages." + site.Name()
			return nil, nil, &template.FieldError{Field: field, Message: fmt.Sprintf("%s: move the packages into %s, the file of packages.%s", field, own.File, site.Name())}
		}
		own.List, own.Scripts = slices.Concat(own.List, more.List), slices.Concat(own.Scripts, more.Scripts)
		t.Packages[site.Name()] = &own
	}
	lock := newLock(b.Sites, LockedBase{Name: t.Base}, of.lock.Build)
	lock.prune(&t)
	build := buildOf{dir: of.dir, t: &t, base: of.base, debs: of.debs, release: of.release, lock: lock, report: of.report}
	more, err := b.packages(ctx, &build)
	if err != nil {
		return nil, nil, err
	}
	of.lock.Build = lock
	parts = append(parts, more...)
	programs = build.programs
	hash := specHash("build", t.Base, "", BaseSpec{}, partKeys(parts))
	name := toolsPrefix + "build-" + hash[:12]
	if img := b.find(name, hash); img != nil {
		return img, programs, nil
	}
	root, err = b.put(ctx, name, tools.Version, parts, Config{
		Base: t.Base, Args: []string{"/bin/sh"}, Env: []string{systemPath}, Protocol: ProtocolNone,
		Labels: map[string]string{LabelKind: KindTools, LabelSpec: hash},
	})
	return root, programs, err
}

func partKeys(parts []store.Part) []string {
	keys := make([]string, len(parts))
	for i, p := range parts {
		keys[i] = p.Prefix + " " + string(p.Tree)
	}
	return keys
}
