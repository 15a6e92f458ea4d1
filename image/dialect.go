package image

import (
	"github.com/fre-engine/fre/template"
)

// Dialect returns the template language of bases, runtimes and package sites.
func Dialect(bases []Base, runtimes []Runtime, sites []Site) *template.Dialect {
	d := &template.Dialect{}
	for i := range bases {
		d.Bases = append(d.Bases, bases[i].Name)
	}
	for _, r := range runtimes {
		var of template.Runtime
		if described, ok := r.(Described); ok {
			of = described.Describe()
		}
		of.Name, of.Bases = r.Name(), r.Bases()
		if last := len(of.Bases) - 1; of.Bases[last] == AnyBase {
			of.Bases, of.Anywhere = of.Bases[:last], true
		}
		handlers := map[template.Contract]string{}
		for _, c := range template.Contracts() {
			if ofContract(r, c) != nil {
				handlers[c] = of.Handlers[c]
			}
		}
		of.Handlers = handlers
		d.Runtimes = append(d.Runtimes, of)
	}
	for _, s := range sites {
		of := s.Syntax()
		of.Name, of.Bases = s.Name(), s.Bases()
		d.Sites = append(d.Sites, of)
	}
	return d
}
