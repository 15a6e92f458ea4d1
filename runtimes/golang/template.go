package golang

import "github.com/fre-engine/fre/template"

// Describe implements image.Described. Lambda's runtime interface client handles one event at a time.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Handlers:   map[template.Contract]string{template.ContractFRE: "Handle", template.ContractLambda: "main", template.ContractKnative: "Handle"},
		Serial:     []template.Contract{template.ContractLambda},
		Connection: true,
	}
}
