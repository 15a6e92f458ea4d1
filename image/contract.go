package image

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/template"
)

// Contracted is a Runtime that also runs functions of contracts beside [template.ContractFRE].
type Contracted interface {
	Runtime

	// Contract returns the Runtime for functions of a contract, or nil.
	Contract(c template.Contract) Runtime
}

// ofContract returns the Runtime for functions of a contract, or nil. A Runtime that is not
// Contracted runs fre.
func ofContract(r Runtime, c template.Contract) Runtime {
	if other, ok := r.(Contracted); ok {
		return other.Contract(cmp.Or(c, template.ContractFRE))
	}
	if c == "" || c == template.ContractFRE {
		return r
	}
	return nil
}

// CheckTemplate is the second step of reading a template. It compares the template with the
// available bases, runtimes and package sites, sets the base that the runtime implies, and has the
// runtime check the handler. Faults are [template.Errors]. A pipeline has none of these fields.
func CheckTemplate(t *template.Template, bases []Base, runtimes []Runtime, sites []Site) error {
	if len(t.Pipeline) > 0 {
		return nil
	}
	runtime, err := checkRuntime(t, bases, runtimes)
	if err != nil {
		return t.Fault(err)
	}
	for _, site := range sites {
		requests, field := t.Packages.Of(site.Name()), "packages."+site.Name()
		if requests.None() {
			continue
		}
		if want := site.Bases(); want != nil && !t.ForeignBase() && !slices.Contains(want, template.BaseName(t.Base)) {
			return t.Fault(&template.FieldError{Field: field, Message: fmt.Sprintf("%s needs the base %s, but the template's base is %s", field, strings.Join(want, " or "), t.Base)})
		}
	}
	_, _, err = runtime.Command(t)
	return t.Fault(err)
}

func checkRuntime(t *template.Template, bases []Base, runtimes []Runtime) (Runtime, error) {
	if t.Runtime == "" {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("missing key \"runtime\": the base %s does not imply a runtime; name a runtime, for example %s", t.Base, runtimes[0].Name())}
	}
	i := slices.IndexFunc(runtimes, func(r Runtime) bool { return r.Name() == t.Runtime })
	if i < 0 && template.BaseName(t.Base) != t.Runtime {
		names := make([]string, len(runtimes))
		for i, r := range runtimes {
			names[i] = r.Name()
		}
		slices.Sort(names)
		return nil, &template.FieldError{Field: "runtime", Message: fmt.Sprintf("runtime %q is not known: the runtimes are %s", t.Runtime, strings.Join(names, ", "))}
	}
	if i >= 0 && t.Base == "" {
		t.Base = runtimes[i].Bases()[0]
	}
	if i >= 0 && t.ForeignBase() {
		return checkContract(t, runtimes[i], runtimes)
	}
	if !slices.ContainsFunc(bases, func(b Base) bool { return b.Name == template.BaseName(t.Base) }) {
		names := make([]string, len(bases))
		for i, b := range bases {
			names[i] = b.Name
		}
		slices.Sort(names)
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("base %q is not known: the bases are %s", t.Base, strings.Join(names, ", "))}
	}
	if i < 0 {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("the base %s implies no runtime: name a runtime in runtime", t.Base)}
	}
	if of := runtimes[i].Bases(); !slices.Contains(of, template.BaseName(t.Base)) && !slices.Contains(of, AnyBase) {
		return nil, &template.FieldError{Field: "base", Message: fmt.Sprintf("the runtime %s needs the base %s, but the template's base is %s", t.Runtime, strings.Join(of, " or "), t.Base)}
	}
	return checkContract(t, runtimes[i], runtimes)
}

// checkContract returns the variant of r for the template's contract.
func checkContract(t *template.Template, r Runtime, runtimes []Runtime) (Runtime, error) {
	if of := ofContract(r, t.Contract); of != nil {
		return of, nil
	}
	var names, contracts []string
	for _, other := range runtimes {
		if ofContract(other, t.Contract) != nil {
			names = append(names, other.Name())
		}
	}
	for _, c := range template.Contracts() {
		if ofContract(r, c) != nil {
			contracts = append(contracts, string(c))
		}
	}
	slices.Sort(names)
	return nil, &template.FieldError{Field: "contract", Message: fmt.Sprintf("the contract %s is for the runtime %s: the template's runtime %s has the contracts %s",
		t.Contract, strings.Join(names, ", "), t.Runtime, strings.Join(contracts, ", "))}
}
