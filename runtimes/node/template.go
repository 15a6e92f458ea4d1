package node

import (
	"fmt"
	"path"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Describe implements image.Described.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Handler: "module.export (default index.handle)",
		Handlers: map[template.Contract]string{
			template.ContractFRE: "index.handle", template.ContractLambda: "index.handler",
			template.ContractFramework: "index.function", template.ContractKnative: "index.handle",
		},
	}
}

var (
	requestPattern = lazyregexp.New(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\x00-\x1f@/:]+)?$`)
	packagePattern = lazyregexp.New(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*$`)
)

// Syntax implements image.Site.
func (Site) Syntax() template.Site {
	return template.Site{
		About:    "Node packages, as npm writes them. Needs the base node. A string names a file below the template's directory: package.json, with package-lock.json beside it where there is one.",
		Request:  template.Pattern{Pattern: requestPattern, Want: `write a package such as "left-pad@1.3.0"; URLs, paths and aliases are not supported yet`},
		Step:     `write a package such as "typescript@5.6.3"`,
		Examples: []any{[]string{"left-pad@1.3.0", "@scope/name@^2"}},
		Scripts: &template.Names{
			Key:      "npm_scripts",
			About:    "Names of npm packages whose install scripts run as they are installed (native add-ons among them), in a sandbox without network.",
			Name:     template.Pattern{Pattern: packagePattern, Want: `write a package's name only, for example "bcrypt"`},
			Examples: []any{[]string{"bcrypt"}},
		},
	}
}

// CheckHandler implements image.HandlerChecker. With packages, one of them may have the module.
func (Runtime) CheckHandler(t *template.Template, code image.CodeFiles) error {
	at := strings.LastIndexByte(t.Handler, '.')
	if at < 0 || !t.Packages.Of("npm").None() {
		return nil
	}
	return code.CheckModule(t.Handler, path.Clean(t.Handler[:at]), ".js", ".cjs", ".mjs", ".json", ".node")
}

// Messages implements image.Speaking. Node aborts when its heap, limited by --max-old-space-size, is
// full, and says so only in the function's log.
func (Runtime) Messages() image.Messages {
	return image.Messages{
		Missing: `Cannot find (?:module|package) '([^'\s]+)'`, Threads: `\bspawn\b.* EAGAIN`, Memory: `JavaScript heap out of memory`,
		Aborted: func(args []string) string {
			for _, arg := range args {
				if size, ok := strings.CutPrefix(arg, "--max-old-space-size="); ok {
					return fmt.Sprintf("Node aborts when the heap of %s MiB is full; if the function's log shows a full heap, raise resources.memory in fret.yaml", size)
				}
			}
			return ""
		},
	}
}

// Packaging implements image.Packaged.
func (Site) Packaging() image.Packaging {
	return image.Packaging{
		Metadata: []string{"**/package.json"}, Addons: []string{".node"},
		Kinds: []string{"npm"}, Type: "npm",
	}
}
