package java

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Describe implements image.Described. Lambda's runtime interface client handles one event at a time.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Handler: "Class.method (default Handler.handle)",
		Handlers: map[template.Contract]string{
			template.ContractFRE: "Handler.handle", template.ContractLambda: "example.Handler::handleRequest", template.ContractFramework: "Function",
		},
		Serial: []template.Contract{template.ContractLambda},
	}
}

var requestPattern = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*:[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_\[(][A-Za-z0-9_.+,()\[\]-]*(@bom|:[A-Za-z0-9_][A-Za-z0-9_.-]*)?|::[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)

// Syntax implements image.Site.
func (Site) Syntax() template.Site {
	return template.Site{
		About:    "Jars from Maven repositories with what they need: GROUP:ARTIFACT:VERSION, or GROUP:ARTIFACT where a GROUP:ARTIFACT:VERSION@bom says the version. A jar with a classifier is GROUP:ARTIFACT:VERSION:CLASSIFIER, or GROUP:ARTIFACT::CLASSIFIER. Needs the base java. A string names a file below the template's directory: pom.xml. Without it, a function whose code is a Maven project has what its own pom.xml asks for.",
		Request:  template.Pattern{Pattern: requestPattern, Want: `write "group:artifact:version" or "group:artifact:version:classifier", or "group:artifact" with a "group:artifact:version@bom" that says the version`},
		Examples: []any{[]string{"com.fasterxml.jackson.core:jackson-databind:2.17.2"}},
	}
}

// CheckHandler implements image.HandlerChecker.
func (Runtime) CheckHandler(t *template.Template, code image.CodeFiles) error {
	if t.Contract == template.ContractLambda || t.Contract == template.ContractFramework {
		class, _, _ := strings.Cut(t.Handler, "::")
		return checkClass(t, code, class)
	}
	at := strings.LastIndexByte(t.Handler, '.')
	if at < 0 {
		return nil
	}
	return checkClass(t, code, t.Handler[:at])
}

// checkClass requires the handler's class in the code or its jars, unless a package may have it.
// Each jar must be a valid zip archive.
func checkClass(t *template.Template, code image.CodeFiles, class string) error {
	class = strings.ReplaceAll(class, ".", "/") + ".class"
	found := code.Has(class)
	for _, name := range code.Regular() {
		dir := path.Dir(name)
		if path.Ext(name) != ".jar" || dir != "." && dir != "lib" {
			continue
		}
		names, err := code.ZipNames(name)
		if err != nil {
			return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s in the code is not a valid jar (%s): build the jar again, or list the jar in .freignore", name, err)}
		}
		if slices.Contains(names, "BOOT-INF/classes/"+class) {
			return image.HandlerFault(t.Handler, "%s is a Spring Boot jar with the class below BOOT-INF: use the plain jar (.jar.original), and list dependencies in packages.maven", name)
		}
		found = found || slices.Contains(names, class)
	}
	if found || !t.Packages.Of("maven").None() {
		return nil
	}
	return image.HandlerFault(t.Handler, "no %s in the code or jars: add the class, or name an existing class (found: %s)", class, code.Top())
}

// Messages implements image.Speaking. A JVM reports a thread that cannot start as an
// OutOfMemoryError.
func (Runtime) Messages() image.Messages {
	return image.Messages{
		Missing: `(?:ClassNotFoundException|NoClassDefFoundError): (?:Could not initialize class )?([\w./$]+)`,
		Threads: `unable to create (?:new )?native thread`, Memory: `OutOfMemoryError`,
	}
}

// Packaging implements image.Packaged.
func (Site) Packaging() image.Packaging {
	return image.Packaging{
		Kinds: []string{"maven"}, Type: "maven",
		URLName: func(name string) string { return strings.Replace(name, ":", "/", 1) },
	}
}
