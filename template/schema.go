package template

import (
	"bytes"
	"encoding/json"
	"slices"
)

func definitions() object {
	return object{
		{"file", patternSchema(pathPattern).with("not", belowTop)},
		{"size", object{
			{"type", []string{"integer", "string"}},
			{"maximum", maxMemory},
			{"pattern", `^[0-9]{1,15}(\.[0-9]{1,6})? ?(B|[KMGT]i?B?|kB)?$`},
			{"examples", []string{"128MiB", "64M", "1GiB"}},
		}},
		{"duration", object{
			{"type", "string"},
			{"pattern", `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`},
			{"examples", []string{"30s", "5m", "1h30m"}},
		}},
	}
}

// Schema returns the JSON Schema (2020-12) of templates, made from the parser's table of keys.
func (dialect *Dialect) Schema() ([]byte, error) {
	d := decoder{source: &source{}, dialect: dialect}
	top := mappingSchema(d.fields(&Template{}))
	schema := object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", "urn:fre-engine:fret.yaml"},
		{"title", "FRE function template"},
		{"description", "fret.yaml: what a function is made of and how it is run."},
	}
	schema = append(schema, top...)
	schema = append(schema,
		member{"anyOf", required("base", "runtime", "pipeline")},
		member{"allOf", dialect.rules(d.fields(&Template{}))},
		member{"$defs", definitions()})
	text, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err = enc.Encode(json.RawMessage(text))
	return out.Bytes(), err
}

// mappingSchema returns the members of a mapping with the given keys.
func mappingSchema(fields []field) object {
	o := object{{"type", "object"}, {"additionalProperties", false}}
	var properties object
	var must []string
	for _, f := range fields {
		properties = append(properties, member{f.key, f.schema()})
		if f.required {
			must = append(must, f.key)
		}
	}
	if must != nil {
		o = append(o, member{"required", must})
	}
	return append(o, member{"properties", properties})
}

func (f *field) schema() object {
	var o object
	if f.about != "" {
		o = object{{"description", f.about}}
	}
	o = append(o, f.value.schema...)
	if f.below != nil && !slices.ContainsFunc(f.value.schema, func(m member) bool { return m.key == "items" }) {
		for _, m := range mappingSchema(f.below) {
			if !slices.ContainsFunc(o, func(have member) bool { return have.key == m.key }) {
				o = append(o, m)
			}
		}
	}
	for _, m := range f.more {
		o = o.with(m.key, m.value)
	}
	if f.def != nil {
		o = append(o, member{"default", f.def})
	}
	if f.examples != nil {
		o = append(o, member{"examples", f.examples})
	}
	return o
}

// runtimeIs is the condition that the template's runtime is one of the names, also if the base
// implies the runtime.
func (dialect *Dialect) runtimeIs(names ...string) object {
	list := []object{oneIs("runtime", names...)}
	if bases := dialect.implying(names); len(bases) > 0 {
		list = append(list, object{
			{"required", []string{"base"}}, {"not", required("runtime")[0]}, {"properties", object{{"base", object{{"pattern", basesPattern(bases, false)}}}}},
		})
	}
	return anyOf(list...)
}

// implying returns the bases that imply one of the runtimes.
func (dialect *Dialect) implying(runtimes []string) []string {
	return slices.DeleteFunc(slices.Clone(runtimes), func(name string) bool { return !slices.Contains(dialect.Bases, name) })
}

var (
	isolationInstance = object{{"required", []string{"instances"}}, {"properties", object{{"instances", oneIs("isolation", string(IsolationInstance))}}}}
	isolationEvent    = object{{"required", []string{"instances"}}, {"properties", object{{"instances", oneIs("isolation", string(IsolationEvent))}}}}
	oneEvent          = properties(object{{"instances", properties(object{{"concurrency", object{{"const", 1}}}})}})
)

// rules are the relations between keys that a schema can express.
func (dialect *Dialect) rules(top []field) []object {
	pipeline := object{}
	for _, f := range top {
		if !slices.Contains(ofPipelines, f.key) {
			pipeline = append(pipeline, member{f.key, false})
		}
	}
	pipeline = append(pipeline, member{"resources", object{{"propertyNames", object{{"const", "timeout"}}}}})
	var implying []string
	for _, c := range Contracts() {
		if dialect.implied(c) != nil {
			implying = append(implying, string(c))
		}
	}
	rules := []object{
		rule(required("pipeline")[0], properties(pipeline)),
		rule(object{{"required", []string{"base"}}, {"properties", object{{"base", object{{"pattern", "^" + foreignKinds}}}}}},
			anyOf(required("runtime")[0], oneIs("contract", implying...))),
	}
	rules = append(rules, dialect.contractRules()...)
	rules = append(rules, dialect.baseRules()...)
	return append(rules,
		rule(anyOf(oneIs("runtime", runtimeHTTP), oneIs("contract", string(ContractHTTP))), required("handler")[0]).with("else", object{{"not", required("http")[0]}}),
		rule(dialect.runtimeIs(runtimeNative), object{
			{"required", []string{"handler"}},
			{"anyOf", []object{
				oneIs("contract", string(ContractFRE), string(ContractLambda), string(ContractHTTP), string(ContractCGI)),
				isolationInstance, oneEvent,
			}},
		}),
		rule(isolationEvent, oneEvent),
		dialect.connectionRule(),
	)
}

// contractRules say which runtimes have which contracts.
func (dialect *Dialect) contractRules() []object {
	var rules []object
	for _, c := range Contracts() {
		if c == ContractFRE {
			continue
		}
		is := oneIs("contract", string(c))
		names := dialect.having(c)
		var then object
		switch only := dialect.implied(c); {
		case c == ContractHTTP:
			then = properties(object{{"runtime", object{{"const", runtimeHTTP}}}})
			rules = append(rules, rule(oneIs("runtime", runtimeHTTP), properties(object{{"contract", object{{"const", ContractHTTP}}}})))
		case only != nil && only.Anywhere:
			then = object{{"required", []string{"handler"}}, {"properties", object{{"runtime", object{{"const", only.Name}}}}}}
		case only != nil:
			then = properties(object{{"runtime", object{{"const", only.Name}}}, {"base", object{{"pattern", basesPattern(only.Bases, true)}}}})
		default:
			then = object{
				{"properties", object{{"runtime", object{{"enum", names}}}}},
				{"anyOf", []object{required("runtime")[0], properties(object{{"base", object{{"pattern", basesPattern(dialect.implying(names), false)}}}})}},
			}
		}
		r := rule(is, then)
		if c == ContractLambda {
			r = r.with("else", object{{"not", required("lambda")[0]}})
		}
		rules = append(rules, r)
		if serial := dialect.named(func(r *Runtime) bool { return slices.Contains(r.Serial, c) }); serial != nil {
			rules = append(rules, rule(append(is, dialect.runtimeIs(serial...)...), oneEvent))
		}
	}
	return append(rules,
		rule(oneIs("contract", string(ContractStdio)), properties(object{{"instances", properties(object{{"isolation", object{{"const", IsolationEvent}}}, {"concurrency", object{{"const", 1}}}})}})),
		rule(append(oneIs("contract", string(ContractFRE)), dialect.runtimeIs(runtimeNative)...), properties(object{{"instances", properties(object{{"isolation", object{{"const", IsolationInstance}}}})}})),
	)
}

// baseRules say which bases runtimes and package sites need.
func (dialect *Dialect) baseRules() []object {
	var rules []object
	for _, s := range dialect.Sites {
		if s.Bases != nil {
			rules = append(rules, object{
				{"if", properties(object{{"base", object{{"pattern", basesPattern(s.Bases, true)}}}})},
				{"else", properties(object{{"packages", properties(object{{s.Name, object{{"type", "array"}, {"maxItems", 0}}}})}})},
			})
		}
	}
	for _, r := range dialect.Runtimes {
		if !r.Anywhere {
			rules = append(rules, rule(oneIs("runtime", r.Name), properties(object{{"base", object{{"pattern", basesPattern(r.Bases, true)}}}})))
		}
	}
	return rules
}

// connectionRule says which functions network.lend_connection is for.
func (dialect *Dialect) connectionRule() object {
	var of []object
	for _, name := range dialect.named(func(r *Runtime) bool { return r.Connection }) {
		if name == runtimeNative {
			of = append(of, append(dialect.runtimeIs(name), isolationInstance...))
			continue
		}
		of = append(of, dialect.runtimeIs(name))
	}
	lent := object{{"type", "object"}, {"required", []string{"lend_connection"}}, {"properties", object{{"lend_connection", object{{"const", true}}}}}}
	return rule(object{{"required", []string{"network"}}, {"properties", object{{"network", lent}}}},
		object{{"properties", object{{"contract", object{{"const", ContractFRE}}}}}, {"anyOf", of}})
}
