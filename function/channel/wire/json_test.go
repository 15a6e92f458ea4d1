package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// hard are strings that JSON writes in a special way.
var hard = []string{
	"", "plain", `"quoted" \ back`, "<b>&amp;</b>", "\x00\x01\b\f\n\r\t\x1f\x7f", "höhe €  \U0001f600", "\u2028\u2029\u2030",
	"\xff", "a\xffb\xc3", "\xed\xa0\x80", "\xc3\x28", "\ufffd", strings.Repeat("long ", 1000),
}

// TestAppendMatches: the hand-written encoder writes the same bytes as encoding/json.
func TestAppendMatches(t *testing.T) {
	for _, s := range hard {
		for _, headers := range [][][2]string{nil, {}, {{s, s}}, {{"a", s}, {s, "b"}, {"", ""}}} {
			checkInvocation(t, &Invocation{Function: s, ID: s, Tenant: s, DeadlineMS: 1 << 62, Request: Request{Method: s, Path: s, Query: s, Headers: headers, Upgrade: s}})
			checkInvocation(t, &Invocation{Function: "f", DeadlineMS: -1, Request: Request{Headers: headers}})
			checkInvocation(t, &Invocation{Function: "f", Request: Request{Headers: headers, Socket: true}})
			checkResponse(t, -200, headers)
		}
	}
}

func FuzzAppend(f *testing.F) {
	for _, s := range hard {
		f.Add(s, "x-y", int64(len(s)))
	}
	f.Fuzz(func(t *testing.T, a, b string, n int64) {
		headers := [][2]string{{a, b}, {b, a}}
		checkInvocation(t, &Invocation{Function: a, ID: b, Tenant: a, DeadlineMS: n, Request: Request{Method: b, Path: a, Query: b, Headers: headers, Upgrade: a, Socket: n%2 == 0}})
		checkResponse(t, int(n), headers)
	})
}

func checkInvocation(t *testing.T, m *Invocation) {
	t.Helper()
	want, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := m.Append(nil)
	if string(got) != string(want) {
		t.Fatalf("%+v\ngot  %s\nwant %s", m, got, want)
	}
	checkParse(t, got)
}

func checkResponse(t *testing.T, status int, headers [][2]string) {
	t.Helper()
	m := struct {
		Status  int         `json:"status"`
		Headers [][2]string `json:"headers"`
	}{status, headers}
	if headers == nil {
		m.Headers = [][2]string{}
	}
	want, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := AppendResponse(nil, status, headers)
	if string(got) != string(want) {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	checkParse(t, got)
}

// checkParse compares the hand-written parser with encoding/json.
func checkParse(t *testing.T, p []byte) {
	t.Helper()
	var slow, fast Invocation
	wantErr := Unmarshal(p, &slow)
	if err := fast.Parse(p); (err == nil) != (wantErr == nil) || err != nil && !errors.Is(err, ErrProtocol) {
		t.Fatalf("%q: error %v, want %v", p, err, wantErr)
	}
	if wantErr == nil && !reflect.DeepEqual(slow, fast) {
		t.Fatalf("%q: got %+v, want %+v", p, fast, slow)
	}
	var want struct {
		Status  int
		Headers [][]string
	}
	var got ResponseMeta
	wantErr = Unmarshal(p, &want)
	for _, h := range want.Headers {
		if wantErr == nil && len(h) != 2 {
			wantErr = badHeader(h)
		}
	}
	err := got.Parse(p)
	if (err == nil) != (wantErr == nil) || err != nil && !errors.Is(err, ErrProtocol) {
		t.Fatalf("%q: error %v, want %v", p, err, wantErr)
	}
	if err != nil {
		return
	}
	if got.Status != want.Status || len(got.Headers) != len(want.Headers) {
		t.Fatalf("%q: got %+v, want %+v", p, got, want)
	}
	for i, h := range want.Headers {
		if got.Headers[i] != [2]string(h) {
			t.Fatalf("%q: got %+v, want %+v", p, got, want)
		}
	}
}

// TestUsual: the fast parser handles an event as the gateway writes it: with a port in Forwarded's
// host, several fields in the query, an entity tag, non-ASCII letters. encoding/json would cost as
// much as the rest of a small event.
func TestUsual(t *testing.T) {
	m := Invocation{
		Function: "f", ID: "1a2087968d700002", Tenant: "default", DeadlineMS: 1795438535474, Request: Request{
			Method: "GET", Path: "/100", Query: "a=1&b=<2>",
			Headers: [][2]string{
				{"Host", "127.0.0.1:8080"},
				{"Forwarded", `for=127.0.0.1;host="127.0.0.1:8080";proto=http`},
				{"If-None-Match", `"etag", W/"weak\\"`},
				{"Tab", "\t"},
				{"Title", "höhe \U0001f600"},
				{"X-Request-Id", "57a3dc748bbd3dc8d4e6a3511b497220"},
			},
		},
	}
	var got Invocation
	if !got.parseUsual(string(m.Append(nil))) {
		t.Errorf("%s is not usual", m.Append(nil))
	}
	if !reflect.DeepEqual(m, got) {
		t.Errorf("got %+v, want %+v", got, m)
	}
	headers := [][2]string{{"content-type", "text/html; charset=\"utf-8\""}, {"etag", `"1"`}, {"link", "</a?b&c>; rel=preload"}}
	var answer ResponseMeta
	if p := AppendResponse(nil, 200, headers); !answer.parseUsual(string(p)) || answer.Status != 200 || !slices.Equal(headers, answer.Headers) {
		t.Errorf("%s: got %+v", p, answer)
	}
}

// unusual is metadata from other writers.
var unusual = []string{
	``, `{`, `{}`, `null`, `[]`, `{"status":200}`, `{"status":200,"headers":[]}`, `{"status":200,"headers":null}`,
	`{"status":200,"headers":[["a","b"]]}`, `{"status":200,"headers":[["a","b"],["c","d"]]}`, `{"status":200,"headers":[["a","b"],]}`,
	`{"status":200,"headers":[["a","b"]]} `, `{"status": 200, "headers": [["a", "b"]]}`, `{"headers":[["a","b"]],"status":200}`,
	`{"status":0200,"headers":[]}`, `{"status":0,"headers":[]}`, `{"status":-1,"headers":[]}`, `{"status":200.0,"headers":[]}`, `{"status":2e2,"headers":[]}`,
	`{"status":9999999999999999999,"headers":[]}`, `{"status":999999999999999999,"headers":[]}`, `{"status":"200","headers":[]}`,
	`{"status":200,"headers":[["a"]]}`, `{"status":200,"headers":[["a","b","c"]]}`, `{"status":200,"headers":[[]]}`, `{"status":200,"headers":[["a",null]]}`, `{"status":200,"headers":[null]}`,
	`{"status":200,"headers":[["a","b"]],"status":300}`, `{"status":200,"headers":[["a","b"]],"more":1}`, `{"status":200,"headers":[["\u0061","ü"]]}`,
	"{\"status\":200,\"headers\":[[\"a\",\"\xff\"]]}", "{\"status\":200,\"headers\":[[\"a\",\"\x01\"]]}", `{"status":200,"headers":[["a","<&>\u007f"]]}`, "{\"status\":200,\"headers\":[[\"a\",\"\x7f\"]]}",
	`{"STATUS":200,"Headers":[["a","b"]]}`, `{"status":200,"headers":[["\"\\\/\b\f\n\r\t\u0022\u003C\u007f","\u0000"]]}`, `{"status":200,"headers":[["\u0080","\u00e9\ud83d\ude00"]]}`,
	`{"status":200,"headers":[["\x","a"]]}`, `{"status":200,"headers":[["\u00","a"]]}`, `{"status":200,"headers":[["\u+041","a"]]}`, `{"status":200,"headers":[["\u0_41","a"]]}`, "{\"status\":200,\"headers\":[[\"\\n\xff\",\"\\n\x01\"]]}",
	`{"function":"f","id":"1","tenant":"t","deadline_ms":5,"method":"GET","path":"/","query":"","headers":[["a","b"]]}`,
	`{"function":"f","id":"1","tenant":"t","deadline_ms":5,"method":"GET","path":"/","query":"","headers":[["a","b"]],"upgrade":"x"}`,
	`{"function":"f","id":"1","tenant":"t","deadline_ms":5,"method":"GET","path":"/","query":"","headers":null}`,
	`{"function":"f","id":"1","tenant":"t","deadline_ms":-5,"method":"GET","path":"/","query":"","headers":[["a","b","c"]]}`,
	`{"function":"f","id":"1","tenant":"t","deadline_ms":00,"method":"GET","path":"/","query":"","headers":[]}`,
	`{"function":"f","id":"1","tenant":"t","deadline_ms":5,"method":"GET","path":"/","query":"","headers":[["a"]]}`,
}

// TestParseUnusual: the hand-written parser and encoding/json read the same.
func TestParseUnusual(t *testing.T) {
	for _, s := range unusual {
		checkParse(t, []byte(s))
		for i := range len(s) {
			checkParse(t, []byte(s[:i]))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range unusual {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) { checkParse(t, p) })
}
