package node

import (
	"fmt"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/awslambda"
	"github.com/fre-engine/fre/runtimes/httpserver"
	"github.com/fre-engine/fre/template"
)

// Contract has the bootstrap call Lambda handlers (lambda.js), and has the adapter start the
// servers of the Functions Framework and Knative's runtime.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	switch c {
	case template.ContractFRE:
		return r
	case template.ContractLambda:
		return lambdaRuntime{r}
	case template.ContractFramework:
		return server(r, "@google-cloud/functions-framework", "build/src/main.js", func(file, export string) []string {
			return []string{"--port=$PORT", "--source=" + file, "--target=" + export}
		})
	case template.ContractKnative:
		return server(r, "faas-js-runtime", "bin/cli.js", func(file, _ string) []string { return []string{"--port=$PORT", file} })
	}
	return nil
}

// lambdaRuntime is the runtime for Lambda handlers.
type lambdaRuntime struct{ Runtime }

// Command adds Lambda's environment.
func (r lambdaRuntime) Command(t *template.Template) (args, env []string, err error) {
	args, env, err = r.Runtime.Command(t)
	return args, append(env, awslambda.Environment(t)...), err
}

// server is the runtime for functions that a package's program serves. arguments returns the
// program's arguments for a handler's file and export.
func server(r Runtime, pkg, program string, arguments func(file, export string) []string) image.Runtime {
	return httpserver.Adapted{Runtime: r, Contract: template.ContractHTTP, Words: func(t *template.Template) (words, env []string, err error) {
		if _, _, err := r.Command(t); err != nil { // the handler has the usual form
			return nil, nil, err
		}
		if t.Packages.Of("npm").None() {
			return nil, nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf(
				"the contract %s needs a package: add %s to packages.npm", t.Contract, pkg)}
		}
		dot := strings.LastIndexByte(t.Handler, '.')
		args := append([]string{"node"}, options(t)...)
		return append(append(args, "/node_modules/"+pkg+"/"+program), arguments("/function/"+t.Handler[:dot]+".js", t.Handler[dot+1:])...), []string{"NODE_ENV=production"}, nil
	}}
}
