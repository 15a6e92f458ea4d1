package engine

import "testing"

// TestInstanceStates: an instance that was drained takes no event again, whatever comes after, and
// only the end of its sandbox leads out of stopping.
func TestInstanceStates(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []instanceStep
		want  instanceState
	}{
		{"starts", nil, instanceStarting},
		{"is ready", []instanceStep{stepBooted}, instanceServing},
		{"ends its last event", []instanceStep{stepBooted, stepDrained}, instanceDraining},
		{"is drained twice", []instanceStep{stepBooted, stepDrained, stepDrained}, instanceDraining},
		{"is drained before it is ready", []instanceStep{stepDrained}, instanceUnwanted},
		{"is ready too late", []instanceStep{stepDrained, stepBooted}, instanceDraining},
		{"stops after its last event", []instanceStep{stepBooted, stepDrained, stepStopped}, instanceStopping},
		{"stops at once", []instanceStep{stepBooted, stepStopped}, instanceStopping},
		{"is to stop before it is ready", []instanceStep{stepStopped}, instanceUnwanted},
		{"stays stopping", []instanceStep{stepBooted, stepStopped, stepBooted, stepDrained, stepStopped}, instanceStopping},
		{"does not start", []instanceStep{stepExited}, instanceExited},
		{"crashes", []instanceStep{stepBooted, stepExited}, instanceExited},
		{"stays exited", []instanceStep{stepBooted, stepExited, stepBooted, stepDrained, stepStopped}, instanceExited},
	} {
		in := &instance{}
		for _, step := range c.steps {
			in.stepLocked(step)
		}
		if in.state != c.want {
			t.Errorf("%s: after %v the state is %d, want %d", c.name, c.steps, in.state, c.want)
		}
	}
}
