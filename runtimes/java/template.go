package java

import (
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
