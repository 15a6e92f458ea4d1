package cluster

import (
	"errors"
	"testing"

	"github.com/fre-engine/fre/engine"
)

// TestFault: the error of an event that failed on another node names the invocation.
func TestFault(t *testing.T) {
	for _, cause := range []error{engine.ErrTimeout, &engine.FunctionError{Type: "T", Message: "m"}, errors.New("other")} {
		got := engine.Failed(faultOf(&engine.InvocationError{ID: "1", Instance: "box", Err: cause}).err("b"))
		if got.ID != "1" || got.Instance != "box" || got.Err == nil {
			t.Errorf("%v: %+v", cause, got)
		}
		if got := engine.Failed(faultOf(cause).err("b")); got.ID != "" {
			t.Errorf("%v without an invocation: %+v", cause, got)
		}
	}
}
