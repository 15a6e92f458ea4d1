package sandbox

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// clock records the times of the steps of a start; nil records nothing. All times are of
// CLOCK_MONOTONIC, as are the times reported by the sandbox.
type clock struct {
	began int64
	marks []TraceStep
}

// TraceStep is a step of a start and the time of its completion, since the begin of the start.
type TraceStep struct {
	Name string
	Done time.Duration
}

func newClock(wanted bool) *clock {
	if !wanted {
		return nil
	}
	return &clock{began: monotonic()}
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails only for an unknown clock
	return ts.Nano()
}

func (c *clock) mark(name string) {
	if c != nil {
		c.marks = append(c.marks, TraceStep{name, time.Duration(monotonic() - c.began)})
	}
}

// sort orders the steps of both sides: the sandbox may finish a step before the engine records
// the message that caused it.
func (c *clock) sort() {
	if c != nil {
		slices.SortStableFunc(c.marks, func(a, b TraceStep) int { return cmp.Compare(a.Done, b.Done) })
	}
}

// add adds the times that the sandbox has recorded.
func (c *clock) add(r *traceReport) {
	if c == nil {
		return
	}
	for step, at := range r.Done {
		if at != 0 {
			c.marks = append(c.marks, TraceStep{Step(step).String(), time.Duration(int64(at) - c.began)})
		}
	}
}
