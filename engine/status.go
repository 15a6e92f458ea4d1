package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/sandbox"
)

// Status is the engine's load and health.
type Status struct {
	Started  time.Time
	Stopping bool

	State  admission.State // decides about events with need of memory for bodies
	Reason admission.Reason
	Since  time.Time // start of State

	Events, MostEvents int // under way, and the most allowed
	Waiting            int // for an engine slot; part of Events
	Queued             int // for an instance of the function
	Functions          int // deployed
	Busiest            []FunctionLoad

	Buffers   buffer.Stats
	Sandboxes int // live
	Parked    sandbox.ParkedStats
	Cgroups   int // in use and ready
}

// FunctionLoad is the load of one function.
type FunctionLoad struct {
	Name      string
	Instances int
	Busy      int // events with an instance
	Queued    int // events without an instance
	Waiting   int // the part of Busy without an engine slot
}

// busiest is how many functions Status lists.
const busiest = 10

// Status returns the present load.
func (e *Engine) Status() (Status, error) {
	held, err := e.Holdings()
	s := Status{
		Started: e.started, Stopping: e.Stopping(), MostEvents: e.slots.all, Buffers: held.Buffers,
		Sandboxes: held.Sandboxes, Cgroups: held.Cgroups, Parked: e.cfg.Sandboxes.Parked(),
	}
	s.State, s.Reason, s.Since = e.admission.Since()
	s.Events, s.Waiting = e.slots.count()
	s.Functions = len(*e.functions.Load())
	e.each(func(f *function) {
		f.mu.Lock()
		load := FunctionLoad{Name: f.name, Instances: len(f.instances), Busy: f.busy, Queued: f.waiters.Len()}
		f.mu.Unlock()
		load.Waiting = e.slots.waitingOf(&f.slots)
		s.Queued += load.Queued
		if load.Busy+load.Queued > 0 {
			s.Busiest = append(s.Busiest, load)
		}
	})
	slices.SortFunc(s.Busiest, func(a, b FunctionLoad) int {
		return cmp.Or(cmp.Compare(b.Busy+b.Queued, a.Busy+a.Queued), cmp.Compare(a.Name, b.Name))
	})
	s.Busiest = s.Busiest[:min(len(s.Busiest), busiest)]
	return s, err
}

// Holdings counts resources that the engine holds now.
type Holdings struct {
	Buffers   buffer.Stats
	Sandboxes int
	Cgroups   int // in use and ready
}

// Holdings returns the current counts.
func (e *Engine) Holdings() (Holdings, error) {
	groups, err := e.cfg.Sandboxes.Cgroups()
	return Holdings{Buffers: e.buffers.Stats(), Sandboxes: e.boxes.Len(), Cgroups: groups}, err
}

// CheckOptions configure [Engine.Checks].
type CheckOptions struct {
	Costs bool // also measure the cost of each feature; takes some tenths of a second
}

// Checks probes the host, the state directory and the engine's pools.
func (e *Engine) Checks(o CheckOptions) ([]Check, error) {
	memory, err := sandbox.HostMemory()
	if err != nil {
		return nil, err
	}
	checks := append(Checks(e.cfg.StateDir), checkPools(memory, e.cfg.BufferBytes, e.cfg.Interpreters.MemoryBytes, e.forks.left))
	if !o.Costs {
		return checks, nil
	}
	e.measuring.Lock() // two measurements at once would disturb each other
	defer e.measuring.Unlock()
	return checks, Measure(checks, e.cfg.StateDir)
}
