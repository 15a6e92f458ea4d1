package engine

import (
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// TestLambdaName: a function of the contract lambda finds its deployed name in the environment, in
// a parked interpreter and in its own start. Other functions keep their variables.
func TestLambdaName(t *testing.T) {
	r := open(t)
	deploy := func(name string, contract template.Contract, parks bool) {
		r.deployInterpreted(name, "1", func(c *image.Config) {
			c.Contract = contract
			c.Env = append(c.Env, "AWS_LAMBDA_FUNCTION_NAME=template", "AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/template")
			if !parks {
				c.Parked = nil
			}
		})
	}
	deploy("parked", template.ContractLambda, true)
	deploy("alone", template.ContractLambda, false)
	deploy("other", template.ContractFRE, false)
	r.parked("parked", 1)
	for _, test := range []struct {
		function, want string
		parked         bool
	}{
		{"parked", "parked", true},
		{"alone", "alone", false},
		{"other", "template", false},
	} {
		got, resp, err := r.look(test.function, "env=AWS_LAMBDA_FUNCTION_NAME")
		if err != nil || got != test.want || (resp.StartKind == StartInterpreter) != test.parked {
			t.Errorf("%s: AWS_LAMBDA_FUNCTION_NAME is %q, %v, want %q: %+v", test.function, got, err, test.want, resp)
		}
		group, _, err := r.look(test.function, "env=AWS_LAMBDA_LOG_GROUP_NAME")
		if want := "/aws/lambda/" + test.want; err != nil || group != want {
			t.Errorf("%s: AWS_LAMBDA_LOG_GROUP_NAME is %q, %v, want %q", test.function, group, err, want)
		}
	}
}
