package ruby

import (
	"path"
	"strings"
	"unicode"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Describe implements image.Described.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Handler:  "file.method or file.Module.method (default main.handle)",
		Handlers: map[template.Contract]string{template.ContractFRE: "main.handle"},
	}
}

// requestPattern matches a gem in the syntax of gem install, with any number of versions.
var requestPattern = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(: *(=|!=|>=|<=|>|<|~>)? *[0-9][0-9A-Za-z.-]*(, *(=|!=|>=|<=|>|<|~>)? *[0-9][0-9A-Za-z.-]*)*)?$`)

// Syntax implements image.Site.
func (Site) Syntax() template.Site {
	return template.Site{
		About:    "Ruby gems with what they need, as gem install takes them: NAME or NAME:VERSIONS, with commas between versions. Needs the base ruby. A string names a Gemfile below the template's directory, with Gemfile.lock beside it where there is one.",
		Request:  template.Pattern{Pattern: requestPattern, Want: `write a gem such as "sinatra" or "rack:>= 2, < 4"; git and paths are not supported`},
		Examples: []any{[]string{"sinatra:~> 4.0"}},
	}
}

// CheckHandler implements image.HandlerChecker. A module's name may follow the file: main.App.handle.
func (Runtime) CheckHandler(t *template.Template, code image.CodeFiles) error {
	at := strings.LastIndexByte(t.Handler, '.')
	if at < 0 {
		return nil
	}
	file := t.Handler[:at]
	if at = strings.LastIndexByte(file, '.'); at > 0 && unicode.IsUpper([]rune(file[at+1:] + "x")[0]) {
		file = file[:at]
	}
	return code.CheckFile(t.Handler, path.Clean(file)+".rb")
}

// Messages implements image.Speaking.
func (Runtime) Messages() image.Messages {
	return image.Messages{
		Missing: `cannot load such file -- (\S+)`, Threads: `can't create Thread`, Memory: `\bNoMemoryError\b`, ModulePrefix: "ruby-",
	}
}

// Packaging implements image.Packaged.
func (Site) Packaging() image.Packaging {
	return image.Packaging{
		Metadata: []string{"**/*.gemspec"},
		Kinds:    []string{"gem"}, Type: "gem",
	}
}
