package template

import (
	"errors"
	"fmt"
	"net/textproto"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/goccy/go-yaml/ast"

	"github.com/fre-engine/fre/internal/glob"
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

// triggerFields is the table of one trigger's keys.
func (d *decoder) triggerFields(t *Trigger) []field {
	w, c, e := &Webhook{Tolerance: 5 * time.Minute}, &Cron{Zone: "UTC", Missed: "skip", Path: "/"}, &CloudEvents{}
	m, f := &NATS{}, &Files{}
	return []field{
		{key: "name", required: true, value: d.text(&t.Name, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash"), about: "Unique in the template."},
		d.set("webhook", func() { t.Webhook = w }, field{below: d.webhookFields(w), about: "Requests to /hooks/FUNCTION/NAME that are signed.", more: object{
			{"if", properties(object{{"signature", object{{"const", "none"}}}})},
			{"then", object{{"not", required("secret")[0]}}},
			{"else", required("secret")[0]},
		}}),
		d.set("cron", func() { t.Cron = c }, field{below: d.cronFields(c), about: "An event at times of day."}),
		d.set("cloudevents", func() { t.CloudEvents = e }, field{below: d.cloudEventsFields(e), about: "CloudEvents by HTTP to /hooks/FUNCTION/NAME: binary, structured, batches."}),
		d.set("nats", func() { t.NATS = m }, field{
			below: d.natsFields(m),
			about: "Messages that others publish to subjects of NATS, below fre.in.TENANT or as the engine's configuration allows.",
			more:  object{{"not", object{{"required", []string{"stream", "queue"}}}}},
		}),
		d.set("files", func() { t.Files = f }, field{about: "Files that are put into /work, each once it is complete.", below: []field{
			{
				key: "path", required: true, value: d.text(&f.Path, filesPattern, "a pattern of paths below /work such as inbox/*.csv"), more: object{{"maxLength", maxFilesPath}},
				about: "A pattern of paths below /work, ** for any number of directories.", examples: []any{"inbox/*.csv"},
			},
		}}),
	}
}

func (d *decoder) webhookFields(w *Webhook) []field {
	return []field{
		{
			key: "signature", required: true, value: oneOf(d, &w.Signature, "github", "gitlab", "gitee", "stripe", "hmac", "none"),
			about: "Whose way of signing it is; hmac: HMAC-SHA256 of the body, in hexadecimal digits or base64.",
		},
		{key: "secret", value: d.text(&w.Secret, namePattern, "the name of a secret of the tenant's"), about: "Name of the tenant's secret."},
		{
			key: "header", value: d.text(&w.Header, fieldNamePattern, "the name of a header field"),
			about: "Of hmac: the field that holds the signature; X-Signature-256 unless it is given.",
		},
		{
			key: "timestamp", value: d.text(&w.Timestamp, fieldNamePattern, "the name of a header field"),
			about: "Of hmac: the field that holds the time in seconds, which is signed before the body, with a dot between.",
		},
		{key: "tolerance", value: measure(d, &w.Tolerance, durations, minTolerance, maxTolerance), about: "How far a signed time may be from the engine's. 1s to 24h.", def: "5m"},
		{
			key: "key", value: d.text(&w.Key, keyPattern, `the name of a header field such as X-GitHub-Delivery, or a JSON pointer into the body such as "/id"`),
			about: "What tells a sender's retries from other events: a header field, or a JSON pointer (RFC 6901) into the body.", examples: []any{"/id", "X-GitHub-Delivery"},
		},
		{key: "paths", value: d.strings(&w.Paths, globs()), about: "Patterns of what follows the name in the path; other requests are ignored."},
		{
			key: "headers", value: d.strings(&w.Headers, unbounded(requirement(headerPattern, `write a field and a pattern of its value, such as "X-GitHub-Event: push"`))),
			about: "Fields and patterns of their values, each name of which must match; other requests are ignored.", examples: []any{[]string{"X-GitHub-Event: push"}},
		},
	}
}

// globs is a list of patterns without spaces.
func globs() item {
	return unbounded(requirement(globPattern, "write a pattern without spaces, for example com.example.*"))
}

// unbounded leaves the length out of the schema, because the pattern has it.
func unbounded(of item) item {
	of.schema = slices.DeleteFunc(of.schema, func(m member) bool { return m.key == "maxLength" })
	return of
}

func (d *decoder) cronFields(c *Cron) []field {
	return []field{
		{
			key: "schedule", required: true, value: d.text(&c.Schedule, schedulePattern, `five fields (minute hour day month weekday) such as "30 4 * * 1-5", or @daily`),
			about: "Minute, hour, day of month, month, weekday, as crontab(5) of Debian has them; or @hourly, @daily, @weekly, @monthly, @yearly.",
			more:  object{{"pattern", `^[ \t]*(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[0-9A-Za-z*/,-]+([ \t]+[0-9A-Za-z*/,-]+){4})[ \t]*$`}}, examples: []any{"30 4 * * 1-5"},
		},
		{key: "zone", value: d.text(&c.Zone, zonePattern, "a time zone such as Europe/Berlin"), about: "A time zone of the IANA database.", def: "UTC"},
		{key: "missed", value: oneOf(d, &c.Missed, "skip", "once"), about: "Of times when no engine ran: skip them, or make up for the last of them once.", def: "skip"},
		{key: "path", value: d.text(&c.Path, readyPattern, "the path of an event, such as /nightly"), about: "The event's path.", def: "/"},
		{key: "body", value: d.text(&c.Body, bodyPattern, "text of at most 1,000 characters"), about: "The event's body."},
	}
}

func (d *decoder) cloudEventsFields(e *CloudEvents) []field {
	return []field{
		{key: "token", value: d.text(&e.Token, namePattern, "the name of a secret of the tenant's"), about: "Name of the tenant's secret that requests have as their bearer token."},
		{key: "types", value: d.strings(&e.Types, globs()), about: "Patterns of the types that are taken; others are ignored."},
		{key: "sources", value: d.strings(&e.Sources, globs()), about: "Patterns of the sources that are taken; others are ignored."},
	}
}

func (d *decoder) natsFields(m *NATS) []field {
	return []field{
		{
			key: "subject", required: true, value: d.text(&m.Subject, subjectPattern, "a subject, for example orders.> or orders.*.new, not beginning with a wildcard"),
			about: "* stands for one token but for the first, > for the rest.", examples: []any{"orders.>"},
		},
		{
			key: "stream", value: d.text(&m.Stream, streamPattern, "the name of a stream, such as ORDERS"),
			about: "The stream that has them: each message is an event once at least. Without it messages are taken as they pass.",
		},
		{key: "queue", value: d.text(&m.Queue, streamPattern, "the name of a queue group"), about: "The queue group whose members share the messages, without a stream."},
	}
}

// triggers reads the list.
func (d *decoder) triggers(dst *[]Trigger) value {
	schema := mappingSchema(d.triggerFields(&Trigger{})).with("oneOf", required("webhook", "cron", "cloudevents", "nats", "files"))
	return value{object{{"type", "array"}, {"maxItems", maxTriggers}, {"items", schema}}, func(n ast.Node, path string) {
		list, ok := n.(*ast.SequenceNode)
		switch {
		case !ok:
			d.errorf(n, "%s must be a list, not %s", path, describe(n))
			return
		case len(list.Values) > maxTriggers:
			d.errorf(n, "%s has %d entries: the limit is %d", path, len(list.Values), maxTriggers)
			return
		}
		names := map[string]bool{}
		for i, v := range list.Values {
			at := fmt.Sprintf("%s[%d]", path, i)
			d.at[at] = nodePosition(v)
			m, ok := v.(ast.MapNode)
			if !ok {
				d.errorf(v, "%s must be a mapping with keys such as name, webhook, cron, not %s", at, describe(v))
				continue
			}
			before := len(d.errs)
			var t Trigger
			d.mapping(m, at, d.triggerFields(&t))
			if len(d.errs) > before {
				continue
			}
			if names[t.Name] {
				d.errorf(v, "%s: a second trigger of the name %q", at, t.Name)
			}
			names[t.Name] = true
			if err := t.check(); err != nil {
				d.errorf(v, "%s: %s", at, err)
				continue
			}
			*dst = append(*dst, t)
		}
	}}
}

// check checks the fields of a trigger against each other.
func (t *Trigger) check() error {
	kinds := 0
	for _, there := range []bool{t.Webhook != nil, t.Cron != nil, t.CloudEvents != nil, t.NATS != nil, t.Files != nil} {
		if there {
			kinds++
		}
	}
	if kinds != 1 {
		return errors.New("a trigger needs webhook, cron, cloudevents, nats or files, and only a single kind")
	}
	if w := t.Webhook; w != nil {
		switch {
		case w.Signature != "none" && w.Secret == "":
			return fmt.Errorf("the signature %s needs a secret", w.Signature)
		case w.Signature == "none" && w.Secret != "":
			return errors.New(`the signature "none" uses no secret`)
		case w.Signature != "hmac" && (w.Header != "" || w.Timestamp != ""):
			return errors.New("header and timestamp are for the signature hmac")
		}
		for _, h := range w.Headers {
			_, glob, _ := strings.Cut(h, ": ")
			if _, err := path.Match(glob, ""); err != nil {
				return fmt.Errorf("bad pattern %q: %w", glob, err)
			}
		}
		return checkGlobs(w.Paths)
	}
	if c := t.Cron; c != nil {
		_, err := ParseSchedule(c.Schedule, c.Zone)
		return err
	}
	if n := t.NATS; n != nil {
		if n.Stream != "" && n.Queue != "" {
			return errors.New("a stream's messages are shared without a queue")
		}
		return nil
	}
	if f := t.Files; f != nil {
		if len(f.Path) > maxFilesPath {
			return fmt.Errorf("the pattern of files has more than %d bytes", maxFilesPath)
		}
		if slices.ContainsFunc(strings.Split(f.Path, "/"), func(s string) bool { return s == "." || s == ".." }) {
			return fmt.Errorf("bad pattern %q: must stay below /work", f.Path)
		}
		_, err := glob.Parse(f.Path)
		return err
	}
	return errors.Join(checkGlobs(t.CloudEvents.Types), checkGlobs(t.CloudEvents.Sources))
}

func checkGlobs(globs []string) error {
	for _, g := range globs {
		if _, err := path.Match(g, ""); err != nil {
			return fmt.Errorf("bad pattern %q: %w", g, err)
		}
	}
	return nil
}

// FieldFilter splits a filter of [Webhook.Headers] into a field's canonical name and a glob.
func FieldFilter(s string) (name, glob string) {
	name, glob, _ = strings.Cut(s, ": ")
	return textproto.CanonicalMIMEHeaderKey(name), glob
}
