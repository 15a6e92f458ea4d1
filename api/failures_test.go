package api_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
)

var update = flag.Bool("update", false, "write docs/errors.md")

// renamed lists codes of earlier versions with their statuses and replacements.
var renamed = []struct{ before, where, now string }{
	{"`function_crash` 502", "control API", "`function_crashed` 502, as at the gateway"},
	{"`canceled` 499", "control API", "`cancelled` 499"},
	{"`client_gone` 499", "gateway's access log", "`cancelled` 499"},
	{"`timeout` 408", "gateway, for a head", "`slow_head` 408"},
	{"`timeout` 408", "control API and OpenFaaS's builder, for a body", "`slow_body` 408"},
	{"`overloaded` 429", "control API and OpenFaaS's builder, for an upload", "`busy` 503"},
	{"`overloaded` 503", "control API", "`overloaded`, `engine_overloaded`, `degraded`, `token_unchecked` or `events_unavailable`, all 503; `queue_full` 429"},
	{"`no_space` 507", "control API, for asynchronous events", "`events_storage` 503"},
	{"`function_error` 500", "control API, for a loop or a step of a pipeline", "`loop` 508, `step_missing` 502, or the code of the step"},
	{"`slow_down` 429", "control API, for the tenant's events", "`quota` 429"},
	{"`too_large` 413, 431", "control API, for a request's body or headers", "`body_too_large` 413, `header_too_large` 431"},
	{"`bad_request` 409", "control API, for a lost image, a revision or a trace", "`image_gone` 404, `conflict` 409"},
	{"`bad_request` 400", "control API", "`bad_name` and `wrong_platform` for images, `bad_body` for a broken body; else as before"},
}

// page returns docs/errors.md.
func page() string {
	var b strings.Builder
	b.WriteString(`# Errors

Every error of the gateway and of the control API is JSON. Programs compare the code; people read the message and the next step, which may be missing:

` + "```json\n" + `{"error": {"code": "timeout", "message": "function did not answer in time", "next": "raise resources.timeout in the template, or see the function's logs"}}
` + "```" + `

A 429 or 503 has ` + "`Retry-After`" + ` if a retry can help. If an event was made of the request, ` + "`X-Fre-Id`" + ` names the invocation, as in the access log and in ` + "`fre logs`" + `.

The codes marked ° belong to the control API. A caller of functions could not act on them, so the gateway answers ` + "`internal`" + ` and the engine's log has the reason. [Docker's](docker.md), [Lambda's](lambda.md) and [OpenFaaS's](openfaas.md) APIs translate the codes to their own. [calls.md](calls.md) lists the codes that functions get for their calls.

Where an error names no next step, its message contains the step.

| status | code | meaning | next step |
|---|---|---|---|
`)
	for _, f := range api.Failures() {
		mark := ""
		if f.Code.OfControl() {
			mark = " °"
		}
		fmt.Fprintf(&b, "| %d | `%s`%s | %s | %s |\n", f.Status, f.Code, mark, f.Meaning, f.Next)
	}
	b.WriteString("\n## Renamed\n\n| before | where | now |\n|---|---|---|\n")
	for _, r := range renamed {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.before, r.where, r.now)
	}
	b.WriteString("\n<!-- written by go test ./api -run TestErrorsPage -update -->\n")
	return b.String()
}

// docs/errors.md equals the catalogue. -update writes the page.
func TestErrorsPage(t *testing.T) {
	const file = "../docs/errors.md"
	if *update {
		if err := os.WriteFile(file, []byte(page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != page() {
		t.Errorf("%s differs from the catalogue (%v): go test ./api -run TestErrorsPage -update writes it", file, err)
	}
}

// TestFailures: the catalogue has each code once, in the order of statuses, with a meaning.
func TestFailures(t *testing.T) {
	seen := map[failure.Code]bool{}
	for _, f := range api.Failures() {
		if seen[f.Code] || f.Status < 400 || f.Meaning == "" || f.Retry > 0 && f.Status != http.StatusTooManyRequests && f.Status != http.StatusServiceUnavailable {
			t.Errorf("%+v: want one entry with a status of a failure and a meaning, and a wait for 429 and 503 only", f)
		}
		seen[f.Code] = true
		e := api.ErrorOf(fmt.Errorf("try: %w", failure.New(f.Code, "no", "")))
		if e.Code != f.Code || e.Status != f.Status || e.Next != f.Next || e.Message != "try: no" {
			t.Errorf("%s: the answer is %+v with status %d, want status %d", f.Code, e, e.Status, f.Status)
		}
	}
	if !slices.IsSortedFunc(api.Failures(), func(a, b api.Failure) int { return a.Status - b.Status }) {
		t.Error("the catalogue is not in the order of statuses")
	}
	if e := api.ErrorOf(errors.New("other")); e.Code != failure.Internal || e.Status != http.StatusInternalServerError {
		t.Errorf("an error without a code: %+v", e)
	}
}

// The catalogue has every code of package failure, and production code uses each.
func TestCodesUsed(t *testing.T) {
	text, err := os.ReadFile("../failure/failure.go")
	if err != nil {
		t.Fatal(err)
	}
	var used strings.Builder
	for _, dir := range []string{"access", "admission", "cluster", "engine", "events", "events/trigger", "gateway", "httpserver", "image", "image/oci", "internal/outward", "sandbox", "server", "store", "adapters/openfaas"} {
		files, err := os.ReadDir("../" + dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if name := f.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
				b, err := os.ReadFile("../" + dir + "/" + name)
				if err != nil {
					t.Fatal(err)
				}
				used.Write(b)
			}
		}
	}
	catalogue, err := os.ReadFile("failures.go")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := strings.Cut(string(catalogue), "func ErrorOf(")
	used.WriteString(own)
	inAPI, err := os.ReadFile("error.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[failure.Code]bool{}
	for _, f := range api.Failures() {
		known[f.Code] = true
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " Code = ")
		if !ok || !strings.HasPrefix(value, `"`) {
			continue
		}
		name = strings.TrimSpace(name)
		if code := failure.Code(strings.Trim(value, `"`)); !known[code] {
			t.Errorf("the catalogue lacks %s", code)
		}
		alias := "-"
		for line := range strings.Lines(string(inAPI)) {
			if a, of, ok := strings.Cut(strings.TrimSpace(line), "= failure."); ok && of == name {
				alias = "api." + strings.TrimSpace(a)
			}
		}
		if !strings.Contains(used.String(), "failure."+name) && !strings.Contains(used.String(), alias) {
			t.Errorf("nothing uses failure.%s", name)
		}
	}
}
