package events

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
)

// FuzzMessage: The service refuses a foreign message, or reads an event that names only files of
// the bodies. Written again, the event stays the same.
func FuzzMessage(f *testing.F) {
	f.Add("fre.events.acme.high.f", "0123456789abcdef0123456789abcdef", `[["A","b"]]`, "", "", "1700000000000000", "", "")
	f.Add("fre.results.acme.f.x", "0123456789abcdef0123456789abcdef", "", "0123456789abcdef0123456789abcdef.result", "7", "1", "done", "200")
	f.Add("fre.events.acme.high.f", "0123456789abcdef0123456789abcdef", "[]", "", "", "1", "", "5")
	f.Add("fre.events.acme.high.f", "0123456789abcdef0123456789abcdef", "[", "../x", "-1", "x", "?", "9999999999999999999")
	f.Fuzz(func(t *testing.T, subject, id, fields, file, size, accepted, state, status string) {
		h := nats.Header{
			headID: {id}, headFields: {fields}, headBodyFile: {file}, headBodySize: {size}, headAccepted: {accepted}, headState: {state}, headStatus: {status},
		}
		m, err := decode(subject, h, []byte("body"))
		if err != nil {
			return
		}
		if !validID(m.ID) || m.file != "" && !validFile(m.file) {
			t.Fatalf("id %q, file %q", m.ID, m.file)
		}
		if m.State == StateQueued {
			m.Status, m.Attempts = 0, 0 // a queued event has none yet
		}
		out, err := m.encode(subject)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(subject, out.Header, out.Data)
		if err != nil {
			t.Fatalf("written again: %v", err)
		}
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(message{}, Entry{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("written again (-first +again):\n%s", diff)
		}
	})
}
