package events

import (
	"cmp"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
)

// The function gets the headers of a message, except the engine's own headers and headers that HTTP
// cannot hold.
func TestMessageOf(t *testing.T) {
	m := messageOf("a.b", nats.Header{
		"X-Kind": {"k"}, "x-fre-event-attempt": {"9"}, "X-CALL-ID": {"i"}, "Fre-Id": {"x"}, "a b": {"x"}, "": {"x"}, "Content-Length": {"7"},
		"X-Line": {"one\r\nX-Two: 2"}, "Nats-Msg-Id": {"id"},
	}, []byte("body"))
	slices.SortFunc(m.Header, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
	want := [][2]string{{"Nats-Msg-Id", "id"}, {"X-Kind", "k"}, {"X-Line", "one  X-Two: 2"}}
	if !slices.Equal(m.Header, want) || m.Key != "id" || m.Subject != "a.b" || string(m.Body) != "body" {
		t.Errorf("message %+v, want header %q", m, want)
	}
}

// TestSubjects: A tenant may subscribe to its own subjects and to configured ones, never to those
// of the server or the engine.
func TestSubjects(t *testing.T) {
	allow := Subjects{"acme": {"orders.>", "stock.*.new"}}
	if err := allow.Check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tenant, subject string
		ok              bool
	}{
		{"acme", "fre.in.acme.a", true},
		{"acme", "fre.in.acme.>", true},
		{"acme", "fre.in.acme", false},
		{"acme", "fre.in.other.a", false},
		{"acme", "fre.in.*.a", false},
		{"acme", "fre.in.>", false},
		{"acme", "fre.>", false},
		{"acme", "fre.events.acme.high.f", false},
		{"acme", "fre.results.>", false},
		{"acme", "orders.a.b", true},
		{"acme", "orders.*", true},
		{"acme", "orders.>", true},
		{"acme", "orders", false},
		{"acme", "stock.a.new", true},
		{"acme", "stock.*.new", true},
		{"acme", "stock.>", false},
		{"acme", "stock.a.*", false},
		{"other", "orders.a", false},
		{"acme", "$JS.API.>", false},
		{"acme", "$SYS.>", false},
		{"acme", "_INBOX.>", false},
	} {
		if err := allow.Allow(c.tenant, c.subject); (err == nil) != c.ok {
			t.Errorf("%s of tenant %s: %v, want allowed %v", c.subject, c.tenant, err, c.ok)
		}
	}
	for _, bad := range []string{"", ">", "*", "*.a", "a..b", "a.>.b", "a b", "a*", "fre.>", "fre.events.>", "fre", "$JS.>", "$SYS.>", "$KV.x.>", "_INBOX.>"} {
		if err := (Subjects{"acme": {bad}}).Check(); err == nil {
			t.Errorf("%q can be allowed", bad)
		}
	}
}
