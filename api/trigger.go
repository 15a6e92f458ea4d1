package api

import "time"

// Trigger is a source of events for a function, declared in the function's template.
type Trigger struct {
	Function string     `json:"function"`
	Tenant   string     `json:"tenant"`
	Name     string     `json:"name"`
	Kind     string     `json:"kind"`           // webhook, cron, cloudevents, nats, files
	Detail   string     `json:"detail"`         // webhook: path and signature; cron: schedule and time zone; nats: subject and stream; files: pattern
	Next     *time.Time `json:"next,omitempty"` // cron: time of the next event
}
