package template

import (
	"cmp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Contract says how a function's code is called and how it answers (docs/contracts.md).
type Contract string

// The contracts.
const (
	ContractFRE       Contract = "fre"                 // handle(event, context), or the channel protocol
	ContractLambda    Contract = "lambda"              // AWS Lambda's handlers and runtime interface clients
	ContractASGI      Contract = "asgi"                // an ASGI application
	ContractWSGI      Contract = "wsgi"                // a WSGI application
	ContractFramework Contract = "functions-framework" // Google's Functions Framework
	ContractKnative   Contract = "knative"             // Knative's functions
	ContractHTTP      Contract = "http"                // an HTTP server: the runtime http
	ContractCGI       Contract = "cgi"                 // a program for each event, by RFC 3875
	ContractStdio     Contract = "stdio"               // a program for each sandbox, the body on stdin
)

// Contracts returns all contracts.
func Contracts() []Contract {
	return []Contract{
		ContractFRE, ContractLambda, ContractASGI, ContractWSGI, ContractFramework, ContractKnative, ContractHTTP, ContractCGI, ContractStdio,
	}
}

// Lambda says what the handler of a function with the contract lambda receives.
type Lambda struct {
	Event LambdaEvent // default body
}

// LambdaEvent says which part of a request is the event.
type LambdaEvent string

// The values of LambdaEvent.
const (
	LambdaBody LambdaEvent = "body" // the body, as JSON; the handler's result is the answer's body
	LambdaHTTP LambdaEvent = "http" // request and answer in payload format 2.0 of API Gateway and function URLs
)

// setContract sets the fields that the contract implies, and the contract that other fields imply.
func (t *Template) setContract(dialect *Dialect) {
	if only := dialect.implied(t.Contract); t.Runtime == "" && only != nil && (only.Anywhere || t.ForeignBase()) {
		t.Runtime = only.Name
	}
	if t.Runtime == "" && !t.ForeignBase() {
		t.Runtime = BaseName(t.Base)
	}
	native := t.Runtime == runtimeNative
	if t.Instances.Isolation == "" {
		t.Instances.Isolation = IsolationInstance
		if native && (t.Contract == "" || t.Contract == ContractStdio) {
			t.Instances.Isolation = IsolationEvent
		}
	}
	switch {
	case t.Contract != "":
	case t.Runtime == runtimeHTTP:
		t.Contract = ContractHTTP
	case native && t.Instances.Isolation == IsolationEvent:
		t.Contract = ContractStdio
	default:
		t.Contract = ContractFRE
	}
	if t.Contract == ContractLambda {
		t.Lambda.Event = cmp.Or(t.Lambda.Event, LambdaBody)
	}
	runtime := dialect.runtime(t.Runtime)
	if runtime == nil {
		return
	}
	t.Handler = cmp.Or(t.Handler, runtime.Handlers[t.Contract])
	if runtime.Dotted != nil && t.Contract != ContractFRE {
		t.Handler = runtime.Dotted(t.Handler)
	}
}

// contractRelations checks the contract against other fields.
func (d *decoder) contractRelations(t *Template, fail func(path, format string, args ...any)) {
	in := t.Instances
	if _, ok := d.at["lambda"]; ok && t.Contract != ContractLambda {
		fail("lambda", "lambda is for the contract lambda, but the template's contract is %s", t.Contract)
	}
	if t.Contract == ContractStdio && in.Isolation != IsolationEvent {
		fail("instances.isolation", `the contract stdio starts a program for each sandbox: instances.isolation must be "event"; cgi starts a program for each event`)
	}
	if t.Contract == ContractFRE && t.Runtime == runtimeNative && in.Isolation == IsolationEvent {
		fail("contract", `a native program with the contract fre speaks the channel's protocol and is reused: set instances.isolation to "instance", or the contract to stdio`)
	}
	// Lambda's runtime interface clients handle one event at a time.
	if r := d.dialect.runtime(t.Runtime); t.Contract == ContractLambda && in.Concurrency > 1 && (r == nil || slices.Contains(r.Serial, t.Contract)) {
		fail("instances.concurrency", "instances.concurrency must be 1: a Lambda runtime interface client handles one event at a time")
	}
}

func (d *decoder) contract(dst *Contract) value {
	return value{object{{"enum", Contracts()}}, func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		if !slices.Contains(Contracts(), Contract(s)) {
			names := make([]string, len(Contracts()))
			for i, c := range Contracts() {
				names[i] = string(c)
			}
			d.errorf(n, "contract %q is not known: the contracts are %s", s, strings.Join(names, ", "))
			return
		}
		*dst = Contract(s)
	}}
}
