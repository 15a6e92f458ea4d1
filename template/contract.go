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

// implied has the runtime of each contract with only one runtime.
var implied = map[Contract]string{
	ContractASGI: "python", ContractWSGI: "python", ContractHTTP: "http", ContractCGI: "native", ContractStdio: "native",
}

// Implied returns the runtime of a contract with only one runtime, "" for other contracts.
func Implied(c Contract) string { return implied[c] }

// contractHandlers are default handlers by contract and runtime.
var contractHandlers = map[Contract]map[string]string{
	ContractLambda:    {"python": "lambda_function.lambda_handler", "node": "index.handler", "java": "example.Handler::handleRequest", "go": "main"},
	ContractASGI:      {"python": "main.app"},
	ContractWSGI:      {"python": "main.app"},
	ContractFramework: {"python": "main.function", "node": "index.function", "java": "Function"},
	ContractKnative:   {"python": "function.new", "node": "index.handle", "go": "Handle"},
}

// setContract sets the fields that the contract implies, and the contract that other fields imply.
func (t *Template) setContract() {
	if t.Runtime == "" && (t.Contract == ContractHTTP || t.Contract == ContractCGI || t.Contract == ContractStdio || t.ForeignBase()) {
		t.Runtime = implied[t.Contract]
	}
	if t.Runtime == "" && !t.ForeignBase() {
		t.Runtime = BaseName(t.Base)
	}
	native := t.Runtime == "native"
	if t.Instances.Isolation == "" {
		t.Instances.Isolation = IsolationInstance
		if native && (t.Contract == "" || t.Contract == ContractStdio) {
			t.Instances.Isolation = IsolationEvent
		}
	}
	switch {
	case t.Contract != "":
	case t.Runtime == "http":
		t.Contract = ContractHTTP
	case native && t.Instances.Isolation == IsolationEvent:
		t.Contract = ContractStdio
	default:
		t.Contract = ContractFRE
	}
	if t.Contract == ContractLambda {
		t.Lambda.Event = cmp.Or(t.Lambda.Event, LambdaBody)
	}
	if t.Handler == "" {
		t.Handler = contractHandlers[t.Contract][t.Runtime]
		if t.Contract == ContractFRE {
			t.Handler = defaultHandlers[t.Runtime]
		}
	}
	if t.Runtime == "python" && t.Contract != ContractFRE {
		t.Handler = strings.NewReplacer(":", ".", "/", ".").Replace(t.Handler) // servers and Lambda write : or /
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
	if t.Contract == ContractFRE && t.Runtime == "native" && in.Isolation == IsolationEvent {
		fail("contract", `a native program with the contract fre speaks the channel's protocol and is reused: set instances.isolation to "instance", or the contract to stdio`)
	}
	// Lambda's runtime interface clients handle one event at a time.
	if t.Contract == ContractLambda && in.Concurrency > 1 && t.Runtime != "python" && t.Runtime != "node" {
		fail("instances.concurrency", "instances.concurrency must be 1: a Lambda runtime interface client handles one event at a time")
	}
}

func (d *decoder) contract(dst *Contract) func(ast.Node, string) {
	return func(n ast.Node, path string) {
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
	}
}

func (d *decoder) lambdaEvent(dst *LambdaEvent) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		switch e := LambdaEvent(s); e {
		case LambdaBody, LambdaHTTP:
			*dst = e
		default:
			d.errorf(n, `%s must be "body" or "http", not %q`, path, s)
		}
	}
}
