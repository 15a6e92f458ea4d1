// Package awslambda is what runtimes share that run functions of the contract
// lambda: the environment of AWS Lambda's own
// (docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html).
package awslambda

import (
	"fmt"

	"github.com/fre-engine/fre/image"
)

// Region and Account stand in names of functions. There are none here, and clients
// refuse to start without.
const (
	Region  = "us-east-1"
	Account = "000000000000"
)

// Environment is what handlers and runtime interface clients find set. The bootstraps
// and the adapter take FRE_CONTRACT and FRE_LAMBDA_EVENT for themselves.
func Environment(t *image.Template) []string {
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
