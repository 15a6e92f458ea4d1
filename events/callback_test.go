package events

import (
	"crypto/hmac"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
)

var callbackSecret = []byte("sixteen bytes or more")

func TestCallback(t *testing.T) {
	type got struct {
		header http.Header
		body   string
	}
	came := make(chan got, 8)
	var tries atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		body, _ := io.ReadAll(r.Body)
		came <- got{r.Header, string(body)}
	}))
	defer receiver.Close()
	e := &functions{room: 4}
	e.deploy("f", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) {
		return 201, append([]byte("re: "), body...), nil
	})
	set := quick()
	set.Retries = 0
	e.deploy("bad", set, func(*engine.Request, []byte) (int, []byte, error) {
		return 0, nil, &engine.FunctionError{Type: "ValueError", Message: "no"}
	})
	cfg := testConfig(t, e)
	cfg.Callbacks = Callbacks{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: callbackSecret}
	s := open(t, cfg)
	d := ends(t, s, "f", "x", Options{Callback: receiver.URL + "/done"})
	g := <-came // the second try
	signature := "sha256=" + callbackSignature(callbackSecret, g.header.Get("X-Fre-Timestamp"), d.ID, []byte("re: x"))
	if g.body != "re: x" || g.header.Get("X-Call-Id") != d.ID || g.header.Get("X-Function-Status") != "201" || g.header.Get("Content-Type") != "text/plain" ||
		!hmac.Equal([]byte(g.header.Get("X-Fre-Signature-256")), []byte(signature)) {
		t.Errorf("the receiver got %q with %v", g.body, g.header)
	}
	d = ends(t, s, "bad", "x", Options{Callback: receiver.URL})
	if g := <-came; g.header.Get("X-Call-Id") != d.ID || g.header.Get("X-Fre-Event-State") != "dead" {
		t.Errorf("of a dead letter the receiver got %v", g.header)
	}
}

// delivery is a message of a queue, delivered for the second time.
type delivery struct {
	jetstream.Msg
	msg   *nats.Msg
	acked atomic.Bool
}

func (d *delivery) Subject() string      { return d.msg.Subject }
func (d *delivery) Headers() nats.Header { return d.msg.Header }
func (d *delivery) Data() []byte         { return d.msg.Data }
func (d *delivery) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: 7}, NumDelivered: 2}, nil
}

func (d *delivery) Ack() error {
	d.acked.Store(true)
	return nil
}

// An engine that dies with the result written, and before the callback was ordered, leaves that
// to whoever gets the event next. It is ordered once, whoever does so.
func TestCallbackAfterCrash(t *testing.T) {
	came := make(chan http.Header, 8)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { came <- r.Header }))
	defer receiver.Close()
	e := &functions{room: 4}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) {
		t.Error("the function runs again")
		return 500, nil, nil
	})
	e.deploy("other", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	cfg := testConfig(t, e)
	cfg.Callbacks = Callbacks{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: callbackSecret}
	s := open(t, cfg)
	id := eventID("f", "k")
	m := &message{
		Entry:  Entry{ID: id, Function: "f", Tenant: image.DefaultTenant, Priority: Normal, Accepted: time.Now().UTC()},
		method: "POST", path: "/", callback: receiver.URL, file: id + ".event",
	}
	var err error
	if m.Size, err = s.bodies.keep(m.file, strings.NewReader("large"), 1<<20); err != nil {
		t.Fatal(err)
	}
	queued, err := m.encode(queueSubject(m.Tenant, m.Priority, m.Function))
	if err != nil {
		t.Fatal(err)
	}
	result := *m
	result.State, result.Status, result.Attempts, result.file = StateDone, 201, 1, ""
	written, err := result.encode(kindResults.subject(m.Tenant, m.Function, id))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.put(t.Context(), kindResults, m.Tenant, written); err != nil {
		t.Fatal(err)
	}
	ended := watchEnds(t, s)
	for range 2 {
		d := &delivery{msg: queued}
		s.handle(&queue{s: s, key: queueKey{m.Tenant, m.Priority, m.Function}, wait: time.Minute}, d, false)
		if end := <-ended; end.ID != id || end.State != StateDone || end.Status != 201 || end.Attempts != 1 || !d.acked.Load() {
			t.Errorf("the event ends as %+v, acknowledged %v; want it as its result says", end, d.acked.Load())
		}
	}
	if h := <-came; h.Get("X-Call-Id") != id || h.Get("X-Function-Status") != "201" {
		t.Errorf("the receiver got %v", h)
	}
	if used := s.bodies.used.Load(); used != 0 {
		t.Errorf("the body of an event that has ended takes %d bytes", used)
	}
	last := ends(t, s, "other", "", Options{Callback: receiver.URL})
	if h := <-came; h.Get("X-Call-Id") != last.ID {
		t.Errorf("after one callback the receiver got %v", h)
	}
}

func TestCallbackAllowed(t *testing.T) {
	c := Callbacks{Hosts: []string{"hooks.example.org", "*.example.com"}, Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Secret: callbackSecret}
	named := Callbacks{Hosts: c.Hosts, Secret: callbackSecret}
	for _, u := range []string{"http://10.1.2.3:80/x", "https://hooks.example.org/a?b"} {
		if err := c.allow(u); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range []string{
		"", "x", "file:///etc/passwd", "http://user@hooks.example.org/", "http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/", "http://10.2.0.1/",
		"http://example.com/", "http://hooks.example.org.evil.net/", "http://evilexample.com/", "http://[::ffff:127.0.0.1]/", "gopher://hooks.example.org/", "http://" + strings.Repeat("a", 3000),
	} {
		if err := named.allow(u); err == nil {
			t.Errorf("%q is allowed", u)
		}
	}
	// A name that is allowed may lead to an address that is not.
	for address, want := range map[string]bool{
		"93.184.215.14": true, "2606:2800:21f::1": true, "127.0.0.1": false, "::1": false, "10.1.2.3": true, "10.2.0.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"0.0.0.0": false, "fe80::1": false, "fd00::1": false, "::ffff:10.2.0.1": false, "64:ff9b::7f00:1": false, "224.0.0.1": false, "255.255.255.255": false,
	} {
		if err := c.reachable("a.example.com", netip.MustParseAddr(address)); (err == nil) != want {
			t.Errorf("a.example.com at %s: %v, want allowed %v", address, err, want)
		}
	}
	if err := c.reachable("other.org", netip.MustParseAddr("93.184.215.14")); err == nil {
		t.Error("a host that is not named is reached")
	}
	if err := (&Callbacks{Hosts: c.Hosts}).check(); err == nil {
		t.Error("callbacks without a secret are opened")
	}
}
