package template

import (
	"net/textproto"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// Trigger makes events of requests, times, messages or files. Exactly one of its kinds is set.
type Trigger struct {
	Name        string       `json:"name"` // unique in the template
	Webhook     *Webhook     `json:"webhook,omitempty"`
	Cron        *Cron        `json:"cron,omitempty"`
	CloudEvents *CloudEvents `json:"cloudevents,omitempty"`
	NATS        *NATS        `json:"nats,omitempty"`
	Files       *Files       `json:"files,omitempty"`
}

// Kind returns the name of the trigger's kind, as in lists.
func (t *Trigger) Kind() string {
	switch {
	case t.Webhook != nil:
		return "webhook"
	case t.Cron != nil:
		return "cron"
	case t.NATS != nil:
		return "nats"
	case t.Files != nil:
		return "files"
	}
	return "cloudevents"
}

// SecretName returns the name of the secret that authenticates requests, "" for none.
func (t *Trigger) SecretName() string {
	switch {
	case t.Webhook != nil:
		return t.Webhook.Secret
	case t.CloudEvents != nil:
		return t.CloudEvents.Token
	}
	return ""
}

// Webhook accepts signed requests to /hooks/FUNCTION/NAME.
type Webhook struct {
	Signature string `json:"signature"` // "github", "gitlab", "gitee", "stripe", "hmac" or "none"
	// Secret is the name of the tenant's secret; required unless Signature is "none".
	Secret string `json:"secret,omitempty"`
	// Header, for hmac, is the field with the signature; default X-Signature-256.
	Header string `json:"header,omitempty"`
	// Timestamp, for hmac, is the field with the time in seconds, signed as TIME.BODY; "" for none.
	Timestamp string `json:"timestamp,omitempty"`
	// Tolerance is the largest difference between a signed time and now; default 5m.
	Tolerance time.Duration `json:"tolerance_ns"`
	// Key identifies retries: a field's name, or a JSON pointer into the body; "" for the
	// signature's key.
	Key string `json:"key,omitempty"`
	// Paths are globs of the path after the trigger's name; empty for all.
	Paths []string `json:"paths,omitempty"`
	// Headers are "Name: glob". One glob must match for each name; other requests are ignored.
	Headers []string `json:"headers,omitempty"`
}

// Cron makes an event at times of day.
type Cron struct {
	Schedule string `json:"schedule"` // five fields, or @hourly, @daily, @weekly, @monthly, @yearly: see Schedule
	Zone     string `json:"zone"`     // of the time zone database; default UTC
	// Missed, for times when no engine ran, is "skip" (default), or "once" for the last time.
	Missed string `json:"missed"`
	Path   string `json:"path"`           // of the event; default /
	Body   string `json:"body,omitempty"` // of the event
}

// CloudEvents accepts CloudEvents by HTTP at /hooks/FUNCTION/NAME.
type CloudEvents struct {
	// Token is the name of the tenant's secret that the bearer token must equal; "" for none.
	Token   string   `json:"token,omitempty"`
	Types   []string `json:"types,omitempty"`   // globs, empty for all; other events are ignored
	Sources []string `json:"sources,omitempty"` // globs, empty for all; other events are ignored
}

// NATS makes events of messages that other clients publish.
type NATS struct {
	Subject string `json:"subject"` // may end in >, and have * except as first token
	// Stream has the messages, for at-least-once delivery; "": messages as they are published.
	Stream string `json:"stream,omitempty"`
	// Queue, without Stream, is the queue group that shares the messages; default the trigger's
	// own.
	Queue string `json:"queue,omitempty"`
}

// Files makes events of files that appear in /work.
type Files struct {
	Path string `json:"path"` // glob below /work, ** for any number of directories
}

const maxTriggers = 64

// maxFilesPath bounds a pattern's length in bytes.
const maxFilesPath = 512

var (
	fieldNamePattern = lazyregexp.New(`^[A-Za-z][A-Za-z0-9-]{0,62}$`)
	keyPattern       = lazyregexp.New(`^([A-Za-z][A-Za-z0-9-]{0,62}|(/([^/~\x00-\x1f]|~[01]){1,100}){1,8})$`)
	headerPattern    = lazyregexp.New(`^[A-Za-z][A-Za-z0-9-]{0,62}: [^\x00-\x1f]{1,200}$`)
	globPattern      = lazyregexp.New(`^[!-~]{1,200}$`)
	schedulePattern  = lazyregexp.New(`^[ -~\t]{1,200}$`)
	zonePattern      = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_+/-]{0,63}$`)
	subjectPattern   = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.([A-Za-z0-9_-]{1,63}|\*)){0,15}(\.>)?$`)
	streamPattern    = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	filesPattern     = lazyregexp.New(`^[^/\x00-\x1f\x7f]+(/[^/\x00-\x1f\x7f]+)*$`)
	bodyPattern      = lazyregexp.New(`^[^\x00]{0,1000}$`)
)

// Next returns the schedule's first time after t.
func (c *Cron) Next(t time.Time) (time.Time, error) {
	s, err := ParseSchedule(c.Schedule, c.Zone)
	if err != nil {
		return time.Time{}, err
	}
	return s.Next(t), nil
}

// FieldFilter splits a filter of [Webhook.Headers] into a field's canonical name and a glob.
func FieldFilter(s string) (name, glob string) {
	name, glob, _ = strings.Cut(s, ": ")
	return textproto.CanonicalMIMEHeaderKey(name), glob
}
