package php

import (
	"path"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Describe implements image.Described.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Handler:  "file.function or file.Class::method (default index.handle)",
		Handlers: map[template.Contract]string{template.ContractFRE: "index.handle"},
	}
}

// requestPattern matches a package in the syntax of composer require.
var requestPattern = lazyregexp.New(`^[a-z0-9]([_.-]?[a-z0-9]+)*/[a-z0-9](([_.]|-{1,2})?[a-z0-9]+)*(:[^\x00-\x1f]+)?$`)

// Syntax implements image.Site.
func (Site) Syntax() template.Site {
	return template.Site{
		About:    "PHP packages, as composer require takes them. Needs the base php. A string names a composer.json below the template's directory, with composer.lock beside it where there is one.",
		Request:  template.Pattern{Pattern: requestPattern, Want: `write a package such as "monolog/monolog:^3"; platform packages and repositories belong into a composer.json`},
		Examples: []any{[]string{"monolog/monolog:^3"}},
	}
}

// CheckHandler implements image.HandlerChecker.
func (Runtime) CheckHandler(t *template.Template, code image.CodeFiles) error {
	at := strings.LastIndexByte(t.Handler, '.')
	if at < 0 {
		return nil
	}
	return code.CheckFile(t.Handler, path.Clean(t.Handler[:at])+".php")
}

// Messages implements image.Speaking.
func (Runtime) Messages() image.Messages {
	return image.Messages{Memory: `Allowed memory size of`, ModulePrefix: "php-"}
}

// Packaging implements image.Packaged.
func (Site) Packaging() image.Packaging {
	return image.Packaging{
		Metadata: []string{"**/composer.json", "**/composer/installed.*"},
		Kinds:    []string{"composer", "package"}, Type: "composer",
		URLName: func(name string) string {
			if !strings.Contains(name, "/") { // the autoloader
				return ""
			}
			return strings.ToLower(name)
		},
	}
}
