package engine

import "github.com/fre-engine/fre/engine/live"

// instanceState is where an instance is in its life. From every state the sandbox's end leads to
// exited.
//
//	starting ──booted──▶ serving ──drained──▶ draining ──stopped──▶ stopping ──▶ exited
//	   │                                          ▲
//	   └────drained──▶ unwanted ──booted──────────┘
type instanceState int

const (
	instanceStarting instanceState = iota // boots
	instanceUnwanted                      // boots, and takes no event once it has booted
	instanceServing                       // takes events
	instanceDraining                      // takes no further event, and is to stop after its last
	instanceStopping                      // was asked to end, and is killed after stopGrace
	instanceExited
)

// instanceStep is a cause of the next state.
type instanceStep int

const (
	stepBooted  instanceStep = iota // the instance is ready for events
	stepDrained                     // the instance gets no further event
	stepStopped                     // the instance is asked to end
	stepExited                      // the sandbox has ended, or did not start
)

// instanceSteps has the state that follows from each step in each state.
var instanceSteps = [...][4]instanceState{
	instanceStarting: {stepBooted: instanceServing, stepDrained: instanceUnwanted, stepStopped: instanceUnwanted, stepExited: instanceExited},
	instanceUnwanted: {stepBooted: instanceDraining, stepDrained: instanceUnwanted, stepStopped: instanceUnwanted, stepExited: instanceExited},
	instanceServing:  {stepBooted: instanceServing, stepDrained: instanceDraining, stepStopped: instanceStopping, stepExited: instanceExited},
	instanceDraining: {stepBooted: instanceDraining, stepDrained: instanceDraining, stepStopped: instanceStopping, stepExited: instanceExited},
	instanceStopping: {stepBooted: instanceStopping, stepDrained: instanceStopping, stepStopped: instanceStopping, stepExited: instanceExited},
	instanceExited:   {stepBooted: instanceExited, stepDrained: instanceExited, stepStopped: instanceExited, stepExited: instanceExited},
}

// stepLocked makes a step and reports whether it has changed the state. Nothing else changes the
// state.
func (in *instance) stepLocked(step instanceStep) bool {
	before := in.state
	in.state = instanceSteps[before][step]
	return in.state != before
}

// shownLocked returns the state as lists show it.
func (in *instance) shownLocked() live.State {
	switch in.state {
	case instanceStarting, instanceUnwanted:
		return live.StateStarting
	case instanceServing, instanceDraining:
		if in.inflight > 0 {
			return live.StateBusy
		}
		return live.StateIdle
	case instanceStopping:
		return live.StateStopping
	case instanceExited:
	}
	return live.StateExited
}
