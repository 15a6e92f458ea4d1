package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fre-engine/fre/engine"
)

// The headers of messages. A body is the message's own, or a file below [Config.Dir].
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

// message is an event, or what became of it, as it travels.
type message struct {
	Entry
	method, path, query string
	fields              [][2]string // of the event or, in a result, of the answer
	callback            string
	body                []byte
	file                string // has the body instead, if not ""
	lost                bool   // neither has it: of a dead letter

	stream string // that it was read from, where it has ended
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
	set(headMethod, m.method)
	set(headPath, m.path)
	set(headQuery, m.query)
	set(headCallback, m.callback)
	set(headPriority, string(m.Priority))
	set(headAccepted, strconv.FormatInt(m.Accepted.UnixMicro(), 10))
	if len(m.fields) > 0 {
		fields, err := json.Marshal(m.fields)
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

// maxError bounds what is kept of an error, in bytes.
const maxError = 1000

// oneLine is s as a header can hold it.
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

// decode reads what encode wrote; others can write into streams too. The tenant comes
// from the subject.
func decode(subject string, h nats.Header, data []byte) (*message, error) {
	get := func(name string) string {
		if v := h[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	m := &message{
		Entry:  Entry{ID: get(headID), Function: get(headFunction), Source: get(headSource), Priority: Priority(get(headPriority)), State: StateQueued, Error: get(headError), Size: int64(len(data))},
		method: get(headMethod), path: get(headPath), query: get(headQuery), callback: get(headCallback), body: data, file: get(headBodyFile),
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
		if err := json.Unmarshal([]byte(f), &m.fields); err != nil {
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

// request is the event for the engine.
func (m *message) request() *engine.Request {
	return &engine.Request{Method: m.method, Path: m.path, Query: m.query, Header: m.fields}
}

// token is a function's part of subjects: tenant and name are apart there.
func token(function, tenant string) string {
	return strings.ReplaceAll(strings.TrimSuffix(function, "."+tenant), ".", "_")
}

func queueSubject(tenant string, p Priority, function string) string {
	return "fre.events." + tenant + "." + string(p) + "." + token(function, tenant)
}

// endSubject is that of what has become of an event; of all tenants' and functions' for "".
func endSubject(word, tenant, function, id string) string {
	return "fre." + word + "." + cmp.Or(tenant, "*") + "." + cmp.Or(token(function, tenant), "*") + "." + id
}
