// Package admission decides whether an engine short of memory accepts more work. Only work that
// needs memory for bodies asks. A refusal is immediate: a request that waits for memory holds
// other resources meanwhile and makes the shortage worse.
//
//	normal ── short of memory, or slow waits in a row ──→ degraded
//	degraded ── after Every ──→ probing
//	probing ── at a look, memory is free and no wait was slow ──→ recovering
//	recovering ── one step more of the work at each look ──→ normal
//	recovering ── short again ──→ degraded
//
// Degraded and probing admit no work. Recovering admits a growing part.
package admission

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fre-engine/fre/failure"
)

// State is the state of a [Controller].
type State int

// The states, in their order.
const (
	Normal State = iota
	Degraded
	Probing
	Recovering
)

// States lists all states.
var States = []State{Normal, Degraded, Probing, Recovering}

func (s State) String() string {
	switch s {
	case Normal:
		return "normal"
	case Degraded:
		return "degraded"
	case Probing:
		return "probing"
	case Recovering:
		return "recovering"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Reason says why a Controller left Normal.
type Reason string

// The reasons of a Controller.
const (
	Memory Reason = "memory" // less than MinFree was free
	Waits  Reason = "waits"  // SlowWait was exceeded Config.Waits times in a row
)

// ErrRefused is wrapped by every *[RefusedError].
var ErrRefused = failure.New(failure.Degraded, "the engine is short of memory for bodies", "")

// RefusedError says why work was refused and when to ask again.
type RefusedError struct {
	State  State
	Reason Reason
	Retry  time.Duration // the earliest time to ask again
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v (%s: %s)", ErrRefused, e.State, e.Reason)
}
func (e *RefusedError) Unwrap() error { return ErrRefused }

// Config of a Controller. Free is required. A zero value means the documented default.
type Config struct {
	Free     func() (free, all int64) // bytes of memory for bodies; called with the lock held
	MinFree  float64                  // free part of the memory needed to stay normal; default 0.05. Twice as much ends a probe
	SlowWait time.Duration            // a longer wait for memory is slow; default 200 ms
	Waits    int                      // slow waits in a row that degrade the state; default 3
	Every    time.Duration            // time between two looks while the state is not Normal; default 200 ms
	Steps    int                      // steps of recovery; default 4

	Now     func() time.Time                     // default time.Now
	Changed func(from, to State, because Reason) // called with the lock held; may be nil
}

// Check returns an error if a field is out of range.
func (c Config) Check() error {
	switch {
	case c.MinFree < 0 || c.MinFree > 0.5:
		return fmt.Errorf("min_free: %v %% is not between 0 and 50", c.MinFree*100)
	case c.SlowWait < 0 || c.Every < 0 || c.Waits < 0:
		return errors.New("a time or a number is negative")
	case c.Steps < 0 || c.Steps > 100:
		return fmt.Errorf("steps: %d is not between 1 and 100", c.Steps)
	}
	return nil
}

// Controller holds the state. It is safe for use by several goroutines.
type Controller struct {
	cfg  Config
	wake chan struct{}

	mu       sync.Mutex
	state    State
	reason   Reason
	since    time.Time // time of the last change of state
	at       time.Time // time of the last look
	slow     int       // slow waits in a row
	slowAt   time.Time // time of the last slow wait
	step     int       // of recovery: step of every Steps+1 requests are admitted
	asked    int       // requests in this step
	admitted int
}

// New returns a Controller in state Normal.
func New(cfg Config) *Controller {
	if cfg.MinFree == 0 {
		cfg.MinFree = 0.05
	}
	if cfg.SlowWait == 0 {
		cfg.SlowWait = 200 * time.Millisecond
	}
	if cfg.Waits == 0 {
		cfg.Waits = 3
	}
	if cfg.Every == 0 {
		cfg.Every = 200 * time.Millisecond
	}
	if cfg.Steps == 0 {
		cfg.Steps = 4
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Controller{cfg: cfg, wake: make(chan struct{}, 1), since: cfg.Now()}
}

// Every returns the time between two looks.
func (c *Controller) Every() time.Duration { return c.cfg.Every }

// State returns the state and, unless the state is Normal, the reason.
func (c *Controller) State() (State, Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.reason
}

// Since returns the state, the reason, and when the state began.
func (c *Controller) Since() (State, Reason, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.reason, c.since
}

// Admit returns nil if work that needs memory may go on, or a *[RefusedError].
func (c *Controller) Admit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (c.state == Normal || c.state == Recovering) && !c.freeLocked(c.cfg.MinFree) {
		c.degradeLocked(Memory)
	}
	switch c.state {
	case Normal:
		return nil
	case Recovering:
		c.asked++
		if c.admitted*(c.cfg.Steps+1) < c.asked*c.step {
			c.admitted++
			return nil
		}
	case Degraded, Probing:
	}
	return &RefusedError{State: c.state, Reason: c.reason, Retry: c.cfg.Every}
}

// Waited records how long a request has waited for memory, also a wait without success.
func (c *Controller) Waited(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d <= c.cfg.SlowWait {
		c.slow = 0
		return
	}
	c.slow++
	c.slowAt = c.cfg.Now()
	if c.slow >= c.cfg.Waits && (c.state == Normal || c.state == Recovering) {
		c.degradeLocked(Waits)
	}
}

// Look moves to the next state when due. Look does nothing until Every has passed since the last
// look. The owner calls Look while the state is not Normal: see [Controller.Unsettled].
func (c *Controller) Look() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	if c.state == Normal || now.Sub(c.at) < c.cfg.Every {
		return c.state
	}
	since := c.at
	c.at = now
	switch c.state {
	case Normal:
	case Degraded:
		c.toLocked(Probing)
	case Probing:
		if c.freeLocked(2*c.cfg.MinFree) && !c.slowAt.After(since) {
			c.slow, c.asked, c.admitted, c.step = 0, 0, 0, 1
			c.toLocked(Recovering)
		}
	case Recovering:
		if !c.freeLocked(c.cfg.MinFree) {
			c.degradeLocked(Memory)
		} else if c.step++; c.step > c.cfg.Steps {
			c.toLocked(Normal)
			c.reason = ""
		} else {
			c.asked, c.admitted = 0, 0
		}
	}
	return c.state
}

// Unsettled receives once after the state has left Normal.
func (c *Controller) Unsettled() <-chan struct{} { return c.wake }

func (c *Controller) freeLocked(part float64) bool {
	free, all := c.cfg.Free()
	return float64(free) >= part*float64(all)
}

func (c *Controller) degradeLocked(because Reason) {
	c.reason, c.at = because, c.cfg.Now()
	c.toLocked(Degraded)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Controller) toLocked(s State) {
	from := c.state
	c.state, c.since = s, c.cfg.Now()
	if c.cfg.Changed != nil {
		c.cfg.Changed(from, s, c.reason)
	}
}
