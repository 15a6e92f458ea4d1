// Package awslambda holds the environment variables of AWS Lambda
// (docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html) for the runtimes that run
// functions of the contract lambda.
package awslambda

import (
	"fmt"

	"github.com/fre-engine/fre/template"
)

// Region and Account stand in names of functions. FRE has neither, but clients refuse to start
// without them.
const (
	Region  = "us-east-1"
	Account = "000000000000"
)

// Environment returns the variables for handlers and runtime interface clients. The bootstraps and
// the adapter consume FRE_CONTRACT and FRE_LAMBDA_EVENT.
func Environment(t *template.Template) []string {
	return []string{
		"FRE_CONTRACT=lambda", "FRE_LAMBDA_EVENT=" + string(t.Lambda.Event),
		"_HANDLER=" + t.Handler, "LAMBDA_TASK_ROOT=/function", "LAMBDA_RUNTIME_DIR=/opt/fre",
		"AWS_LAMBDA_FUNCTION_NAME=" + t.ID, "AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", t.Resources.MemoryBytes>>20),
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + t.ID, "AWS_LAMBDA_LOG_STREAM_NAME=" + t.Version,
		"AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_REGION=" + Region, "AWS_DEFAULT_REGION=" + Region,
	}
}
