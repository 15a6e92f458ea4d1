package template_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/runtimes"
	. "github.com/fre-engine/fre/template"
)

// TestAccess: A template's secrets, access and CORS settings are checked, and an error names its
// place in the file.
func TestAccess(t *testing.T) {
	const head = "id: f\nbase: python\n"
	got, err := runtimes.Dialect().Parse("fret.yaml", []byte(head+"secrets: [stripe-key, API_KEY]\naccess: token\ncors:\n  origins: [https://app.example, 'http://[::1]:3000']\n  methods: [PUT]\n  headers: [Content-Type]\n  credentials: true\n  max_age: 1h\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := &CORS{Origins: []string{"https://app.example", "http://[::1]:3000"}, Methods: []string{"PUT"}, Headers: []string{"Content-Type"}, Credentials: true, MaxAge: time.Hour}
	if diff := cmp.Diff(want, got.CORS); diff != "" || got.Access != AccessToken || !cmp.Equal(got.Secrets, []string{"API_KEY", "stripe-key"}) {
		t.Errorf("access %q, secrets %q, cors (-want +got):\n%s", got.Access, got.Secrets, diff)
	}
	many := strings.Repeat("a, ", 16) + "b"
	for more, want := range map[string]string{
		"secrets: [../etc/passwd]":                    "fret.yaml:3:11: ",
		"secrets: [.hidden]":                          "fret.yaml:3:11: ",
		"secrets: [a, a]":                             "names a twice",
		"secrets: [" + many + "]":                     "the limit is 16",
		"secrets: key":                                "must be a list",
		"access: everybody":                           `must be "token" or "open"`,
		"cors: {methods: [GET]}":                      `missing key "origins"`,
		"cors: {origins: []}":                         "cors.origins names none",
		"cors: {origins: [app]}":                      "bad origin",
		"cors: {origins: ['https://a.example/path']}": "bad origin",
		"cors: {origins: ['*', 'https://a.example']}": "cors.origins: browsers refuse *",
		"cors: {origins: ['*'], credentials: true}":   "cors.origins: browsers refuse *",
		"cors: {origins: ['*'], headers: ['a b']}":    "bad entry",
		"cors: {origins: ['*'], max_age: 48h}":        "max_age",
	} {
		if _, err := runtimes.Dialect().Parse("fret.yaml", []byte(head+more+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
	// Foreign images get the same checks.
	for name, tmpl := range map[string]Template{
		"secret": {Secrets: []string{"a/b"}}, "access": {Access: "all"}, "origins": {CORS: &CORS{}},
	} {
		if err := CheckAccess(tmpl.Secrets, tmpl.Access, tmpl.CORS); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
