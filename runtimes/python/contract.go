package python

import (
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/awslambda"
	"github.com/fre-engine/fre/template"
)

// Contract has the bootstrap call handlers of other contracts.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	switch c {
	case template.ContractFRE:
		return r
	case template.ContractLambda, template.ContractASGI, template.ContractWSGI, template.ContractFramework, template.ContractKnative:
		return contracted{r, c}
	}
	return nil
}

// contracted is the runtime for functions of another contract (_fre/contracts.py).
type contracted struct {
	Runtime
	contract template.Contract
}

// Command adds the contract to the environment.
func (c contracted) Command(t *template.Template) (args, env []string, err error) {
	args, env, err = c.Runtime.Command(t)
	if err != nil {
		return nil, nil, err
	}
	if c.contract == template.ContractLambda {
		return args, append(env, awslambda.Environment(t)...), nil
	}
	if c.contract == template.ContractFramework && t.Packages.Of("pip").None() {
		return nil, nil, &template.FieldError{Field: "packages.pip", Message: "the contract functions-framework needs the framework: add functions-framework to packages.pip"}
	}
	return args, append(env, "FRE_CONTRACT="+string(c.contract)), nil
}
