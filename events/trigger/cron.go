package trigger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/image"
)

// Marks keep, over restarts, until when a schedule was seen to: *events.Service.
type Marks interface {
	Mark(ctx context.Context, name string) (time.Time, error) // zero where there is none
	SetMark(ctx context.Context, name string, t time.Time) error
}

const (
	// cronEvery is how often schedules are looked at: no finer than minutes, they need no
	// timer of their own.
	cronEvery = time.Second
	// cronLate is how much later than its time an event is still on time: what is later was
	// missed.
	cronLate = time.Minute
)

// schedule is one cron trigger that is deployed.
type schedule struct {
	function, trigger string
	cron              *image.Cron
	times             *image.Schedule
	mark              string
	last              time.Time // seen to
}

// Cron makes the events of schedules until ctx ends. A time's event has the same key
// whoever makes it, so that several nodes, or an engine that died in between, make one.
func (s *Set) Cron(ctx context.Context, marks Marks) {
	tick := time.NewTicker(cronEvery)
	defer tick.Stop()
	all := map[string]*schedule{}
	var seen uint64
	for first := true; ; first = false {
		var changed uint64
		if s.cfg.Changed != nil {
			changed = s.cfg.Changed()
		}
		if first || s.cfg.Changed == nil || changed != seen {
			all, seen = s.schedules(all), changed
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

// schedules are those of the functions as they are now; of before are taken over.
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
				times, err := image.ParseSchedule(t.Cron.Schedule, t.Cron.Zone)
				if err != nil { // an engine before this one took it, or the time zone is gone
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

// due makes the event of the last time that has come, if it is not seen to.
func (s *Set) due(ctx context.Context, marks Marks, c *schedule) error {
	now := s.cfg.Now().Round(0) // the clock on the wall: the other one stands still while the machine sleeps
	if c.last.IsZero() {
		last, err := marks.Mark(ctx, c.mark)
		if err != nil {
			return err
		}
		if last.IsZero() { // deployed just now
			if err := marks.SetMark(ctx, c.mark, now); err != nil {
				return err
			}
			last = now
		}
		c.last = last
	}
	at := latest(c.times, c.last, now)
	if at.IsZero() {
		return nil
	}
	// Another node may have seen to it, whose clock need not be this one's.
	if last, err := marks.Mark(ctx, c.mark); err != nil || !last.Before(at) {
		if err == nil {
			c.last = last
		}
		return err
	}
	if now.Sub(at) < cronLate || c.cron.Missed == "once" {
		body := []byte(c.cron.Body)
		r := &engine.Request{
			Method: http.MethodPost, Path: c.cron.Path, Body: bytes.NewReader(body), Size: int64(len(body)),
			Header: [][2]string{{"X-Fre-Cron-Time", at.Format(time.RFC3339)}},
		}
		o := events.Options{Key: "cron\x00" + c.mark + "\x00" + at.UTC().Format(time.RFC3339), Source: "cron/" + c.trigger, Repeated: true}
		_, err := s.cfg.Events.Publish(ctx, c.function, r, o)
		var refused *events.RefusedError
		switch {
		case errors.As(err, &refused) && refused.RetryAfter == 0:
			s.cfg.Log.WarnContext(ctx, "cron: time makes no event", "function", c.function, "trigger", c.trigger, "time", at, "error", err)
		case err != nil:
			return err
		}
	}
	if err := marks.SetMark(ctx, c.mark, at); err != nil {
		return err
	}
	c.last = at
	return nil
}

// latest is the schedule's last time after one and up to another, zero if there is none.
func latest(s *image.Schedule, after, until time.Time) time.Time {
	// Backwards in steps that grow, until one is found or nothing is left.
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
