package template

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
