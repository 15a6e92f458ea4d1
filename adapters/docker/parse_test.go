package docker

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseFilters(t *testing.T) {
	for _, test := range []struct {
		text string
		want filters
		ok   bool
	}{
		{``, nil, true},
		{`{}`, filters{}, true},
		{`{"label":{"b":true,"a":true},"status":{"running":true}}`, filters{"label": {"a", "b"}, "status": {"running"}}, true},
		{`{"label":{"a":false}}`, filters{}, true},
		{`{"label":["b","a"]}`, filters{"label": {"b", "a"}}, true}, // the form of clients before version 1.22
		{`{"label":"a"}`, nil, false},
		{`{"label":[1]}`, nil, false},
		{`[]`, nil, false},
		{`{`, nil, false},
	} {
		got, err := parseFilters(test.text)
		if (err == nil) != test.ok {
			t.Errorf("parseFilters(%s): %v", test.text, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" && test.ok {
			t.Errorf("parseFilters(%s) (-want +got):\n%s", test.text, diff)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?filters="+url.QueryEscape(`{"bad":["x"]}`), nil)
	if _, err := filtersOf(r, "good", "better"); err == nil || !strings.Contains(err.Error(), "good, better") {
		t.Errorf("unknown key: %v, want an error that names good and better", err)
	}
}

func TestFiltersMatch(t *testing.T) {
	f := filters{"label": {"a", "b=1"}, "label!": {"c"}, "name": {"^web-", "x"}, "status": {"running"}}
	for _, test := range []struct {
		labels map[string]string
		want   bool
	}{
		{map[string]string{"a": "", "b": "1"}, true},
		{map[string]string{"a": "", "b": "2"}, false},
		{map[string]string{"b": "1"}, false},
		{map[string]string{"a": "", "b": "1", "c": ""}, false},
	} {
		if got := f.labels(test.labels); got != test.want {
			t.Errorf("labels(%v) = %v", test.labels, got)
		}
	}
	for name, want := range map[string]bool{"web-1": true, "my-web-1": false, "max": true, "y": false} {
		if got := f.like("name")(name); got != want {
			t.Errorf("like(%q) = %v", name, got)
		}
	}
	if !f.has("status", "running") || f.has("status", "exited") || !f.has("other", "x") {
		t.Error("has: want running, not exited, and anything of what is not asked for")
	}
}

func TestParseTime(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, test := range []struct {
		text string
		want time.Time
		ok   bool
	}{
		{"1136073845", time.Unix(1136073845, 0), true},
		{"1136073845.000000001", time.Unix(1136073845, 1), true},
		{"1136073845.5", time.Unix(1136073845, 500_000_000), true},
		{"10m", now.Add(-10 * time.Minute), true},
		{"2006-01-02T15:04:05Z", time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC), true},
		{"2006-01-02T15:04:05.5+02:00", time.Date(2006, 1, 2, 13, 4, 5, 500_000_000, time.UTC), true},
		{"2006-01-02", time.Date(2006, 1, 2, 0, 0, 0, 0, time.Local), true},
		{"1136073845.-5", time.Time{}, false},
		{"1.0000000000", time.Time{}, false},
		{"yesterday", time.Time{}, false},
		{"", time.Time{}, false},
	} {
		got, err := parseTime(test.text, now)
		if (err == nil) != test.ok || test.ok && !got.Equal(test.want) {
			t.Errorf("parseTime(%q) = %v, %v, want %v", test.text, got, err, test.want)
		}
	}
}

// FuzzParse: no input crashes a parser.
func FuzzParse(f *testing.F) {
	f.Add(`{"label":{"a":true}}`, "1136073845.5", "docker.io/library/a*:1", "SIGHUP")
	f.Add(`{"label":["a"]}`, "10m", "[", "9")
	f.Fuzz(func(_ *testing.T, filter, at, pattern, signal string) {
		parsed, err := parseFilters(filter)
		if err == nil {
			_ = parsed.labels(map[string]string{"a": "b"})
			_ = parsed.like("name")("x")
			_, _, _ = parsed.flag("dangling")
			_, _ = parsed.moment("until", time.Unix(0, 0))
		}
		_, _ = parseTime(at, time.Unix(0, 0))
		_, _ = matches(pattern, "x:y")
		_, _ = parseSignal(signal)
		_, _ = parseSize(at)
		_, _ = authOf(filter)
	})
}

func TestMatches(t *testing.T) {
	for _, test := range []struct {
		pattern string
		want    bool
	}{
		{"team/app", true},
		{"team/app:1", true},
		{"docker.io/team/app:1", true},
		{"team/*", true},
		{"*/app", true},
		{"*", false},
		{"team/app:2", false},
		{"app", false},
	} {
		if got, err := matches(test.pattern, "team/app:1"); err != nil || got != test.want {
			t.Errorf("matches(%q) = %v, %v", test.pattern, got, err)
		}
	}
	var bad *statusError
	if _, err := matches("[", "x:y"); !errors.As(err, &bad) || bad.status != http.StatusBadRequest {
		t.Errorf("a malformed pattern: %v, want status 400", err)
	}
}

func TestFrames(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	for stream, text := range []string{"in", "out", "err"} {
		if n, err := (frames{&mu, &out, byte(stream)}).Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	want := "\x00\x00\x00\x00\x00\x00\x00\x02in\x01\x00\x00\x00\x00\x00\x00\x03out\x02\x00\x00\x00\x00\x00\x00\x03err"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "Less than a second", time.Second: "1 second", 59 * time.Second: "59 seconds", 90 * time.Second: "About a minute",
		10 * time.Minute: "10 minutes", 70 * time.Minute: "About an hour", 5 * time.Hour: "5 hours", 72 * time.Hour: "3 days",
		20 * 24 * time.Hour: "2 weeks", 90 * 24 * time.Hour: "3 months", 800 * 24 * time.Hour: "2 years",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

// TestDecodeJSON: the error for a malformed body names the field and the expected type.
func TestDecodeJSON(t *testing.T) {
	for body, want := range map[string]string{
		"":             "EOF",
		"{":            "unexpected end",
		`{"Tty": 3}`:   "Tty must be true or false, not number",
		`{"Env": "x"}`: "Env must be an array, not string",
		`[]`:           "the body must be an object, not array",
		`{} {}`:        "after top-level value",
	} {
		var c containerConfig
		if err := decodeJSON([]byte(body), &c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("decodeJSON(%q): %v, want %q", body, err, want)
		}
	}
}
