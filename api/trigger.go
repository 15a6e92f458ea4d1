package api

import "time"

// Trigger is what makes events for a function, as its template declares it.
type Trigger struct {
	Function string     `json:"function"`
	Tenant   string     `json:"tenant"`
	Name     string     `json:"name"`
	Kind     string     `json:"kind"`           // webhook, cron, cloudevents, nats, files
	Detail   string     `json:"detail"`         // of a hook its path and signature, of cron its schedule and time zone, of nats subject and stream, of files their pattern
	Next     *time.Time `json:"next,omitempty"` // when cron makes its next event
}
