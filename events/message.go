package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// Headers of messages. The body is the message's data, or a file below [Config.Dir].
const (
	headID       = "Fre-Id"
	headFunction = "Fre-Function"
	headSource   = "Fre-Source"
	headMethod   = "Fre-Method"
	headPath     = "Fre-Path"
	headQuery    = "Fre-Query"
	headFields   = "Fre-Fields" // JSON: [[name, value], …]
	headCallback = "Fre-Callback"
	headBodyFile = "Fre-Body-File" // name below bodies/
	headBodySize = "Fre-Body-Size"
	headAccepted = "Fre-Accepted"
	headPriority = "Fre-Priority"

	headState    = "Fre-State"
	headStatus   = "Fre-Status"
	headAttempts = "Fre-Attempts"
	headError    = "Fre-Error"
)

// message is an event, a result or a dead letter, as NATS carries it.
type message struct {
	Entry
	request  engine.Request // without Body; in a result, Headers are the answer's
	callback string
	body     []byte
	file     string // has the body if not ""
	lost     bool   // the body of a dead letter was not kept

	stream string // from which a result or a dead letter was read
}

// encode makes the message for a subject.
func (m *message) encode(subject string) (*nats.Msg, error) {
	msg := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: m.body}
	set := func(name, value string) {
		if value != "" {
			msg.Header[name] = []string{value}
		}
	}
	set(headID, m.ID)
	set(headFunction, m.Function)
	set(headSource, m.Source)
	set(headMethod, m.request.Method)
	set(headPath, m.request.Path)
	set(headQuery, m.request.Query)
	set(headCallback, m.callback)
	set(headPriority, string(m.Priority))
	set(headAccepted, strconv.FormatInt(m.Accepted.UnixMicro(), 10))
	if len(m.request.Headers) > 0 {
		fields, err := json.Marshal(m.request.Headers)
		if err != nil {
			return nil, err
		}
		set(headFields, string(fields))
	}
	if m.file != "" {
		set(headBodyFile, m.file)
	}
	if m.file != "" || m.lost {
		set(headBodySize, strconv.FormatInt(m.Size, 10))
	}
	if m.State != StateQueued {
		set(headState, string(m.State))
		set(headStatus, strconv.Itoa(m.Status))
		set(headAttempts, strconv.Itoa(m.Attempts))
		set(headError, oneLine(m.Error))
	}
	return msg, nil
}

// maxError bounds the text kept of an error, in bytes.
const maxError = 1000

// oneLine returns s as a header value: at most about maxError bytes, without control characters.
func oneLine(s string) string {
	if len(s) > maxError {
		s = strings.ToValidUTF8(s[:maxError], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// decode reads a message made by encode. Other clients can write into the streams too; for their
// messages decode returns ErrBadEvent. The tenant comes from the subject.
func decode(subject string, h nats.Header, data []byte) (*message, error) {
	get := func(name string) string {
		if v := h[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	m := &message{
		Entry:    Entry{ID: get(headID), Function: get(headFunction), Source: get(headSource), Priority: Priority(get(headPriority)), State: StateQueued, Error: get(headError), Size: int64(len(data))},
		request:  engine.Request{Method: get(headMethod), Path: get(headPath), Query: get(headQuery)},
		callback: get(headCallback), body: data, file: get(headBodyFile),
	}
	parts := strings.Split(subject, ".")
	if len(parts) < 4 || parts[0] != "fre" {
		return nil, fmt.Errorf("%w: subject %q", ErrBadEvent, subject)
	}
	m.Tenant = parts[2]
	if !validID(m.ID) {
		return nil, fmt.Errorf("%w: %s is %q", ErrBadEvent, headID, m.ID)
	}
	if f := get(headFields); f != "" {
		if err := json.Unmarshal([]byte(f), &m.request.Headers); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrBadEvent, headFields, err)
		}
	}
	if m.file != "" && !validFile(m.file) {
		return nil, fmt.Errorf("%w: %s is %q", ErrBadEvent, headBodyFile, m.file)
	}
	var err error
	number := func(name string) (n int64) {
		if v := get(name); v != "" && err == nil {
			if n, err = strconv.ParseInt(v, 10, 64); err != nil {
				err = fmt.Errorf("%w: %s: %w", ErrBadEvent, name, err)
			}
		}
		return n
	}
	if m.lost = m.file == "" && get(headBodySize) != ""; m.file != "" || m.lost {
		m.Size = number(headBodySize)
	}
	m.Accepted = time.UnixMicro(number(headAccepted)).UTC()
	m.Status, m.Attempts = int(number(headStatus)), int(number(headAttempts))
	if s := get(headState); s != "" {
		m.State = State(s)
	}
	return m, err
}

// filePattern matches the name of a body's file: the event's id, and whose body the file has.
var filePattern = regexp.MustCompile(`^[0-9a-f]{32}\.(event|result)$`)

func validFile(name string) bool { return filePattern.MatchString(name) }

// idOf returns the id of the event to which a body's file belongs.
func idOf(name string) string {
	id, _, _ := strings.Cut(name, ".")
	return id
}

// token returns a function's token in subjects: the name without the tenant, dots replaced.
func token(function, tenant string) string {
	return strings.ReplaceAll(strings.TrimSuffix(function, "."+tenant), ".", "_")
}

func queueSubject(tenant string, p Priority, function string) string {
	return "fre.events." + tenant + "." + string(p) + "." + token(function, tenant)
}

// queueKey identifies a consumer: the waiting events of one function at one priority.
type queueKey struct {
	tenant   string
	priority Priority
	function string // qualified name
}

func (k queueKey) subject() string { return queueSubject(k.tenant, k.priority, k.function) }

// keyOf returns tenant, priority and function from the subject of a queue.
func keyOf(subject string) (Entry, bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || weights[Priority(parts[3])] == 0 {
		return Entry{}, false
	}
	return Entry{Tenant: parts[2], Priority: Priority(parts[3]), Function: functionOf(parts[2], parts[4])}, true
}

// functionOf returns the qualified name of the function that a token in a tenant's subjects means.
func functionOf(tenant, token string) string {
	return template.QualifiedName(strings.ReplaceAll(token, "_", "."), tenant)
}

// endSubject returns the subject of an event's result, dead letter or order. A tenant or function
// of "" matches all.
func endSubject(word, tenant, function, id string) string {
	return "fre." + word + "." + cmp.Or(tenant, "*") + "." + cmp.Or(token(function, tenant), "*") + "." + id
}
