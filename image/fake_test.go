package image

import (
	"context"
	"slices"

	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// named is a runtime that accepts every handler.
type named string

func (n named) Name() string               { return string(n) }
func (n named) Bases() []string            { return []string{string(n)} }
func (named) Bootstrap() map[string][]byte { return nil }

func (named) Command(*template.Template) (args, env []string, err error) { return nil, nil, nil }

func (named) Parked(*template.Template, []string) *ParkedInterpreter { return nil }

// Describe gives functions a default handler.
func (named) Describe() template.Runtime {
	return template.Runtime{Handlers: map[template.Contract]string{template.ContractFRE: "main.handle"}}
}

// programs is a runtime for programs of every base.
type programs struct{ named }

func (p programs) Bases() []string { return append(p.named.Bases(), AnyBase) }

func (p programs) Contract(c template.Contract) Runtime {
	if slices.Contains([]template.Contract{template.ContractFRE, template.ContractStdio, template.ContractCGI}, c) {
		return p
	}
	return nil
}

// emptySite is a package site without packages.
type emptySite struct{ name, base string }

func (s emptySite) Name() string    { return s.name }
func (s emptySite) Bases() []string { return []string{s.base} }
func (emptySite) Env() []string     { return nil }

func (s emptySite) Syntax() template.Site {
	all := template.Pattern{Pattern: lazyregexp.New(`.`)}
	return template.Site{Request: all, Step: "write a package", Scripts: &template.Names{Key: s.name + "_scripts", Name: all}}
}

// Packaging has the metadata of the packages in tests.
func (emptySite) Packaging() Packaging { return Packaging{Metadata: []string{"**/*.dist-info"}} }

// Section is what most sites lock.
func (emptySite) Section() Section { return &LockedPackages{} }

// packagesOf returns a site's section of a lock; an empty one if the lock has none.
func packagesOf(l *Lock, site string) *LockedPackages {
	if s, ok := l.Sites[site].(*LockedPackages); ok {
		return s
	}
	return &LockedPackages{}
}

func (emptySite) Packages(context.Context, *Step, *template.Template, *Lock) ([]store.Part, error) {
	return nil, nil
}
