package lambda

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/template"
)

// TestReference: a function's name, partial ARN and ARN are parsed.
func TestReference(t *testing.T) {
	for text, want := range map[string]reference{
		"greet":                       {name: "greet"},
		"greet:7":                     {name: "greet", qualifier: "7"},
		"greet:$LATEST":               {name: "greet", qualifier: "$LATEST"},
		"function:greet":              {name: "greet"},
		"function:greet:live":         {name: "greet", qualifier: "live"},
		"123456789012:function:greet": {account: "123456789012", name: "greet"},
		"arn:aws:lambda:eu-central-1:123456789012:function:greet:live": {region: "eu-central-1", account: "123456789012", name: "greet", qualifier: "live"},
	} {
		got, err := parseReference(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ":", "greet:", "Greet", "a_b", "../x", "greet:a:b", "arn:aws:s3:::bucket", "arn:aws:lambda:r:12:function:greet", "arn:aws:lambda:r:123456789012:layer:greet",
		"12:function:greet", "greet:a b", "a.b", strings.Repeat("a", 64), strings.Repeat("a", 10_000),
	} {
		if got, err := parseReference(text); err == nil {
			t.Errorf("%q: %+v, want it refused", clip(text), got)
		}
	}
}

// FuzzReference: any reference is parsed or refused with 400 and a short message.
func FuzzReference(f *testing.F) {
	f.Add("arn:aws:lambda:eu-central-1:123456789012:function:greet:live")
	f.Add("123456789012:function:greet:$LATEST")
	f.Add("::::::::")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReference(text)
		if err != nil {
			if f := errorOf(err); f.status != http.StatusBadRequest || len(f.message) > 400 {
				t.Errorf("%q: %d %s", text, f.status, f.message)
			}
			return
		}
		if !template.ValidName(r.name) || r.qualifier != "" && !qualifierPattern.MatchString(r.qualifier) {
			t.Errorf("%q: %+v", text, r)
		}
		whole := "arn:aws:lambda:us-east-1:" + Account(template.DefaultTenant) + ":function:" + r.name
		if again, err := parseReference(whole); err != nil || again.name != r.name {
			t.Errorf("%q, then %q: %+v, %v", text, whole, again, err)
		}
	})
}

// TestAccount: each tenant has its own number, always the same.
func TestAccount(t *testing.T) {
	if got := Account(template.DefaultTenant); got != "000000000000" {
		t.Errorf("the tenant default: %s", got)
	}
	seen := map[string]bool{Account(template.DefaultTenant): true}
	for i := range 1000 {
		a := Account(fmt.Sprint("tenant-", i))
		if !accountPattern.MatchString(a) || seen[a] || a != Account(fmt.Sprint("tenant-", i)) {
			t.Errorf("tenant-%d: %s", i, a)
		}
		seen[a] = true
	}
}

// TestMessage: message encodes an event stream's message according to AWS's description.
func TestMessage(t *testing.T) {
	headers := [][2]string{{":event-type", "PayloadChunk"}, {"x", ""}}
	b := message(headers, []byte("payload"))
	total, head := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	if int(total) != len(b) || binary.BigEndian.Uint32(b[8:]) != crc32.ChecksumIEEE(b[:8]) || binary.BigEndian.Uint32(b[total-4:]) != crc32.ChecksumIEEE(b[:total-4]) {
		t.Fatalf("%d bytes say %d, or their checksums are wrong: %x", len(b), total, b)
	}
	var got [][2]string
	for rest := b[12 : 12+head]; len(rest) > 0; {
		n := int(rest[0])
		name, v := string(rest[1:1+n]), rest[1+n:]
		if v[0] != 7 {
			t.Fatalf("header %s is of type %d", name, v[0])
		}
		m := int(binary.BigEndian.Uint16(v[1:]))
		got, rest = append(got, [2]string{name, string(v[3 : 3+m])}), v[3+m:]
	}
	if diff := cmp.Diff(headers, got); diff != "" || string(b[12+head:total-4]) != "payload" {
		t.Errorf("headers (-want +got):\n%s\npayload %q", diff, b[12+head:total-4])
	}
}

// TestTemplate: a variable keeps any value through the generated template.
func TestTemplate(t *testing.T) {
	value := "a ☃ \"q\" 'q' \\ \n\t # : {} - \u2028 é $X"
	set := settings{Runtime: "python3.13", Handler: "a.b", Timeout: 7, MemorySize: 256, Concurrency: 3, Environment: map[string]string{"COLOR": value}}
	text, err := set.template("greet", "acme")
	if err != nil {
		t.Fatal(err)
	}
	got, err := runtimes.Dialect().Parse(template.FileName, text)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "greet" || got.Tenant != "acme" || got.Handler != "a.b" || got.Env["COLOR"] != value || got.Resources.Timeout != 7*time.Second || got.Resources.MemoryBytes != 256<<20 || got.Instances.Max != 3 {
		t.Errorf("got %+v", got)
	}
	for runtime, want := range map[string]string{"nodejs22.x": "node", "java21": "java", "provided.al2023": "native", "provided.al2": "native", "python3.9": "python"} {
		set.Runtime = runtime
		if base, _, err := set.base(); base != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", runtime, base, err, want)
		}
	}
}

// TestErrors: each error of the engine and of access has AWS's name and status.
func TestErrors(t *testing.T) {
	for _, e := range []struct {
		err    error
		status int
		kind   string
	}{
		{&engine.UnknownError{Function: "x"}, 404, "ResourceNotFoundException"},
		{fmt.Errorf("deploy: %w", engine.ErrNameTaken), 409, "ResourceConflictException"},
		{&live.QuotaError{}, 429, "TooManyRequestsException"},
		{engine.ErrOverloaded, 429, "TooManyRequestsException"},
		{&access.SlowDownError{After: time.Second}, 429, "TooManyRequestsException"},
		{access.ErrSignature, 403, "InvalidSignatureException"},
		{access.ErrExpired, 403, "ExpiredTokenException"},
		{access.ErrToken, 403, "UnrecognizedClientException"},
		{access.ErrForbidden, 403, "AccessDeniedException"},
		{&template.FieldError{}, 400, "InvalidParameterValueException"},
		{engine.ErrClosed, 503, "ServiceException"},
		{errors.New("anything"), 500, "ServiceException"},
		{fs.ErrPermission, 500, "ServiceException"},
	} {
		if f := errorOf(e.err); f.status != e.status || f.kind != e.kind {
			t.Errorf("%v: %d %s, want %d %s", e.err, f.status, f.kind, e.status, e.kind)
		}
	}
}

// TestAliases: an alias's weight is stored as an alias of the engine, and can be read back.
func TestAliases(t *testing.T) {
	all := &engine.Revisions{Revisions: []engine.RevisionState{
		{Revision: engine.Revision{Number: 5}, Aliases: []string{"weight-2500-live", "weight-0100-gone"}},
		{Revision: engine.Revision{Number: 4}, Aliases: []string{"live", "version-4"}},
	}}
	list := aliasesOf(all)
	if len(list) != 1 || *list[0] != (alias{name: "live", version: 4, other: 5, weight: 2500}) || list[0].kept() != "weight-2500-live" {
		t.Fatalf("got %+v", list)
	}
	seen := map[int]bool{}
	for range 1000 { // fails once in 10^124 runs
		seen[list[0].pick()] = true
	}
	if !seen[4] || !seen[5] {
		t.Errorf("picked %v", seen)
	}
	for q, want := range map[string]int{"": 5, "$LATEST": 5, "4": 4, "04": 4, "live": 4, "5": 0, "x": 0, "-4": 0} {
		r, _, ok := qualified(all, q)
		if ok != (want > 0) || ok && r.Number != want {
			t.Errorf("%q: %+v, want %d", q, r, want)
		}
	}
}

// TestPaged: paged walks through a list, even if the marker's row was removed.
func TestPaged(t *testing.T) {
	ask := func(query string, all ...string) ([]string, string, error) {
		r := httptest.NewRequest(http.MethodGet, "/?"+query, http.NoBody)
		return paged(&call{r: r}, all, func(s string) string { return s }, 50)
	}
	page, next, err := ask("MaxItems=2", "c", "a", "b")
	if err != nil || !slices.Equal(page, []string{"a", "b"}) || next == "" {
		t.Fatalf("first page: %q, %q, %v", page, next, err)
	}
	if page, end, err := ask("Marker="+next, "c", "a"); err != nil || !slices.Equal(page, []string{"c"}) || end != "" {
		t.Errorf("the rest, without its marker's row: %q, %q, %v", page, end, err)
	}
	for _, bad := range []string{"MaxItems=0", "MaxItems=x", "MaxItems=10001", "Marker=***"} {
		if _, _, err := ask(bad, "a"); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// invokes makes a function an Invoker.
type invokes func(name string, r *engine.Request) (*engine.Response, error)

func (f invokes) Invoke(_ context.Context, name string, r *engine.Request) (*engine.Response, error) {
	return f(name, r)
}

// TestRun: an event goes to the Invoker, which may be another node in a cluster. A fault of the
// function becomes its answer; any other failure is an error.
func TestRun(t *testing.T) {
	busy := &access.SlowDownError{What: "events", After: time.Second}
	for _, e := range []struct {
		err   error
		fault string // the fault's type, "" for none
	}{
		{nil, ""},
		{busy, ""},
		{engine.ErrOverloaded, ""},
		{&engine.FunctionError{Type: "ValueError", Message: "no"}, "ValueError"},
		{fmt.Errorf("invoke: %w", engine.ErrTimeout), "Sandbox.Timedout"},
		{&engine.CrashError{Reason: "was killed"}, "Runtime.ExitError"},
		{&engine.StepError{Failure: failure.Overloaded, Err: engine.ErrOverloaded}, "Pipeline.StepFailed"},
		{&engine.StepError{Failure: failure.Timeout, Err: engine.ErrTimeout}, "Sandbox.Timedout"},
		{&engine.LoopError{Chain: "a → a", Why: "a is a step of itself"}, "Pipeline.StepFailed"},
	} {
		var got string
		s := &server{Config: Config{Invoker: invokes(func(name string, r *engine.Request) (*engine.Response, error) {
			body, err := io.ReadAll(r.Body)
			if got = name + " " + string(body); e.err != nil || err != nil {
				return nil, &engine.InvocationError{ID: "2", Instance: "box", Err: errors.Join(e.err, err)}
			}
			return &engine.Response{ID: "1"}, nil
		})}}
		c := &call{w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodPost, "/", http.NoBody), body: []byte(`{"a":1}`)}
		r, err := c.event(target{qualifier: "live", version: "2"})
		if err != nil {
			t.Fatal(err)
		}
		resp, f, err := s.run(c, "greet.acme@2", r)
		if diff := cmp.Diff([][2]string{{"Content-Type", "application/json"}, {"X-Fre-Lambda-Qualifier", "live"}, {"X-Fre-Lambda-Version", "2"}}, r.Headers); diff != "" {
			t.Error(diff)
		}
		if got != `greet.acme@2 {"a":1}` || (resp != nil) != (e.err == nil) {
			t.Errorf("%v: the event was %q, the answer %+v", e.err, got, resp)
		}
		id := "1"
		if e.err != nil {
			id = "2"
		}
		if got := c.w.Header().Get("X-Amzn-Requestid"); got != id || f != nil && f.instance != "box" {
			t.Errorf("%v: request %q, fault %+v; want request %s, and the instance whose lines are its own", e.err, got, f, id)
		}
		if f == nil && (e.fault != "" || !errors.Is(err, e.err)) || f != nil && (f.Type != e.fault || err != nil) {
			t.Errorf("%v: %+v and %v, want a fault of type %q", e.err, f, err, e.fault)
		}
	}
}

// TestUpload: after code is unpacked or refused, its memory is free for another upload, even if the
// request still waits. The directory ends with the request.
func TestUpload(t *testing.T) {
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	f, err := z.Create("main.py")
	if err == nil {
		_, err = f.Write([]byte("code"))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	var scratch string
	s := &server{codes: make(chan struct{}, 1)}
	s.Log, s.Scratch = slog.New(slog.DiscardHandler), func() (string, error) {
		scratch = t.TempDir()
		return scratch, nil
	}
	for text, good := range map[string]bool{archive.String(): true, "no zip": false, "": false} {
		s.codes <- struct{}{}
		c := &call{r: httptest.NewRequest(http.MethodPost, "/", http.NoBody), release: func() { <-s.codes }}
		var set settings
		dir, remove, err := s.upload(c, &set, &bundle{ZipFile: []byte(text)})
		if len(s.codes) != 0 || (err == nil) != good || set.CodeSize != int64(len(text)) || set.CodeSha256 == "" {
			t.Fatalf("%.8q: %d in memory, %v, %+v", text, len(s.codes), err, set)
		}
		if good {
			if code, err := os.ReadFile(filepath.Join(dir, codeDir, "main.py")); err != nil || string(code) != "code" {
				t.Errorf("unpacked: %q, %v", code, err)
			}
			remove()
		} else if errorOf(err).status != http.StatusBadRequest {
			t.Errorf("%.8q: %v", text, err)
		}
		if _, err := os.Stat(scratch); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%.8q: its directory is left: %v", text, err)
		}
	}
}

// nothing is a function without requests.
type nothing struct{ Events }

func (nothing) Publish(context.Context, string, *engine.Request) (string, error) {
	return "", errors.New("not to be called")
}

// newTest returns the API without an engine, for requests refused before an engine is needed.
func newTest(t *testing.T, unsigned string) (http.Handler, *access.Access) {
	t.Helper()
	a, err := access.Open(access.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	guard := &gateway.Guard{Access: a, Front: func(string) (engine.Front, bool) { return engine.Front{}, false }}
	return New(Config{Engine: &engine.Engine{Library: &build.Library{}}, Guard: guard, Events: nothing{}, Scratch: scratch(t), Log: slog.New(slog.DiscardHandler), Region: "us-east-1", Unsigned: unsigned}), a
}

// TestRefused: an unsigned request, or one with another tenant's key, reaches no handler.
func TestRefused(t *testing.T) {
	closed, a := newTest(t, "")
	token, text, err := a.CreateToken(access.TokenOptions{Name: "t", Tenant: "acme", Scopes: []access.Scope{access.Invoke}, AccessKey: true})
	if err != nil {
		t.Fatal(err)
	}
	id, secret := access.AccessKey(text)
	if id != token.AccessKey {
		t.Fatalf("access key %s, the token says %s", id, token.AccessKey)
	}
	local, _ := newTest(t, "acme")
	signed := func(r *http.Request, key, secret string) {
		r.Header.Set("X-Amz-Date", time.Now().UTC().Format(dateTime))
		sign(t, r, key, secret, []string{"host", "x-amz-date"}, nil)
	}
	for _, c := range []struct {
		name string
		h    http.Handler
		edit func(r *http.Request)
		want string
	}{
		{"unsigned", closed, func(*http.Request) {}, "MissingAuthenticationTokenException"},
		{"a token", closed, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+text) }, "IncompleteSignatureException"},
		{"scope", closed, func(r *http.Request) { signed(r, id, secret) }, "AccessDeniedException"},
		{"secret", closed, func(r *http.Request) { signed(r, id, secret+"x") }, "InvalidSignatureException"},
		{"key", closed, func(r *http.Request) { signed(r, "FREA0000000000000000", secret) }, "UnrecognizedClientException"},
		{"key in small letters", closed, func(r *http.Request) { signed(r, strings.ToLower(id), secret) }, "UnrecognizedClientException"},
		{"a page's", local, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, "AccessDeniedException"},
		{"a page's that has rebound its name", local, func(r *http.Request) { r.Host = "evil.example:9001" }, "AccessDeniedException"},
		{"unknown", local, func(r *http.Request) { r.URL.Path = "/2015-03-31/layers"; r.Host = "127.0.0.1:9001" }, "UnsupportedOperationException"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodDelete, functions+"/greet", http.NoBody)
			r.Host = "127.0.0.1:9001"
			c.edit(r)
			w := httptest.NewRecorder()
			c.h.ServeHTTP(deadlines{w}, r)
			var body struct {
				Message string `json:"message"`
			}
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Message == "" || w.Header().Get("X-Amzn-Errortype") != c.want {
				t.Errorf("got %d %v %s, want %s", w.Code, w.Header(), w.Body, c.want)
			}
		})
	}
}

// deadlines is a recorder with a connection's deadlines.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error { return nil }

// TestCodes: every code of the catalogue has a type and a status of Lambda's API. SDKs repeat a
// request after 429 and after 500 and above only.
func TestCodes(t *testing.T) {
	kinds := map[failure.Code]string{
		failure.BadSignature: "403 InvalidSignatureException", failure.Unauthorized: "403 UnrecognizedClientException", failure.Forbidden: "403 AccessDeniedException",
		failure.NotFound: "404 ResourceNotFoundException", failure.Cancelled: "499 RequestAbortedException",
		failure.NameTaken: "409 ResourceConflictException", failure.InUse: "409 ResourceConflictException", failure.Conflict: "409 ResourceConflictException", failure.ImageGone: "409 ResourceConflictException",
		failure.BodyTooLarge: "413 RequestTooLargeException", failure.HeaderTooLarge: "413 RequestTooLargeException",
	}
	for _, code := range []failure.Code{failure.Quota, failure.SlowDown, failure.QueueFull, failure.Overloaded, failure.EngineOverloaded, failure.Degraded} {
		kinds[code] = "429 TooManyRequestsException"
	}
	s := &server{Config: Config{Log: slog.New(slog.DiscardHandler)}}
	for _, f := range api.Failures() {
		w := httptest.NewRecorder()
		s.fail(route{}, &call{w: w, r: httptest.NewRequest(http.MethodPost, "/", http.NoBody)}, failure.New(f.Code, "the reason", ""))
		want := kinds[f.Code]
		switch {
		case want != "":
		case f.Status >= 500:
			want = fmt.Sprintf("%d ServiceException", f.Status)
		default:
			want = "400 InvalidParameterValueException"
		}
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("X-Amzn-Errortype")); got != want {
			t.Errorf("%s: %s, want %s", f.Code, got, want)
		}
		retry := ""
		if f.Retry > 0 {
			retry = strconv.Itoa(f.Retry)
		}
		if got := w.Header().Get("Retry-After"); got != retry {
			t.Errorf("%s: Retry-After %q, want %q", f.Code, got, retry)
		}
	}
}
