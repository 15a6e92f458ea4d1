package trigger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/template"
)

// Marks keeps, over restarts, the time up to which a schedule is done. *events.Service has it.
type Marks interface {
	Mark(ctx context.Context, name string) (time.Time, error) // zero for an unknown name
	SetMark(ctx context.Context, name string, t time.Time) error
}

const (
	// cronEvery is how often schedules are checked. Their resolution is a minute, so they need no
	// timers.
	cronEvery = time.Second
	// cronLate is how late an event may be made; after that the schedule's time was missed.
	cronLate = time.Minute
)

// schedule is one deployed cron trigger.
type schedule struct {
	function, trigger string
	cron              *template.Cron
	times             *template.Schedule
	mark              string
	last              time.Time // done up to this time
}

// Cron makes the events of schedules until ctx ends. The event of a time has the same key on each
// node and after a restart, so each time makes one event.
func (s *Set) Cron(ctx context.Context, marks Marks) {
	tick := time.NewTicker(cronEvery)
	defer tick.Stop()
	all := map[string]*schedule{}
	for changed := s.changes(); ; {
		if changed() {
			all = s.schedules(all)
		}
		for _, c := range all {
			if c.times == nil {
				continue
			}
			if err := s.due(ctx, marks, c); err != nil && ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "cron: tried again", "function", c.function, "trigger", c.trigger, "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// schedules returns the schedules of the deployed functions, and reuses the entries of before.
func (s *Set) schedules(before map[string]*schedule) map[string]*schedule {
	all := map[string]*schedule{}
	for _, f := range s.cfg.Engine.Functions() {
		for i := range f.Config.Triggers {
			t := &f.Config.Triggers[i]
			if t.Cron == nil {
				continue
			}
			sum := sha256.Sum256([]byte(t.Cron.Schedule + "\x00" + t.Cron.Zone))
			name := f.Name + "/" + t.Name + "/" + hex.EncodeToString(sum[:8])
			c := before[name]
			if c == nil {
				times, err := template.ParseSchedule(t.Cron.Schedule, t.Cron.Zone)
				if err != nil { // accepted by an earlier engine, or the time zone is gone
					s.cfg.Log.Warn("cron: trigger makes no events; deploy the function with another schedule", "function", f.Name, "trigger", t.Name, "error", err)
					times = nil
				}
				c = &schedule{function: f.Name, trigger: t.Name, mark: name, times: times}
			}
			c.cron = t.Cron
			all[name] = c
		}
	}
	return all
}

// due makes the event of the schedule's latest time, unless it is done.
func (s *Set) due(ctx context.Context, marks Marks, c *schedule) error {
	now := s.cfg.Now().Round(0) // wall clock only: the monotonic clock stops while the machine sleeps
	if c.last.IsZero() {
		if err := c.begin(ctx, marks, now); err != nil {
			return err
		}
	}
	at := latest(c.times, c.last, now)
	if at.IsZero() {
		return nil
	}
	// Another node, perhaps with another clock, may have made the event.
	if last, err := marks.Mark(ctx, c.mark); err != nil || !last.Before(at) {
		if err == nil {
			c.last = last
		}
		return err
	}
	if now.Sub(at) < cronLate || c.cron.Missed == "once" {
		if err := s.publishTime(ctx, c, at); err != nil {
			return err
		}
	}
	if err := marks.SetMark(ctx, c.mark, at); err != nil {
		return err
	}
	c.last = at
	return nil
}

// begin sets c.last, which is now for a trigger deployed just now.
func (c *schedule) begin(ctx context.Context, marks Marks, now time.Time) error {
	last, err := marks.Mark(ctx, c.mark)
	if err != nil {
		return err
	}
	if last.IsZero() {
		if err := marks.SetMark(ctx, c.mark, now); err != nil {
			return err
		}
		last = now
	}
	c.last = last
	return nil
}

// publishTime makes the event of a time. An event refused for good is no error.
func (s *Set) publishTime(ctx context.Context, c *schedule, at time.Time) error {
	body := []byte(c.cron.Body)
	r := &engine.Request{
		Method: "POST", Path: c.cron.Path, Body: bytes.NewReader(body), Length: int64(len(body)),
		Headers: [][2]string{{"X-Fre-Cron-Time", at.Format(time.RFC3339)}},
	}
	o := events.Options{Key: "cron\x00" + c.mark + "\x00" + at.UTC().Format(time.RFC3339), Source: "cron/" + c.trigger, Repeated: true}
	_, err := s.cfg.Events.Publish(ctx, c.function, r, o)
	if events.Final(err) {
		s.cfg.Log.WarnContext(ctx, "cron: time makes no event", "function", c.function, "trigger", c.trigger, "time", at, "error", err)
		return nil
	}
	return err
}

// latest returns the schedule's last time after after, at most until; zero if none.
func latest(s *template.Schedule, after, until time.Time) time.Time {
	// Search backwards in growing steps.
	for back := time.Hour; ; back *= 2 {
		from := until.Add(-back)
		if from.Before(after) {
			from = after
		}
		var found time.Time
		for t := s.Next(from); !t.IsZero() && !t.After(until); t = s.Next(t) {
			found = t
		}
		if !found.IsZero() || from.Equal(after) {
			return found
		}
	}
}
