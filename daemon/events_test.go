package daemon

import (
	"strings"
	"testing"

	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/template"
)

// A deployment is refused if its trigger could never get a message.
func TestCheckTriggers(t *testing.T) {
	reached := events.Config{Listen: "127.0.0.1:4222", Subjects: events.Subjects{"acme": {"orders.>"}}}
	for _, c := range []struct {
		name, tenant, subject, queue, wrong string
		cfg                                 Config
	}{
		{"its own", "acme", "fre.in.acme.x", "", "", Config{Events: reached}},
		{"configured", "acme", "orders.new", "", "", Config{Events: reached}},
		{"of a cluster", "acme", "fre.in.acme.x", "", "", Config{Events: events.Config{URL: "nats://a"}}},
		{"another's", "default", "orders.new", "", "triggers[1].nats: tenant default may not", Config{Events: reached}},
		{"nobody publishes", "acme", "fre.in.acme.x", "", "triggers[1].nats: the engine's NATS server is closed", Config{}},
		{"events are off", "acme", "fre.in.acme.x", "", "triggers[1].nats: events are off", Config{Events: reached, EventsOff: true}},
		{"shared", "acme", "orders.new", "workers", "", Config{Events: reached}},
		{"another trigger's queue", "acme", "orders.new", "fre-b-0123456789abcdef", "triggers[1].nats: queue fre-b-0123456789abcdef", Config{Events: reached}},
	} {
		all := []template.Trigger{{Name: "a", Webhook: &template.Webhook{}}, {Name: "b", NATS: &template.NATS{Subject: c.subject, Queue: c.queue}}}
		err := c.cfg.checkTriggers(c.tenant, all)
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
		}
	}
}
