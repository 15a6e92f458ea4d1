package events

import (
	"bytes"
	"io"
)

// Details are an event and its stored data.
type Details struct {
	Entry
	Method, Path, Query string
	Header              [][2]string // of the event
	Callback            string

	ResultHeader [][2]string
	Result       bool // whether Body is the result, and not the event's body
	body         []byte
	file         string
	bodies       *bodies
}

// Body opens the body of the result or, without a result, of the event. The caller closes it.
func (d *Details) Body() (io.ReadCloser, error) {
	if d.file != "" {
		return d.bodies.open(d.file)
	}
	return io.NopCloser(bytes.NewReader(d.body)), nil
}

func newDetails(e Entry, m *message, b *bodies) *Details {
	return &Details{
		Entry: e, Method: m.request.Method, Path: m.request.Path, Query: m.request.Query, Header: m.request.Headers, Callback: m.callback,
		body: m.body, file: m.file, bodies: b,
	}
}
