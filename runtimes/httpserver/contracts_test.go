package httpserver_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/channel"
)

// client is a runtime interface client. The event's "do" selects the handler's work.
func client(mode string) {
	base := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime"
	post := func(path string, header http.Header, body io.Reader) {
		r, err := http.NewRequest(http.MethodPost, base+path, body)
		if err != nil {
			panic(err)
		}
		maps.Copy(r.Header, header)
		if t := header["X-Trailer"]; t != nil {
			r.Trailer = http.Header{"Lambda-Runtime-Function-Error-Type": {"Late"}, "Lambda-Runtime-Function-Error-Body": t}
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			panic(err)
		}
		_ = a.Body.Close()
		if a.StatusCode != http.StatusAccepted {
			panic(a.Status)
		}
	}
	failure := func(kind string) (http.Header, io.Reader) {
		return http.Header{"Lambda-Runtime-Function-Error-Type": {kind}}, strings.NewReader(`{"errorMessage":"no luck","errorType":"` + kind + `","stackTrace":["a","b\n"]}`)
	}
	switch mode {
	case "init":
		h, b := failure("ImportError")
		post("/init/error", h, b)
		os.Exit(1)
	case "exits":
		fmt.Fprintln(os.Stderr, "no such module: x")
		os.Exit(3)
	case "deaf":
		fmt.Fprintln(os.Stderr, "not interested")
		untilKilled()
	}
	for {
		a, err := http.Get(base + "/invocation/next")
		if err != nil {
			os.Exit(0)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil {
			panic(err)
		}
		_ = a.Body.Close()
		id := "/invocation/" + a.Header.Get("Lambda-Runtime-Aws-Request-Id")
		var e struct{ Do, Body string }
		_ = json.Unmarshal(body, &e)
		do := e.Do
		if do == "" {
			do = e.Body
		}
		switch do {
		case "fail":
			h, b := failure("ValueError")
			post(id+"/error", h, b)
		case "die":
			fmt.Fprintln(os.Stderr, "out of luck")
			os.Exit(5)
		case "headers":
			h := map[string]string{}
			for _, n := range []string{"Content-Type", "Lambda-Runtime-Aws-Request-Id", "Lambda-Runtime-Deadline-Ms", "Lambda-Runtime-Invoked-Function-Arn", "Lambda-Runtime-Trace-Id", "Lambda-Runtime-Client-Context"} {
				h[n] = a.Header.Get(n)
			}
			out, _ := json.Marshal(h)
			post(id+"/response", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(out))
		case "stream", "late":
			h := http.Header{"Content-Type": {"text/event-stream"}, "Lambda-Runtime-Function-Response-Mode": {"streaming"}}
			if do == "late" {
				h["X-Trailer"] = []string{base64.StdEncoding.EncodeToString([]byte(`{"errorMessage":"too late","errorType":"Late"}`))}
			}
			post(id+"/response", h, io.MultiReader(strings.NewReader("one "), strings.NewReader("two")))
		case "prelude":
			post(id+"/response", http.Header{"Content-Type": {"application/vnd.awslambda.http-integration-response"}, "Lambda-Runtime-Function-Response-Mode": {"streaming"}},
				io.MultiReader(strings.NewReader(`{"statusCode":418,"headers":{"X-A":"b","Content-Type":"text/x"},"cookies":["c=d"]}`+strings.Repeat("\x00", 8)), strings.NewReader("tea")))
		case "answer":
			post(id+"/response", nil, strings.NewReader(`{"statusCode":201,"headers":{"X-N":7,"Connection":"close"},"cookies":["a=b"],"isBase64Encoded":true,"body":"/w=="}`))
		case "odd":
			post(id+"/response", nil, strings.NewReader(`{"statusCode":99}`))
		default:
			post(id+"/response", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(body))
		}
	}
}

func startClient(t *testing.T, mode string, env ...string) *function {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, []string{self, mode}, append([]string{"FRE_CONTRACT=lambda", "FRE_LAMBDA_EVENT=body"}, env...)...)
}

// TestRuntimeAPI: A Lambda runtime interface client finds the Runtime API with its headers, and its
// answers and errors reach the engine.
func TestRuntimeAPI(t *testing.T) {
	f := startClient(t, "serves")
	if r, err := f.Ready(t.Context()); err != nil || r.Concurrency != 1 || r.Runtime != "lambda" {
		t.Fatalf("%+v, %v", r, err)
	}
	plain := [][2]string{{"content-type", "application/json"}}
	big := `"` + strings.Repeat("0123456789", 200_000) + `"`
	in := channel.Invocation{
		Function: "f", ID: "id-1", DeadlineMS: 4102444800000, // in 2100
		Request: channel.Request{
			Method: "POST", Path: "/",
			Headers: [][2]string{{"X-Amzn-Trace-Id", "Root=1"}, {"X-Amz-Client-Context", base64.StdEncoding.EncodeToString([]byte(`{"custom":1}`))}},
		},
	}
	for _, tt := range []struct {
		body string
		want answer
	}{
		{`{"a":1}`, answer{200, plain, `{"a":1}`}},
		{``, answer{200, plain, `{}`}},
		{big, answer{200, plain, big}},
		{`{"do":"headers"}`, answer{200, plain, `{"Content-Type":"application/json","Lambda-Runtime-Aws-Request-Id":"id-1","Lambda-Runtime-Client-Context":"{\"custom\":1}","Lambda-Runtime-Deadline-Ms":"4102444800000","Lambda-Runtime-Invoked-Function-Arn":"arn:aws:lambda:us-east-1:000000000000:function:f","Lambda-Runtime-Trace-Id":"Root=1"}`}},
		{`{"do":"stream"}`, answer{200, [][2]string{{"content-type", "text/event-stream"}}, "one two"}},
		{`{"do":"prelude"}`, answer{418, [][2]string{{"content-type", "text/x"}, {"x-a", "b"}, {"set-cookie", "c=d"}}, "tea"}},
	} {
		got, err := f.get(t, &in, strings.NewReader(tt.body))
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%.50s: %v\n%.1000s", tt.body, err, diff)
		}
	}
	qualified := in
	qualified.Headers = [][2]string{{"X-Fre-Lambda-Qualifier", "live"}, {"X-Fre-Lambda-Version", "4"}}
	if a, err := f.get(t, &qualified, strings.NewReader(`{"do":"headers"}`)); err != nil || !strings.Contains(a.Body, `:function:f:live"`) {
		t.Errorf("by a qualified name: %v, %v", a, err)
	}
	var failed *channel.Failure
	if _, err := f.get(t, &in, strings.NewReader(`{"do":"fail"}`)); !errors.As(err, &failed) || failed.Type != "ValueError" || failed.Message != "no luck" || failed.Stack != "a\nb\n" {
		t.Errorf("a handler that fails: %v", err)
	}
	if a, err := f.get(t, &in, strings.NewReader(`{"do":"late"}`)); a.Body != "one two" || !errors.As(err, &failed) || failed.Message != "too late" {
		t.Errorf("a stream that fails: %v, %v", a, err)
	}
	if _, err := f.get(t, &in, strings.NewReader(`{"do":"die"}`)); !errors.As(err, &failed) || failed.Type != "ServerExited" || !strings.Contains(failed.Stack, "out of luck") {
		t.Errorf("a client that ends: %v", err)
	}
	<-f.exited
}

// TestRuntimeAPIHTTP: A handler's return value with statusCode becomes an HTTP answer; an invalid
// status is an error.
func TestRuntimeAPIHTTP(t *testing.T) {
	f := startClient(t, "serves", "FRE_LAMBDA_EVENT=http")
	for _, tt := range []struct {
		body string
		want answer
	}{
		{"answer", answer{201, [][2]string{{"x-n", "7"}, {"set-cookie", "a=b"}, {"content-type", "text/plain; charset=utf-8"}}, "\xff"}},
		{"prelude", answer{418, [][2]string{{"content-type", "text/x"}, {"x-a", "b"}, {"set-cookie", "c=d"}}, "tea"}},
	} {
		got, err := f.get(t, &channel.Invocation{ID: "1", Request: channel.Request{Method: "POST", Path: "/", Headers: [][2]string{{"Content-Type", "text/plain"}}}}, strings.NewReader(tt.body))
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tt.body, err, diff)
		}
	}
	var failed *channel.Failure
	if _, err := f.get(t, &channel.Invocation{ID: "1", Request: channel.Request{Method: "POST", Path: "/"}}, strings.NewReader("odd")); !errors.As(err, &failed) || failed.Type != "InvalidResponse" {
		t.Errorf("an answer with the status 99: %v", err)
	}
}

// TestRuntimeAPINotReady: If a client fails at its start, exits or never asks for an event, the
// engine gets the reason.
func TestRuntimeAPINotReady(t *testing.T) {
	for mode, want := range map[string]channel.Failure{
		"init":  {Type: "ImportError", Message: "no luck", Stack: "a\nb\n"},
		"exits": {Type: "ServerExited", Message: "the server ended with exit status 3", Stack: "no such module: x\n"},
		"deaf":  {Type: "NotReady", Message: "the program did not ask for an event at $AWS_LAMBDA_RUNTIME_API, as a Lambda runtime interface client does", Stack: "not interested\n"},
	} {
		_, err := startClient(t, mode, deafTime[mode]).Ready(t.Context())
		var got *channel.Failure
		if !errors.As(err, &got) {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		want.Load = true
		if diff := cmp.Diff(want, *got); diff != "" {
			t.Errorf("%s: %s", mode, diff)
		}
	}
}

// program is a CGI program.
func program() {
	if os.Getenv("QUERY_STRING") == "cat" {
		fmt.Print("Content-Type: text/plain\n\n")
		_, _ = io.Copy(os.Stdout, os.Stdin)
		os.Exit(0)
	}
	body, _ := io.ReadAll(os.Stdin)
	switch os.Getenv("QUERY_STRING") {
	case "silent":
		fmt.Fprintln(os.Stderr, "no words")
		os.Exit(4)
	case "odd":
		fmt.Print("what is this\n\n")
	case "redirect":
		fmt.Print("Location: /there\n\n")
	case "status":
		fmt.Print("Status: 999 Odd\n\n")
	case "endless":
		fmt.Print("Content-Type: text/plain\n\n")
		for {
			if _, err := os.Stdout.Write(make([]byte, 10_000)); err != nil {
				os.Exit(0)
			}
		}
	default:
		fmt.Print("Content-type: text/x\r\nStatus: 201 Created\r\nX-A: 1\r\nConnection: close\r\n\r\n")
		for _, n := range []string{"REQUEST_METHOD", "PATH_INFO", "CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_X_B", "HTTP_PROXY", "SERVER_NAME", "SERVER_PORT", "REMOTE_ADDR", "SCRIPT_NAME", "REQUEST_URI"} {
			fmt.Printf("%s=%s ", n, os.Getenv(n))
		}
		fmt.Print(len(body))
	}
	os.Exit(0)
}

// TestCGI: A CGI program starts for each event with the variables of RFC 3875, and may answer
// during its input.
func TestCGI(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := startWith(t, []string{self}, "FRE_CONTRACT=cgi")
	if r, err := f.Ready(t.Context()); err != nil || r.Concurrency != 8 || r.Runtime != "cgi" {
		t.Fatalf("%+v, %v", r, err)
	}
	in := channel.Invocation{Function: "f", ID: "1", Request: channel.Request{Method: "POST", Path: "/a%20b", Headers: [][2]string{
		{"Host", "example.org:81"},
		{"Content-Type", "text/y"},
		{"X-B", "2"},
		{"x-b", "3"},
		{"Proxy", "http://evil"},
		{"X-Forwarded-For", "10.0.0.1, 192.0.2.7"},
		{"X-Forwarded-Prefix", "/%61/function/f"},
		{"X_B", "forged"},
		{"X.B", "forged"},
	}}}
	head := [][2]string{{"Content-type", "text/x"}, {"X-A", "1"}}
	for _, size := range []int{3, 1_000_000} {
		want := answer{201, head, fmt.Sprintf("REQUEST_METHOD=POST PATH_INFO=/a b CONTENT_LENGTH=%d CONTENT_TYPE=text/y HTTP_X_B=2, 3 HTTP_PROXY= SERVER_NAME=example.org SERVER_PORT=81 REMOTE_ADDR=192.0.2.7 SCRIPT_NAME=/a/function/f REQUEST_URI=/%%61/function/f/a%%20b %d", size, size)}
		got, err := f.get(t, &in, strings.NewReader(strings.Repeat("x", size)))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%d bytes: %v\n%s", size, err, diff)
		}
	}
	in.Query = "cat" // reads on only after its answer is read
	for _, size := range []int{3, 100_000, 1_000_000} {
		body := strings.Repeat("x", size)
		if got, err := f.get(t, &in, strings.NewReader(body)); err != nil || got.Body != body {
			t.Errorf("cat of %d bytes: %d, %v", size, len(got.Body), err)
		}
	}
	in.Query = "redirect"
	if got, err := f.get(t, &in, strings.NewReader("")); err != nil || got.Status != 302 {
		t.Errorf("%v, %v", got, err)
	}
	for query, want := range map[string]string{"silent": "no empty line", "odd": `"what is this" is not a header`, "status": "999"} {
		in.Query = query
		var failed *channel.Failure
		if _, err := f.get(t, &in, strings.NewReader("")); !errors.As(err, &failed) || failed.Type != "CGIError" || !strings.Contains(failed.Message, want) {
			t.Errorf("%s: %v", query, err)
		} else if query == "silent" && (!strings.Contains(failed.Message, "exit status 4") || failed.Stack != "no words\n") {
			t.Errorf("%s: %v, %q", query, failed, failed.Stack)
		}
	}
	in.Query, in.Body = "endless", strings.NewReader("")
	r, err := f.Invoke(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r.Body, make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close() // kills the program, otherwise the next event would find no place
	in.Query = ""
	for range 8 {
		if _, err := f.get(t, &in, strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
	}
}
