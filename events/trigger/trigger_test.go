package trigger

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// world is an engine with functions, and the published events.
type world struct {
	mu        sync.Mutex
	functions map[string]image.Config
	published []published
	known     map[string]bool
	fails     error
	refused   int // events refused with fails
	marks     map[string]time.Time
}

type published struct {
	Function, Source, Path, Body string
	Header                       [][2]string
	key                          string
}

func (w *world) Functions() []*engine.Function {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*engine.Function
	for name, c := range w.functions {
		all = append(all, &engine.Function{Name: name, Config: c})
	}
	return all
}

func (w *world) Function(name string) (*engine.Function, error) {
	w.mu.Lock()
	c, ok := w.functions[name]
	w.mu.Unlock()
	if !ok {
		return nil, &engine.UnknownError{Function: name}
	}
	return &engine.Function{Name: name, Config: c}, nil
}

func (w *world) Publish(_ context.Context, function string, r *engine.Request, o events.Options) (events.Receipt, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fails != nil {
		w.refused++
		return events.Receipt{}, w.fails
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return events.Receipt{}, err
		}
	}
	if o.Key != "" && w.known[o.Key] {
		return events.Receipt{ID: o.Key, Duplicate: true}, nil
	}
	if w.known == nil {
		w.known = map[string]bool{}
	}
	w.known[o.Key] = true
	w.published = append(w.published, published{function, o.Source, r.Path, string(body), r.Headers, o.Key})
	return events.Receipt{ID: fmt.Sprint(len(w.published))}, nil
}

func (w *world) Mark(_ context.Context, name string) (time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marks[name], nil
}

func (w *world) SetMark(_ context.Context, name string, t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.marks == nil {
		w.marks = map[string]time.Time{}
	}
	w.marks[name] = t
	return nil
}

const secret = "a secret of the tests"

// kept holds secrets by TENANT/NAME.
type kept map[string]string

func (k kept) Secret(tenant, name string) ([]byte, error) {
	value, ok := k[tenant+"/"+name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return []byte(value), nil
}

func newSet(t *testing.T, w *world, now time.Time, triggers ...template.Trigger) *Set {
	t.Helper()
	w.functions = map[string]image.Config{"f": {Tenant: "default", Triggers: triggers}}
	return New(Config{Engine: w, Events: w, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Secrets: kept{"default/s": secret + "\n"}, Now: func() time.Time { return now }})
}

func hook(body string, header ...string) *engine.Request {
	r := &engine.Request{Method: "POST", Path: "/", Body: strings.NewReader(body), Length: int64(len(body))}
	for i := 0; i < len(header); i += 2 {
		r.Headers = append(r.Headers, [2]string{header[i], header[i+1]})
	}
	return r
}

func mac(parts ...string) string {
	var all [][]byte
	for _, p := range parts {
		all = append(all, []byte(p))
	}
	return hex.EncodeToString(sum([]byte(secret), all...))
}

// TestWebhookSignatures: A webhook refuses a missing, wrong or expired signature, for each kind of
// signature; a repeated delivery is the same event.
func TestWebhookSignatures(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	at := func(d time.Duration) string { return strconv.FormatInt(now.Add(d).Unix(), 10) }
	ms := func(d time.Duration) string { return strconv.FormatInt(now.Add(d).UnixMilli(), 10) }
	gitee := func(at string) string {
		return base64.StdEncoding.EncodeToString(sum([]byte(secret), []byte(at+"\n"+secret)))
	}
	stripe := func(at string) string { return "t=" + at + ",v1=00,v1=" + mac(at, ".", "body") + ",v0=x" }
	const body = "body"
	for _, c := range []struct {
		name, signature, timestamp string
		header                     []string
		want                       failure.Code // code of the refusal, 0 for success
	}{
		{"github", "github", "", []string{"X-Hub-Signature-256", "sha256=" + mac(body)}, ""},
		{"github, of another body", "github", "", []string{"X-Hub-Signature-256", "sha256=" + mac("Body")}, failure.BadSignature},
		{"github, none", "github", "", nil, failure.BadSignature},
		{"github, empty", "github", "", []string{"X-Hub-Signature-256", "sha256="}, failure.BadSignature},
		{"github, the old one", "github", "", []string{"X-Hub-Signature", "sha1=" + mac(body)}, failure.BadSignature},
		{"gitlab", "gitlab", "", []string{"X-Gitlab-Token", secret}, ""},
		{"gitlab, the beginning", "gitlab", "", []string{"X-Gitlab-Token", secret[:4]}, failure.BadSignature},
		{"gitlab, none", "gitlab", "", nil, failure.BadSignature},
		{"gitee", "gitee", "", []string{"X-Gitee-Timestamp", ms(0), "X-Gitee-Token", gitee(ms(0))}, ""},
		{"gitee, password", "gitee", "", []string{"X-Gitee-Token", secret}, ""},
		{"gitee, of another time", "gitee", "", []string{"X-Gitee-Timestamp", ms(time.Second), "X-Gitee-Token", gitee(ms(0))}, failure.BadSignature},
		{"gitee, old", "gitee", "", []string{"X-Gitee-Timestamp", ms(-time.Hour), "X-Gitee-Token", gitee(ms(-time.Hour))}, failure.BadSignature},
		{"stripe", "stripe", "", []string{"Stripe-Signature", stripe(at(-time.Minute))}, ""},
		{"stripe, old", "stripe", "", []string{"Stripe-Signature", stripe(at(-6 * time.Minute))}, failure.BadSignature},
		{"stripe, of the future", "stripe", "", []string{"Stripe-Signature", stripe(at(6 * time.Minute))}, failure.BadSignature},
		{"stripe, another time than was signed", "stripe", "", []string{"Stripe-Signature", strings.Replace(stripe(at(-6*time.Minute)), "t="+at(-6*time.Minute), "t="+at(0), 1)}, failure.BadSignature},
		{"stripe, no time", "stripe", "", []string{"Stripe-Signature", "v1=" + mac(".", body)}, failure.BadSignature},
		{"hmac", "hmac", "", []string{"X-Signature-256", mac(body)}, ""},
		{"hmac, base64", "hmac", "", []string{"X-Signature-256", "sha256=" + base64.StdEncoding.EncodeToString(sum([]byte(secret), []byte(body)))}, ""},
		{"hmac, wrong", "hmac", "", []string{"X-Signature-256", mac("x")}, failure.BadSignature},
		{"hmac with a time", "hmac", "X-Time", []string{"X-Time", at(0), "X-Signature-256", mac(at(0), ".", body)}, ""},
		{"hmac with a time, old", "hmac", "X-Time", []string{"X-Time", at(-time.Hour), "X-Signature-256", mac(at(-time.Hour), ".", body)}, failure.BadSignature},
		{"hmac with a time, far beyond", "hmac", "X-Time", []string{"X-Time", "9223372036854775807", "X-Signature-256", mac(body)}, failure.BadSignature},
		{"hmac without the time", "hmac", "X-Time", []string{"X-Signature-256", mac(body)}, failure.BadSignature},
		{"none", "none", "", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{}
			webhook := &template.Webhook{Signature: c.signature, Secret: "s", Timestamp: c.timestamp, Tolerance: 5 * time.Minute}
			if c.signature == "none" {
				webhook.Secret = ""
			}
			s := newSet(t, w, now, template.Trigger{Name: "h", Webhook: webhook})
			ids, _, err := s.Hook(t.Context(), "f", "h", hook(body, c.header...))
			code := failure.Of(err)
			if code != c.want || (len(ids) == 1) != (c.want == "") || len(w.published) != len(ids) {
				t.Fatalf("%q (%v) and events %v, want %q", code, err, ids, c.want)
			}
			if c.want != "" {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the secret is told: %v", err)
				}
				return
			}
			for _, h := range w.published[0].Header {
				if h[1] == secret {
					t.Errorf("the function is told the secret in %s", h[0])
				}
			}
			// A repeated delivery is the same event, whatever its other headers.
			if c.signature != "gitlab" && c.signature != "none" {
				header := append([]string{"X-Github-Delivery", "another"}, c.header...)
				if _, _, err := s.Hook(t.Context(), "f", "h", hook(body, header...)); err != nil || len(w.published) != 1 {
					t.Errorf("the same again: %d events, %v", len(w.published), err)
				}
			}
		})
	}
}

// TestWebhookSentAgain: If no signed part tells deliveries apart, the sender's id does.
func TestWebhookSentAgain(t *testing.T) {
	for signature, header := range map[string][]string{"gitlab": {"X-Gitlab-Token", secret}, "none": nil} {
		for _, id := range []string{"Idempotency-Key", "X-Gitlab-Event-UUID"} {
			if signature == "none" && id != "Idempotency-Key" {
				continue
			}
			w := &world{}
			webhook := &template.Webhook{Signature: signature}
			if header != nil {
				webhook.Secret = "s"
			}
			s := newSet(t, w, time.Now(), template.Trigger{Name: "h", Webhook: webhook})
			for _, value := range []string{"1", "1", "2", "1"} {
				if _, _, err := s.Hook(t.Context(), "f", "h", hook("body", slices.Concat(header, []string{id, value})...)); err != nil {
					t.Fatal(err)
				}
			}
			if len(w.published) != 2 {
				t.Errorf("%s with %s 1, 1, 2, 1: %d events, want 2", signature, id, len(w.published))
			}
		}
	}
}

// TestWebhookFilters: A webhook accepts only requests with its paths and headers.
func TestWebhookFilters(t *testing.T) {
	w := &world{}
	s := newSet(t, w, time.Now(), template.Trigger{Name: "h", Webhook: &template.Webhook{
		Signature: "none", Paths: []string{"/a/*"}, Headers: []string{"X-GitHub-Event: push", "X-GitHub-Event: pull_*", "X-Kind: ?"},
	}}, template.Trigger{Name: "missing", Webhook: &template.Webhook{Signature: "github", Secret: "nothing"}})
	for _, c := range []struct {
		path   string
		header []string
		taken  bool
	}{
		{"/a/b", []string{"X-Github-Event", "push", "X-Kind", "x"}, true},
		{"/a/b", []string{"x-github-event", "pull_request", "X-Kind", "x"}, true},
		{"/a", []string{"X-Github-Event", "push", "X-Kind", "x"}, false},
		{"/a/b", []string{"X-Github-Event", "star", "X-Kind", "x"}, false},
		{"/a/b", []string{"X-Github-Event", "push"}, false},
	} {
		r := hook("", c.header...)
		r.Path = c.path
		ids, ignored, err := s.Hook(t.Context(), "f", "h", r)
		if err != nil || (len(ids) == 1) != c.taken || (ignored == "") != c.taken {
			t.Errorf("%s %v: events %v, ignored %q, %v; want taken %v", c.path, c.header, ids, ignored, err, c.taken)
		}
	}
	code := func(function, trigger string, r *engine.Request) failure.Code {
		_, _, err := s.Hook(t.Context(), function, trigger, r)
		return failure.Of(err)
	}
	get := hook("")
	get.Method = "GET"
	large := hook("")
	large.Length = maxHook + 1
	for _, c := range []struct {
		what      string
		got, want failure.Code
	}{
		{"no such trigger", code("f", "x", hook("")), failure.NotFound},
		{"GET", code("f", "h", get), failure.MethodNotAllowed},
		{"a large body", code("f", "h", large), failure.BodyTooLarge},
		{"a secret that is not there", code("f", "missing", hook("", "X-Hub-Signature-256", "sha256="+mac(""))), failure.NoSecret},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.what, c.got, c.want)
		}
	}
	if _, _, err := s.Hook(t.Context(), "g", "h", hook("")); !errors.As(err, new(*engine.UnknownError)) {
		t.Errorf("no such function: %v", err)
	}
}

// TestCloudEvents: CloudEvents come in binary mode, in structured mode and in batches; a malformed
// event refuses its whole batch.
func TestCloudEvents(t *testing.T) {
	const structured = `{"specversion":"1.0","id":"1","source":"/s","type":"com.example.a","subject":"ü \"x","ext":7,"datacontenttype":"application/json","data":{"a":1}}`
	header := [][2]string{{"Ce-Ext", "7"}, {"Ce-Id", "1"}, {"Ce-Source", "/s"}, {"Ce-Specversion", "1.0"}, {"Ce-Subject", "%C3%BC%20%22x"}, {"Ce-Type", "com.example.a"}, {"Content-Type", "application/json"}}
	w := &world{}
	s := newSet(t, w, time.Now(), template.Trigger{Name: "c", CloudEvents: &template.CloudEvents{Types: []string{"com.example.*"}, Token: "s"}})
	post := func(body string, header ...string) ([]string, string, error) {
		return s.Hook(t.Context(), "f", "c", hook(body, append(header, "Authorization", "Bearer "+secret)...))
	}
	if _, _, err := post(structured, "Content-Type", "application/cloudevents+json; charset=utf-8"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(published{"f", "cloudevents/c", "/", `{"a":1}`, header, "ce\x00/s\x001"}, w.published[0], cmp.AllowUnexported(published{})); diff != "" {
		t.Errorf("structured -want +got:\n%s", diff)
	}
	// The same event in binary mode.
	if _, _, err := post(`{"a":1}`, "ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "com.example.a", "Content-Type", "application/json"); err != nil || len(w.published) != 1 {
		t.Errorf("the same event in binary mode: %d events, %v", len(w.published), err)
	}
	batch := `[{"specversion":"1.0","id":"2","source":"/s","type":"com.example.a","data":"text","datacontenttype":"text/plain"},
		{"specversion":"1.0","id":"3","source":"/s","type":"com.example.b","data_base64":"AAE="},
		{"specversion":"1.0","id":"4","source":"/s","type":"org.example.b"}]`
	ids, ignored, err := post(batch, "Content-Type", "application/cloudevents-batch+json")
	if err != nil || len(ids) != 2 || ignored == "" || w.published[1].Body != "text" || w.published[2].Body != "\x00\x01" {
		t.Errorf("batch: %v, ignored %q, %v: %+v", ids, ignored, err, w.published)
	}
	for name, c := range map[string]struct {
		body   string
		header []string
	}{
		"no CloudEvent":   {"{}", []string{"Content-Type", "application/json"}},
		"another version": {"", []string{"Ce-Specversion", "0.3", "Ce-Id", "1", "Ce-Source", "s", "Ce-Type", "t"}},
		"no id":           {`{"specversion":"1.0","source":"s","type":"t"}`, []string{"Content-Type", "application/cloudevents+json"}},
		"bad media type":  {`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain\r\nx: y","data":"x"}`, []string{"Content-Type", "application/cloudevents+json"}},
		"two bodies":      {`{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":""}`, []string{"Content-Type", "application/cloudevents+json"}},
		"bad base64":      {`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"?"}`, []string{"Content-Type", "application/cloudevents+json"}},
		"bad attribute":   {`{"specversion":"1.0","id":"1","source":"s","type":"t","a-b":"x"}`, []string{"Content-Type", "application/cloudevents+json"}},
		"nested":          {`{"specversion":"1.0","id":"1","source":"s","type":"t","ab":{}}`, []string{"Content-Type", "application/cloudevents+json"}},
		"broken":          {`{"specversion":`, []string{"Content-Type", "application/cloudevents+json"}},
		"two values":      {structured + structured, []string{"Content-Type", "application/cloudevents+json"}},
		"no list":         {structured, []string{"Content-Type", "application/cloudevents-batch+json"}},
		"one of a batch":  {`[` + structured + `,{}]`, []string{"Content-Type", "application/cloudevents-batch+json"}},
		"avro":            {"x", []string{"Content-Type", "application/cloudevents+avro"}},
	} {
		before := len(w.published)
		_, _, err := post(c.body, c.header...)
		if failure.Of(err) != failure.BadEvent || len(w.published) != before {
			t.Errorf("%s: %v and %d events, want bad_event and none", name, err, len(w.published)-before)
		}
	}
	_, _, err = s.Hook(t.Context(), "f", "c", hook(structured, "Content-Type", "application/cloudevents+json"))
	if failure.Of(err) != failure.BadToken {
		t.Errorf("without a token: %v", err)
	}
}

// FuzzCloudEvents: Any request is read as CloudEvents or refused without a panic.
func FuzzCloudEvents(f *testing.F) {
	f.Add("application/cloudevents+json", "", `{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":1}}`)
	f.Add("application/cloudevents-batch+json", "", `[{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AA=="}]`)
	f.Add("text/plain", "1.0", "x")
	f.Fuzz(func(t *testing.T, contentType, version, body string) {
		header := [][2]string{{"Content-Type", contentType}, {"Ce-Specversion", version}, {"Ce-Id", body}, {"Ce-Source", "s"}, {"Ce-Type", "t"}}
		all, err := parseCloudEvents(header, []byte(body))
		if err != nil {
			return
		}
		for _, e := range all {
			if e.id == "" || e.source == "" || e.typ == "" {
				t.Errorf("an event without id, source or type: %+v", e)
			}
			if strings.HasPrefix(contentType, "application/cloudevents") {
				for _, h := range e.header {
					if strings.ContainsAny(h[0]+h[1], "\r\n\x00") {
						t.Errorf("a field that splits the header: %q", h)
					}
				}
			}
		}
	})
}

// FuzzSignature: A request without the secret's signature is never accepted.
func FuzzSignature(f *testing.F) {
	f.Add("stripe", "t=1,v1=00", "1", "body")
	f.Add("gitee", "token", "1700000000000", "body")
	f.Add("hmac", "sha256=00", "1700000000", "body")
	f.Fuzz(func(t *testing.T, signature, given, at, body string) {
		w := &template.Webhook{Signature: signature, Secret: "s", Timestamp: "X-Time", Tolerance: time.Minute}
		header := [][2]string{
			{"X-Hub-Signature-256", given},
			{"X-Gitlab-Token", given},
			{"X-Gitee-Token", given},
			{"X-Gitee-Timestamp", at},
			{"Stripe-Signature", given},
			{"X-Signature-256", given},
			{"X-Time", at},
		}
		key := make([]byte, 32) // no input contains this key, because the fuzzer does not see it
		copy(key, secret)
		if _, err := verify(w, key, header, []byte(body), time.Now()); err == nil && slices.Contains([]string{"github", "gitlab", "gitee", "stripe", "hmac"}, signature) {
			t.Errorf("%s: %q is taken for a signature of %q", signature, given, body)
		}
	})
}

// TestCron: Each time of a schedule makes one event, in its time zone and over restarts; missed
// times are skipped or made up for once.
func TestCron(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		cron := &template.Cron{Schedule: "*/10 * * * *", Zone: "UTC", Missed: "skip", Path: "/tick", Body: "b"}
		once := &template.Cron{Schedule: "0 * * * *", Zone: "UTC", Missed: "once", Path: "/"}
		s := newSet(t, w, time.Time{}, template.Trigger{Name: "ten", Cron: cron}, template.Trigger{Name: "hour", Cron: once})
		s.cfg.Now = time.Now // the bubble's clock: midnight
		run := func(for_ time.Duration) (times []string) {
			before := len(w.published)
			ctx, cancel := context.WithTimeout(t.Context(), for_)
			defer cancel()
			s.Cron(ctx, w)
			for _, p := range w.published[before:] {
				times = append(times, p.Source+" "+p.Header[0][1][11:16])
			}
			return times
		}
		if diff := cmp.Diff([]string{"cron/ten 00:10", "cron/ten 00:20", "cron/ten 00:30"}, run(35*time.Minute)); diff != "" {
			t.Errorf("35 minutes -want +got:\n%s", diff)
		}
		if p := w.published[0]; p.Path != "/tick" || p.Body != "b" || p.Function != "f" {
			t.Errorf("the event is %+v", p)
		}
		// Two hours without an engine: the trigger with skip misses its times, the other makes one
		// event for the last.
		time.Sleep(2 * time.Hour) //nolint:forbidigo // of the bubble
		if diff := cmp.Diff([]string{"cron/hour 02:00"}, run(time.Minute)); diff != "" {
			t.Errorf("after two hours without an engine -want +got:\n%s", diff)
		}
		// An engine that died between an event and its mark makes no second event.
		for mark := range w.marks {
			w.marks[mark] = w.marks[mark].Add(-time.Hour)
		}
		if got := run(time.Minute); len(got) != 0 {
			t.Errorf("made anew: %v", got)
		}
		// A full queue loses no event: the trigger tries again.
		w.fails = errors.New("full")
		run(6 * time.Minute) // covers 02:40
		w.fails = nil
		if diff := cmp.Diff([]string{"cron/ten 02:50"}, run(9*time.Minute)); diff != "" {
			t.Errorf("after a queue that was full for longer than a minute -want +got:\n%s", diff)
		}
	})
}

// TestCronClockJumps: A clock set forward counts as a pause of the engine. A clock set back makes
// no event twice.
func TestCronClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		ten := template.Trigger{Name: "ten", Cron: &template.Cron{Schedule: "*/10 * * * *", Zone: "UTC", Missed: "skip", Path: "/"}}
		hour := template.Trigger{Name: "hour", Cron: &template.Cron{Schedule: "0 * * * *", Zone: "UTC", Missed: "once", Path: "/"}}
		s := newSet(t, w, time.Time{}, ten, hour)
		var off atomic.Int64
		s.cfg.Now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		var cron sync.WaitGroup
		cron.Go(func() { s.Cron(ctx, w) })
		defer cron.Wait()
		defer cancel()
		for _, step := range []struct {
			what      string
			jump, run time.Duration
			want      []string
		}{
			{"as it should be", 0, 15 * time.Minute, []string{"cron/ten 00:10"}},
			{"set forward to 03:15", 3 * time.Hour, time.Minute, []string{"cron/hour 03:00"}},
			{"then", 0, 5 * time.Minute, []string{"cron/ten 03:20"}},
			{"set back to 02:51", -30 * time.Minute, 28 * time.Minute, nil},
			{"until it is where it was", 0, 12 * time.Minute, []string{"cron/ten 03:30"}},
		} {
			w.mu.Lock()
			before := len(w.published)
			w.mu.Unlock()
			off.Add(int64(step.jump))
			time.Sleep(step.run) //nolint:forbidigo // of the bubble
			synctest.Wait()
			var got []string
			w.mu.Lock()
			for _, p := range w.published[before:] {
				got = append(got, p.Source+" "+p.Header[0][1][11:16])
			}
			w.mu.Unlock()
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s -want +got:\n%s", step.what, diff)
			}
		}
	})
}

// One of several nodes makes the event of a time, even if the clock of another node is behind by
// more than events are known by their key.
func TestCronNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		ten := template.Trigger{Name: "ten", Cron: &template.Cron{Schedule: "*/10 * * * *", Zone: "UTC", Missed: "once", Path: "/"}}
		ctx, cancel := context.WithTimeout(t.Context(), 65*time.Minute)
		defer cancel()
		var nodes []*Set
		for _, late := range []time.Duration{0, 5 * time.Minute} {
			s := newSet(t, w, time.Time{}, ten)
			s.cfg.Now = func() time.Time { return time.Now().Add(-late) }
			s.cfg.Events = forgetful{w}
			nodes = append(nodes, s)
		}
		var all sync.WaitGroup
		for _, s := range nodes {
			all.Go(func() { s.Cron(ctx, w) })
		}
		all.Wait()
		times := map[string]int{}
		for _, p := range w.published {
			times[p.Header[0][1][11:16]]++
		}
		delete(times, "00:00") // the begin of the hour, if the late node comes first
		if diff := cmp.Diff(map[string]int{"00:10": 1, "00:20": 1, "00:30": 1, "00:40": 1, "00:50": 1, "01:00": 1}, times); diff != "" {
			t.Errorf("an hour's events -want +got:\n%s", diff)
		}
	})
}

// forgetful remembers no key of an event.
type forgetful struct{ *world }

func (f forgetful) Publish(ctx context.Context, function string, r *engine.Request, o events.Options) (events.Receipt, error) {
	o.Key = ""
	return f.world.Publish(ctx, function, r, o)
}

// TestCronZones: A schedule follows the clock changes of its time zone.
func TestCronZones(t *testing.T) {
	berlin := &template.Cron{Schedule: "30 2 * * *", Zone: "Europe/Berlin"}
	for from, want := range map[string]string{
		"2026-01-10T00:00:00Z": "2026-01-10T01:30:00Z",
		"2026-07-10T00:00:00Z": "2026-07-10T00:30:00Z",
		"2026-03-29T00:00:00Z": "2026-03-29T01:00:00Z", // 02:30 does not exist: right after the jump
		"2026-03-29T01:00:00Z": "2026-03-30T00:30:00Z",
		"2026-10-25T00:30:00Z": "2026-10-26T01:30:00Z", // 02:30 comes twice
	} {
		at, err := time.Parse(time.RFC3339, from)
		if err != nil {
			t.Fatal(err)
		}
		next, err := berlin.Next(at)
		if err != nil || next.UTC().Format(time.RFC3339) != want {
			t.Errorf("after %s: %v, %v; want %s", from, next.UTC(), err, want)
		}
	}
	// The search through a year without an engine is fast and finds the last time.
	times := func(schedule, zone string) *template.Schedule {
		s, err := template.ParseSchedule(schedule, zone)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	now := time.Date(2026, 5, 1, 12, 0, 30, 0, time.UTC)
	if at := latest(times("* * * * *", "UTC"), now.AddDate(-1, 0, 0), now); !at.Equal(now.Truncate(time.Minute)) {
		t.Errorf("the last minute before %v: %v", now, at)
	}
	if at := latest(times(berlin.Schedule, berlin.Zone), now.Add(-time.Hour), now); !at.IsZero() {
		t.Errorf("nothing is due: %v", at)
	}
}

// TestQuota: Only accepted requests of a trigger count against the tenant's quota.
func TestQuota(t *testing.T) {
	w := &world{}
	s := newSet(t, w, time.Now(), template.Trigger{Name: "h", Webhook: &template.Webhook{Signature: "github", Secret: "s"}})
	full, counted := errors.New("too many"), 0
	s.cfg.Admit = func(tenant string) error {
		if counted++; counted > 1 {
			return full
		}
		return nil
	}
	for _, c := range []struct {
		mac     string
		want    error // nil: refused before the quota
		counted int
	}{{mac("another"), nil, 0}, {mac("body"), nil, 1}, {mac("another"), nil, 1}, {mac("body"), full, 2}} {
		_, _, err := s.Hook(t.Context(), "f", "h", hook("body", "X-Hub-Signature-256", "sha256="+c.mac))
		if c.want != nil && !errors.Is(err, c.want) || counted != c.counted {
			t.Errorf("%.8s…: %v and %d counted, want %v and %d", c.mac, err, counted, c.want, c.counted)
		}
	}
}

// TestHookOfOtherKinds: A request to a trigger of another kind gets 404, like a request to a
// missing trigger.
func TestHookOfOtherKinds(t *testing.T) {
	w := &world{}
	s := newSet(t, w, time.Now(), template.Trigger{Name: "cron", Cron: &template.Cron{Schedule: "0 0 1 1 *"}},
		template.Trigger{Name: "nats", NATS: &template.NATS{}}, template.Trigger{Name: "files", Files: &template.Files{}}, template.Trigger{Name: "hook", Webhook: &template.Webhook{Signature: "none"}})
	for _, name := range []string{"cron", "nats", "files", "missing"} {
		_, _, err := s.Hook(t.Context(), "f", name, hook("body"))
		if failure.Of(err) != failure.NotFound {
			t.Errorf("%s: %v, want not_found", name, err)
		}
	}
	if _, _, err := s.Hook(t.Context(), "f", "hook", hook("body")); err != nil || len(w.published) != 1 {
		t.Errorf("a webhook: %v, %d events", err, len(w.published))
	}
}

// TestHandshake: The handshake answers a sender of CloudEvents, and tells other clients what the
// hook accepts.
func TestHandshake(t *testing.T) {
	s := newSet(t, &world{}, time.Now(), template.Trigger{Name: "c", CloudEvents: &template.CloudEvents{Token: "s"}}, template.Trigger{Name: "w", Webhook: &template.Webhook{}})
	origin := [2]string{"Webhook-Request-Origin", "eventgrid.example"}
	for name, c := range map[string]struct {
		function, trigger string
		header            [][2]string
		want              [][2]string // nil: refused
	}{
		"any rate":    {"f", "c", [][2]string{origin}, [][2]string{{"Allow", "OPTIONS, POST"}, {"WebHook-Allowed-Origin", origin[1]}, {"WebHook-Allowed-Rate", "*"}}},
		"its rate":    {"f", "c", [][2]string{origin, {"Webhook-Request-Rate", "120"}}, [][2]string{{"Allow", "OPTIONS, POST"}, {"WebHook-Allowed-Origin", origin[1]}, {"WebHook-Allowed-Rate", "120"}}},
		"no origin":   {"f", "c", nil, nil},
		"a webhook":   {"f", "w", [][2]string{origin}, nil},
		"no trigger":  {"f", "x", [][2]string{origin}, nil},
		"no function": {"g", "c", [][2]string{origin}, nil},
	} {
		got, err := s.Handshake(c.function, c.trigger, c.header)
		if diff := cmp.Diff(c.want, got); diff != "" || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
}

// TestCloudEventsMediaType: The function gets the media type exactly as in the event.
func TestCloudEventsMediaType(t *testing.T) {
	for _, media := range []string{"text/plain; charset=utf-8", `multipart/mixed; boundary="a b"`, "application/xml", "x/y; a=100%"} {
		text, err := json.Marshal(map[string]string{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "datacontenttype": media, "data": "hi"})
		if err != nil {
			t.Fatal(err)
		}
		e, err := structured(text)
		if got := field(e.header, "Content-Type"); err != nil || got != media {
			t.Errorf("%q: %q, %v", media, got, err)
		}
	}
}

// TestWebhookKey: A trigger's key makes one event of a sender's retries, whatever else differs.
func TestWebhookKey(t *testing.T) {
	for _, c := range []struct{ key, body, again, other string }{
		{"/id", `{"id":"evt_1","n":1}`, `{"n":2,"id":"evt_1"}`, `{"id":"evt_2","n":1}`},
		{"/data/0/a~1b", `{"data":[{"a/b":12345678901234567890}]}`, `{"data":[{"a/b":12345678901234567890},1]}`, `{"data":[{"a/b":12345678901234567891}]}`},
		{"X-GitHub-Delivery", "1", "1 again", "2"},
	} {
		t.Run(c.key, func(t *testing.T) {
			w := &world{}
			s := newSet(t, w, time.Now(), template.Trigger{Name: "h", Webhook: &template.Webhook{Signature: "none", Key: c.key}})
			post := func(body string) {
				t.Helper()
				if _, _, err := s.Hook(t.Context(), "f", "h", hook(body, "x-github-delivery", body[:1])); err != nil {
					t.Fatal(err)
				}
			}
			post(c.body)
			post(c.again)
			if len(w.published) != 1 {
				t.Errorf("%d events of one key, want 1", len(w.published))
			}
			post(c.other)
			if len(w.published) != 2 {
				t.Errorf("%d events of two keys, want 2", len(w.published))
			}
		})
	}
	// A body without the named key counts as a request without a key.
	for _, body := range []string{"no JSON", "[]", `{"id":{}}`, `{"id":null}`, `{"di":1}`, `{"id":""}`} {
		if key := namedKey("/id", nil, []byte(body)); key != "" {
			t.Errorf("%s: key %q, want none", body, key)
		}
	}
}

// FuzzPointer: A key's JSON pointer finds a value in any body, or fails without a panic.
func FuzzPointer(f *testing.F) {
	f.Add("/a/0/~0~1", []byte(`{"a":[{"~/":"x"}]}`))
	f.Fuzz(func(t *testing.T, pointer string, body []byte) {
		if _, ok := pointed(pointer, body); ok && !json.Valid(body) {
			t.Errorf("%q is found in invalid JSON", pointer)
		}
	})
}
