package gateway

import (
	"encoding/json"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
)

// errorOf returns the answer to a request that err ended. The codes of the control API are
// internal for callers of functions.
func errorOf(err error) *api.Error {
	failed := api.ErrorOf(err)
	if failed.Code.OfControl() {
		failed = api.ErrorOf(failure.Wrap(failure.Internal, err, ""))
	}
	return failed
}

// errorBody returns the body of every error of the gateway.
func errorBody(failed *api.Error) []byte {
	b, err := json.Marshal(api.ErrorBody{Error: failed})
	if err != nil { // impossible with strings
		b = []byte(`{"error":{"code":"internal"}}`)
	}
	return append(b, '\n')
}
