package python

import (
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Describe implements image.Described.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Handler: "module.function (default main.handle)",
		Handlers: map[template.Contract]string{
			template.ContractFRE: "main.handle", template.ContractLambda: "lambda_function.lambda_handler", template.ContractASGI: "main.app",
			template.ContractWSGI: "main.app", template.ContractFramework: "main.function", template.ContractKnative: "function.new",
		},
		Dotted: strings.NewReplacer(":", ".", "/", ".").Replace, // servers and Lambda write : or /
	}
}

var (
	requestPattern = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? *(\[[A-Za-z0-9._, -]*\])? *([<>=!~(;][^\x00-\x1f@]*)?$`)
	packagePattern = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	extrasPattern  = lazyregexp.New(`^(|.*/)(pyproject\.toml|uv\.lock)\[([A-Za-z0-9._, -]+)\]$`)
)

// Syntax implements image.Site.
func (Site) Syntax() template.Site {
	return template.Site{
		About:    "Python packages, as pip writes requirements. Needs the base python. A string names a file below the template's directory: requirements.txt, pyproject.toml, pyproject.toml[extra] or uv.lock.",
		Request:  template.Pattern{Pattern: requestPattern, Want: `write a requirement such as "lxml==5.3.0"; options, URLs and paths are not supported yet`},
		Step:     `write a requirement such as "cython==3.0.11"`,
		Examples: []any{[]string{"lxml==5.3.0", "requests>=2"}},
		Extras:   splitExtras,
		Index: &template.Names{
			Key:      "pip_index",
			About:    "Packages of pip that come from another index than the host's, by the name that the engine's configuration gives it (packages.pip.indexes). A package named here is installed, and all others come from the host's indexes.",
			Name:     template.Pattern{Pattern: packagePattern, Want: "write the package's name only, for example torch"},
			Normal:   normalName,
			Examples: []any{map[string]string{"torch": "pytorch-cpu"}},
		},
	}
}

// splitExtras splits a request for a project's optional dependencies: "pyproject.toml[web,dev]".
func splitExtras(name string) (file string, extras []string) {
	m := extrasPattern.FindStringSubmatch(name)
	if m == nil {
		return name, nil
	}
	for e := range strings.SplitSeq(m[3], ",") {
		if e = normalName(strings.TrimSpace(e)); e != "" {
			extras = append(extras, e)
		}
	}
	slices.Sort(extras)
	return m[1] + m[2], slices.Compact(extras)
}

// CheckHandler implements image.HandlerChecker. With packages, one of them may have the module.
func (Runtime) CheckHandler(t *template.Template, code image.CodeFiles) error {
	at := strings.LastIndexByte(t.Handler, '.')
	if at < 0 || !t.Packages.Of("pip").None() {
		return nil
	}
	return code.CheckModule(t.Handler, strings.ReplaceAll(t.Handler[:at], ".", "/"), ".py", ".pyc", ".so")
}

// Messages implements image.Speaking.
func (Runtime) Messages() image.Messages {
	return image.Messages{
		Missing: `No module named '([\w.]+)'`, Threads: `can't start new thread`, Memory: `\bMemoryError\b`, ModulePrefix: "python3-",
	}
}

// Packaging implements image.Packaged.
func (Site) Packaging() image.Packaging {
	return image.Packaging{
		Metadata: []string{"**/*.dist-info", "**/*.egg-info"},
		Kinds:    []string{"pip"}, Type: "pypi",
		URLName: func(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") },
	}
}
