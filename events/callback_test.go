package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

var callbackSecret = []byte("sixteen bytes or more")

// TestCallback: The service sends results to callbacks, signed, and tries again after a failure.
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
	h := hmac.New(sha256.New, callbackSecret)
	h.Write([]byte(g.header.Get("X-Fre-Timestamp") + "." + d.ID + ".re: x"))
	signature := "sha256=" + hex.EncodeToString(h.Sum(nil))
	if g.body != "re: x" || g.header.Get("X-Call-Id") != d.ID || g.header.Get("X-Function-Status") != "201" || g.header.Get("Content-Type") != "text/plain" ||
		!hmac.Equal([]byte(g.header.Get("X-Fre-Signature-256")), []byte(signature)) {
		t.Errorf("the receiver got %q with %v", g.body, g.header)
	}
	d = ends(t, s, "bad", "x", Options{Callback: receiver.URL})
	if g := <-came; g.header.Get("X-Call-Id") != d.ID || g.header.Get("X-Fre-Event-State") != "dead" || !strings.Contains(g.header.Get("X-Fre-Event-Error"), "ValueError") || g.header.Get("X-Fre-Event-Attempts") != "1" {
		t.Errorf("of a dead letter the receiver got %v", g.header)
	}
}

// A receiver that is down or never answers does not delay the callbacks to other receivers, of the
// same tenant or of another.
func TestCallbackReceiverDown(t *testing.T) {
	came := make(chan string, 8)
	good := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { came <- r.Header.Get("X-Call-Id") }))
	defer good.Close()
	tried := make(chan struct{}, 1<<16)
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		tried <- struct{}{}
	}))
	defer down.Close()
	hanging := make(chan struct{}, 1<<16)
	block := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		hanging <- struct{}{}
		<-block
	}))
	defer hangs.Close()
	defer close(block)
	e := &functions{room: 8}
	for _, f := range []string{"f", "f.noisy"} {
		e.deploy(f, quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	}
	cfg := testConfig(t, e)
	cfg.Callbacks = Callbacks{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: callbackSecret, timeout: within}
	s := open(t, cfg)
	for _, test := range []struct {
		function, to string
		many         int
		begun        chan struct{}
		wait         int
	}{
		{"f", down.URL, 40, tried, 40},
		{"f", hangs.URL, 40, hanging, callbacksOfReceiver},
		{"f.noisy", hangs.URL, 2 * callbacksHeld, hanging, callbacksOfReceiver},
	} {
		for range test.many {
			if _, err := s.Publish(t.Context(), test.function, request("x"), Options{Callback: test.to}); err != nil {
				t.Fatal(err)
			}
		}
		for range test.wait {
			<-test.begun
		}
		r, err := s.Publish(t.Context(), "f", request("x"), Options{Callback: good.URL})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case id := <-came:
			if id != r.ID {
				t.Errorf("beside %d callbacks of %s to %s the good receiver got %s, want %s", test.many, test.function, test.to, id, r.ID)
			}
		case <-time.After(within):
			t.Fatalf("beside %d callbacks of %s to %s the good receiver gets nothing", test.many, test.function, test.to)
		}
	}
	if n := len(hanging); n > 0 {
		t.Errorf("%d more than %d of each tenant are sent to one receiver at once", n, callbacksOfReceiver)
	}
}

// The engine sends the callbacks that an older engine left in the stream of all tenants.
func TestCallbackOfBefore(t *testing.T) {
	came := make(chan string, 8)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { came <- r.Header.Get("X-Call-Id") }))
	defer receiver.Close()
	e := &functions{room: 4}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	cfg := testConfig(t, e)
	s := open(t, cfg)
	d := ends(t, s, "f", "", Options{})
	order := message{Entry: d.Entry, callback: receiver.URL}
	msg, err := order.encode(endSubject("callbacks", d.Tenant, d.Function, d.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A service would remove such an empty stream and give up the order.
	server, err := startEmbedded(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if server != nil {
			server.Close()
		}
	}()
	nc, err := connect(&cfg, server)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FRE_CALLBACKS", Subjects: []string{"fre.callbacks.*.*.*"}, Retention: jetstream.WorkQueuePolicy})
	if err == nil {
		_, err = js.CreateConsumer(t.Context(), "FRE_CALLBACKS", jetstream.ConsumerConfig{Durable: "send", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 16})
	}
	if err == nil {
		_, err = js.PublishMsg(t.Context(), msg)
	}
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	server.Close()
	server = nil
	cfg.Callbacks = Callbacks{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: callbackSecret}
	s = open(t, cfg)
	if id := <-came; id != d.ID {
		t.Errorf("the receiver got %s, want %s", id, d.ID)
	}
	until(t, "the stream of before goes", func() bool {
		return s.scanStreams(t.Context(), false) == nil && !slices.Contains(names(t, s), "FRE_CALLBACKS")
	})
}

// delivery is a message of a queue in its second delivery.
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

// If an engine dies between the result and the order of the callback, the next engine that gets the
// event orders the callback. The callback is ordered once.
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
		Entry:   Entry{ID: id, Function: "f", Tenant: template.DefaultTenant, Priority: Normal, Accepted: time.Now().UTC()},
		request: engine.Request{Method: "POST", Path: "/"}, callback: receiver.URL, file: id + ".event",
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
	if _, _, err := s.streams.put(t.Context(), kindResults, m.Tenant, written); err != nil {
		t.Fatal(err)
	}
	ended := watchEnds(t, s)
	for range 2 {
		s.deliveries.hands.mu.Lock() // simulates another process
		clear(s.deliveries.hands.ended)
		s.deliveries.hands.mu.Unlock()
		d := &delivery{msg: queued}
		s.runner.handle(queueKey{m.Tenant, m.Priority, m.Function}, d, time.Minute, false)
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

// TestCallbackAllowed: Callbacks go only to hosts and networks that the configuration allows.
func TestCallbackAllowed(t *testing.T) {
	c := Callbacks{Hosts: []string{"hooks.example.org", "*.example.com"}, Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Secret: callbackSecret}
	named := Callbacks{Hosts: c.Hosts, Secret: callbackSecret}
	allow := func(c Callbacks, raw string) error {
		u, err := parseCallback(raw)
		if err != nil {
			return err
		}
		return c.allow(u)
	}
	for _, u := range []string{"http://10.1.2.3:80/x", "https://hooks.example.org/a?b"} {
		if err := allow(c, u); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range []string{
		"", "x", "file:///etc/passwd", "http://user@hooks.example.org/", "http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/", "http://10.2.0.1/",
		"http://example.com/", "http://hooks.example.org.evil.net/", "http://evilexample.com/", "http://[::ffff:127.0.0.1]/", "gopher://hooks.example.org/", "http://" + strings.Repeat("a", 3000),
	} {
		if err := allow(named, u); err == nil {
			t.Errorf("%q is allowed", u)
		}
	}
	// The engine also checks the address of an allowed name.
	for address, want := range map[string]bool{
		"93.184.215.14": true, "2606:2800:21f::1": true, "127.0.0.1": false, "::1": false, "10.1.2.3": true, "10.2.0.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"0.0.0.0": false, "fe80::1": false, "fd00::1": false, "::ffff:10.2.0.1": false, "64:ff9b::7f00:1": false, "224.0.0.1": false, "255.255.255.255": false,
	} {
		if got := c.rule("a.example.com").Allows(netip.MustParseAddr(address)); got != want {
			t.Errorf("a.example.com at %s: allowed %v, want %v", address, got, want)
		}
	}
	if c.rule("other.org").Allows(netip.MustParseAddr("93.184.215.14")) {
		t.Error("a host that is not named is reached")
	}
	if err := (&Callbacks{Hosts: c.Hosts}).check(); err == nil {
		t.Error("callbacks without a secret are opened")
	}
}

// TestCallbackURL: A callback URL gives a request line of three parts, or the engine refuses the
// event.
func TestCallbackURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://a.example/cb?name=Ada Lovelace":     "http://a.example/cb?name=Ada%20Lovelace",
		"http://a.example/a b?q=\"<ü>|50%#fragment": "http://a.example/a%20b?q=%22%3C%C3%BC%3E%7C50%25",
		"https://a.example:8443/x?a=%20&b=1":        "https://a.example:8443/x?a=%20&b=1",
		"http://a.example?x":                        "http://a.example?x",
		"http://a.example/\r\nX: y":                 "",
		"http://a.example/?a\tb":                    "",
		"http://a.example/%zz":                      "",
		"http://a b.example/":                       "",
		"http://bücher.example/":                    "",
		"http://a.example:99999/":                   "",
		"http://:80/":                               "",
		"//a.example/":                              "",
		"mailto:a@a.example":                        "",
	} {
		u, err := parseCallback(raw)
		switch {
		case want == "":
			if !errors.Is(err, ErrBadEvent) {
				t.Errorf("%q: %v, want it refused", raw, err)
			}
		case err != nil || u.String() != want:
			t.Errorf("%q: %v, %v; want %s", raw, u, err, want)
		}
	}
}

// FuzzCallbackURL: A callback URL gives a valid request line, or is refused.
func FuzzCallbackURL(f *testing.F) {
	f.Add("http://a.example/a b?q=ü#x")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := parseCallback(raw)
		if err != nil {
			return
		}
		if strings.ContainsFunc(u.RequestURI(), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			t.Errorf("%q: the request line has %q", raw, u.RequestURI())
		}
	})
}
