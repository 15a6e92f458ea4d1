package java

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/httpserver"
	"github.com/fre-engine/fre/template"
)

// Contract has the adapter start the main class of Lambda's runtime interface client or of the
// Functions Framework.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	switch c {
	case template.ContractFRE:
		return r
	case template.ContractLambda:
		return started{httpserver.Adapted{Runtime: r, Contract: c, Words: lambdaWords}, r}
	case template.ContractFramework:
		return started{httpserver.Adapted{Runtime: r, Contract: template.ContractHTTP, Words: frameworkWords}, r}
	}
	return nil
}

// started is the runtime for functions that run in a separate JVM behind the adapter. It implements
// image.Project.
type started struct {
	httpserver.Adapted
	java Runtime
}

// Builds is as for any function.
func (s started) Builds(t *template.Template, files []string) (string, bool) {
	return s.java.Builds(t, files)
}

// BuildCode is as for any function.
func (s started) BuildCode(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock, source string) (string, error) {
	return s.java.BuildCode(ctx, step, t, lock, source)
}

// Requests are as for any function.
func (s started) Requests(code fs.FS) (site, file string, text []byte, err error) {
	return s.java.Requests(code)
}

// classPattern matches a class; for Lambda with a method after "::".
var classPattern = regexp.MustCompile(`^([\pL_$][\pL\pN_$]*\.)*[\pL_$][\pL\pN_$]*(::[\pL_$][\pL\pN_$]*)?$`)

// lambdaWords starts Lambda's runtime interface client.
func lambdaWords(t *template.Template) (words, env []string, err error) {
	if !classPattern.MatchString(t.Handler) {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not Class::method: write example.Handler::handleRequest, or example.Handler for a class with the interface RequestHandler", t.Handler)}
	}
	words, env = jvm(t)
	return append(words, "com.amazonaws.services.lambda.runtime.api.client.AWSLambda", t.Handler), env, nil
}

// frameworkWords starts the Functions Framework's invoker.
func frameworkWords(t *template.Template) (words, env []string, err error) {
	if !classPattern.MatchString(t.Handler) || strings.Contains(t.Handler, "::") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not a class: write example.Function for a class with HttpFunction or another interface of the framework", t.Handler)}
	}
	words, env = jvm(t)
	return append(words, "com.google.cloud.functions.invoker.runner.Invoker", "--port", "$PORT", "--target", t.Handler), env, nil
}

// jvm begins a command line with the function's classes and jars in the bootstrap's order.
func jvm(t *template.Template) (words, env []string) {
	words = []string{"java"}
	if !t.ForeignBase() {
		words[0] = "/" + home + "/bin/java"
		env = []string{"JAVA_HOME=/" + home}
	}
	words = append(append(words, options(t)...), "-cp", "/function:/function/*:/function/lib/*:/"+jars+"/*")
	return words, env
}
