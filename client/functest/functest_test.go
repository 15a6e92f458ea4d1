package functest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoad(t *testing.T) {
	dir := write(t, map[string]string{
		"test/event.json":       `{}`,
		"test/expect.json":      `{"body": "I am {{function}}"}`,
		"test/post.event.json":  `{"path": "/a?x=1", "query": {"y": ["2", "3"]}, "headers": {"A": "1", "B": ["2", "3"]}, "body_json": {"k": 1}}`,
		"test/post.expect.json": `{"status": 201, "body_file": "post.bin"}`,
		"test/post.bin":         "\x00\x01",
		"test/notes.txt":        "not a test",
		"test/b.event.json":     `{"method": "GET", "path": "?q", "body_base64": "AAE="}`,
		"test/b.expect.json":    `{"error": "ValueError", "max_duration": "2s"}`,
	})
	cases, err := Load(dir, "me")
	if err != nil {
		t.Fatal(err)
	}
	type shown struct {
		Name, Method, Path, Query, Body string
		Header                          http.Header
	}
	var got []shown
	for _, c := range cases {
		e := c.Event.Client()
		var body []byte
		if e.Body != nil {
			if body, err = io.ReadAll(e.Body); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, shown{c.Name, e.Method, e.Path, e.Query, string(body), e.Header})
	}
	want := []shown{
		{"b", "GET", "/", "q", "\x00\x01", http.Header{}},
		{"event", "POST", "/", "", "", http.Header{}},
		{"post", "POST", "/a", "x=1&y=2&y=3", `{"k": 1}`, http.Header{"A": {"1"}, "B": {"2", "3"}, "Content-Type": {"application/json"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for i, a := range []Answer{
		{Status: 500, Body: []byte(`{"error":{"code":"function_error","message":"ValueError: no"}}`)},
		{Status: 200, Body: []byte("I am me")},
		{Status: 201, Body: []byte{0, 1}},
	} {
		if wrong := cases[i].Expect.Check(&a); wrong != nil {
			t.Errorf("%s: %q", cases[i].Name, wrong)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	const event, expect = "test/event.json", "test/expect.json"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"none":             {map[string]string{"test/notes.txt": ""}, "holds no tests"},
		"unknown key":      {map[string]string{event: `{"metod": "GET"}`, expect: `{"body": ""}`}, `event.json: json: unknown field "metod"`},
		"no JSON":          {map[string]string{event: `hello`, expect: `{"body": ""}`}, "event.json: invalid character"},
		"empty":            {map[string]string{event: ``, expect: `{"body": ""}`}, "event.json: is empty"},
		"two values":       {map[string]string{event: `{}{}`, expect: `{"body": ""}`}, "data after"},
		"two bodies":       {map[string]string{event: `{"body": "a", "body_json": 1}`, expect: `{"body": ""}`}, "several of"},
		"path":             {map[string]string{event: `{"path": "a"}`, expect: `{"body": ""}`}, "does not begin with /"},
		"header":           {map[string]string{event: `{"headers": {"a": 1}}`, expect: `{"body": ""}`}, "neither a string nor"},
		"nothing expected": {map[string]string{event: `{}`, expect: `{"status": 200}`}, "says nothing about the body"},
		"pattern":          {map[string]string{event: `{}`, expect: `{"body_matches": "("}`}, "body_matches"},
		"duration":         {map[string]string{event: `{}`, expect: `{"any_body": true, "max_duration": "soon"}`}, "max_duration"},
		"no expectation":   {map[string]string{event: `{}`}, "expect.json"},
		"no event":         {map[string]string{event: `{}`, expect: `{"body": ""}`, "test/a.expect.json": `{}`}, "a.event.json"},
		"body elsewhere":   {map[string]string{event: `{"body_file": "../fret.yaml"}`, expect: `{"body": ""}`, "fret.yaml": ""}, ""},
		"body outside":     {map[string]string{event: `{"body_file": "../../etc/passwd"}`, expect: `{"body": ""}`}, "body_file"},
		"no body":          {map[string]string{event: `{"body_file": "gone"}`, expect: `{"body": ""}`}, "body_file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(write(t, c.files), "f")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
			if name == "none" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got error %v, want fs.ErrNotExist", err)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	answer := func(status int, body string) *Answer {
		return &Answer{Status: status, Header: http.Header{"X-A": {"1"}}, Body: []byte(body), Took: time.Second}
	}
	const failed = `{"error":{"code":"function_error","message":"KeyError: 'a: b'"}}`
	for _, c := range []struct {
		name, expect string
		answer       *Answer
		want         []string
	}{
		{"all right", `{"body": "hello", "headers": {"x-a": "1"}}`, answer(200, "hello"), nil},
		{"status", `{"body": "hello"}`, answer(500, "hello"), []string{"status: want 200, got 500"}},
		{"header", `{"any_body": true, "headers": {"x-a": "2", "x-b": "3"}}`, answer(200, ""), []string{`header x-a: want ["2"], got ["1"]`, `header x-b: want ["3"], got []`}},
		{"body", `{"body": "a\nb\nc"}`, answer(200, "a\nx\nc"), []string{"body:\n    a\n  - b\n  + x\n    c"}},
		{"bytes", `{"body_base64": "AAE="}`, answer(200, "\x00"), []string{"body:\n  - base64 AAE=\n  + base64 AA=="}},
		{"part", `{"body_contains": ["el", "lo"]}`, answer(200, "hello"), nil},
		{"missing part", `{"body_contains": ["el", "x"]}`, answer(200, "hello"), []string{"body_contains: want \"x\" in the body, got\n  hello"}},
		{"pattern", `{"body_matches": "^\\d+ \\d+\\n$"}`, answer(200, "12 34\n"), nil},
		{"no match", `{"body_matches": "^\\d+$"}`, answer(200, "x"), []string{"body_matches: want a match of \"^\\\\d+$\", got\n  x"}},
		{"json", `{"body_json": {"a":1,"b":[2.0]}}`, answer(200, ` {"b": [2], "a": 1}`), nil},
		{"large numbers", `{"body_json": 9007199254740993}`, answer(200, "9007199254740992"), []string{"body_json:\n  - 9007199254740993\n  + 9007199254740992"}},
		{"larger numbers", `{"body_json": 18446744073709551615}`, answer(200, "18446744073709551614"), []string{"body_json:\n  - 18446744073709551615\n  + 18446744073709551614"}},
		{"numbers alike", `{"body_json": [1e20, -0, 0.5, 1e400]}`, answer(200, "[100000000000000000000, 0, 5e-1, 1e400]"), nil},
		{"other json", `{"body_json": {"a":1}}`, answer(200, `{"a":2}`), []string{"body_json:\n    {\n  -   \"a\": 1\n  +   \"a\": 2\n    }"}},
		{"no json", `{"body_json": 1}`, answer(200, `a`), []string{"body_json: the body is no JSON (invalid character 'a' looking for beginning of value):\n  a"}},
		{"more than json", `{"body_json": {"a":1}}`, answer(200, `{"a":1}}`), []string{"body_json: the body is no JSON (data after the JSON value):\n  {\"a\":1}}"}},
		{"subset", `{"body_subset": {"a":{"b":1},"c":[{"d":2}]}}`, answer(200, `{"a":{"b":1,"x":2},"c":[{"d":2,"e":3}],"f":0}`), nil},
		{"no subset", `{"body_subset": {"a":1,"c":[1]}}`, answer(200, `{"c":[1,2],"f":0}`), []string{"body_subset:\n    {\n  -   \"a\": 1,\n      \"c\": [\n  -     1\n  +     1,\n  +     2\n      ]\n    }"}},
		{"error", `{"error": "KeyError"}`, answer(500, failed), nil},
		{"error code", `{"error": "function_error", "status": 500}`, answer(500, failed), nil},
		{"another error", `{"error": "ValueError"}`, answer(500, failed), []string{"error: want ValueError, got function_error: KeyError: 'a: b'"}},
		{"no error", `{"error": "ValueError"}`, answer(200, failed), []string{"error: want ValueError, got none"}},
		{"in time", `{"any_body": true, "max_duration": "1s"}`, answer(200, ""), nil},
		{"too late", `{"any_body": true, "max_duration": "999ms"}`, answer(200, ""), []string{"max_duration: want at most 999ms, got 1s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := ParseExpect([]byte(c.expect), "f")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, e.Check(c.answer)); diff != "" {
				t.Errorf("%s of %d %s (-want +got):\n%s", c.expect, c.answer.Status, c.answer.Body, diff)
			}
		})
	}
}

func TestJUnit(t *testing.T) {
	s := &Suite{Template: "dir", Passed: 1, Failed: 1, Tests: []Result{
		{Name: "good", Passed: true, Millis: 1.5},
		{Name: "bad", Millis: 2000, Differences: []string{"status: want 1, got 2\nmore", "b"}, Logs: []string{"line <1>", "\x1b"}},
	}}
	var out bytes.Buffer
	if err := s.WriteJUnit(&out); err != nil {
		t.Fatal(err)
	}
	var got junitSuite
	if err := xml.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := junitSuite{XMLName: xml.Name{Local: "testsuite"}, Name: "dir", Tests: 2, Failures: 1, Time: "2.002", Cases: []junitCase{
		{Name: "good", Class: "dir", Time: "0.002"},
		{Name: "bad", Class: "dir", Time: "2.000", Out: "line <1>\n\ufffd", Failure: &junitFailure{"status: want 1, got 2", "status: want 1, got 2\nmore\nb"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, out.String())
	}
}

// No file or answer crashes the parser, a parsed event can be sent, and an answer equals itself.
func FuzzTest(f *testing.F) {
	f.Add([]byte(`{"path":"/a?b","query":{"c":"d"},"headers":{"e":["f"]},"body_json":{}}`), []byte(`{"body_json":{"a":[1,{"b":2.5}]},"body_matches":"a*","error":"x"}`), []byte(`{"a":[1]}`))
	f.Add([]byte(`{"body_base64":"AA=="}`), []byte(`{"body_subset":[1],"max_duration":"1s","any_body":true}`), []byte(`{"error":{"code":"x"}}`))
	f.Fuzz(func(t *testing.T, event, expect, body []byte) {
		if e, err := ParseEvent(event); err == nil {
			if c := e.Client(); !strings.HasPrefix(c.Path, "/") {
				t.Errorf("path %q", c.Path)
			}
		}
		if e, err := ParseExpect(expect, "name"); err == nil {
			e.Check(&Answer{Status: 500, Body: body})
		}
		whole := string(body)
		self := Expect{Status: 200, Body: &whole, BodyJSON: body, BodySubset: body}
		if _, err := value(body); err != nil {
			self.BodyJSON, self.BodySubset = nil, nil
		}
		if wrong := self.Check(&Answer{Status: 200, Body: body}); wrong != nil {
			t.Errorf("%q differs from itself: %q", body, wrong)
		}
	})
}

// Two answers with the same JSON are equal.
func TestCanonical(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{`{"a": 1, "b": [1, 2]}`, `{"b":[1.0,2],"a":1}`, true},
		{`[1, 2]`, `[2, 1]`, false},
		{`{"a": 1}`, `{"a": 1, "a": 2}`, false},
		{`12345678901234567890`, `12345678901234567891`, false},
		{"a b", "a  b", false},
		{`{"a": 1} x`, `{"a":1} x`, false}, // no JSON
		{"", "", true},
	} {
		if same := bytes.Equal(canonical([]byte(tt.a)), canonical([]byte(tt.b))); same != tt.same {
			t.Errorf("%s and %s are the same: %v", tt.a, tt.b, same)
		}
	}
}
