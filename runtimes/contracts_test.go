package runtimes_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/template"
)

// Each runtime supports exactly its listed contracts.
func TestContracts(t *testing.T) {
	got := map[string][]template.Contract{}
	for _, r := range runtimes.All() {
		for _, c := range template.Contracts() {
			if of, ok := r.(image.Contracted); ok && of.Contract(c) != nil || !ok && c == template.ContractFRE {
				got[r.Name()] = append(got[r.Name()], c)
			}
		}
	}
	if diff := cmp.Diff(map[string][]template.Contract{
		"python": {template.ContractFRE, template.ContractLambda, template.ContractASGI, template.ContractWSGI, template.ContractFramework, template.ContractKnative},
		"node":   {template.ContractFRE, template.ContractLambda, template.ContractFramework, template.ContractKnative},
		"java":   {template.ContractFRE, template.ContractLambda, template.ContractFramework},
		"go":     {template.ContractFRE, template.ContractLambda, template.ContractKnative},
		"native": {template.ContractFRE, template.ContractLambda, template.ContractCGI, template.ContractStdio},
		"http":   {template.ContractHTTP},
		"php":    {template.ContractFRE}, "ruby": {template.ContractFRE},
	}, got); diff != "" {
		t.Error(diff)
	}
}

// The error for an unsuitable contract names the suitable ones.
func TestContractRefused(t *testing.T) {
	for fret, want := range map[string]string{
		"id: f\nbase: node\ncontract: asgi\n":                                 "fret.yaml:3:11: the contract asgi is for the runtime python: the template's runtime node has the contracts fre, lambda, functions-framework, knative",
		"id: f\nbase: python\ncontract: lamda\n":                              `fret.yaml:3:11: contract "lamda" is not known: the contracts are fre, lambda, asgi, wsgi, functions-framework, knative, http, cgi, stdio`,
		"id: f\nbase: python\ncontract: functions-framework\n":                "the contract functions-framework needs the framework: add functions-framework to packages.pip",
		"id: f\nbase: node\ncontract: knative\n":                              "the contract knative needs a package: add faas-js-runtime to packages.npm",
		"id: f\nbase: java\ncontract: lambda\nhandler: a-b\n":                 `handler "a-b" is not Class::method`,
		"id: f\nbase: native\ncontract: cgi\nhandler: \"a 'b\"\n":             "is not a command line",
		"id: f\nruntime: go\ncontract: lambda\ninstances: {concurrency: 2}\n": "handles one event at a time",
	} {
		tmpl, err := runtimes.Dialect().Parse(template.FileName, []byte(fret))
		if err == nil {
			err = image.CheckTemplate(tmpl, runtimes.Bases(), runtimes.All(), runtimes.Sites())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", fret, err, want)
		}
	}
}

// contracted starts the handler of a contract with each bootstrap of a language, and calls test
// with the instance.
func contracted(t *testing.T, name, source, handler string, env []string, test func(t *testing.T, l language, i *instance)) {
	t.Helper()
	file := map[string]string{"python": "contracted.py", "node": "contracted.js"}[name]
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	where := map[string]string{"python": "PYTHONPATH=", "node": "FRE_FUNCTION_DIR="}[name] + dir
	for _, l := range languages(t) {
		if l.name == name {
			t.Run(l.String(), func(t *testing.T) { test(t, l, l.start(t, "contracted."+handler, append([]string{where}, env...)...)) })
		}
	}
}

func call(t *testing.T, i *instance, in *channel.Invocation, body string) (answer, error) {
	t.Helper()
	sent := *in
	sent.Body = strings.NewReader(body)
	r, err := i.Invoke(t.Context(), &sent)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	return answer{r.Status, r.Headers, string(b)}, err
}

var lambdaHandlers = map[string]string{
	"python": `
import logging, os
def handler(event, context):
    if event.get("raise"):
        raise ValueError("no luck")
    if event.get("version"):
        return [context.function_version, os.environ["AWS_LAMBDA_FUNCTION_VERSION"], context.invoked_function_arn.rpartition(":")[2]]
    logging.getLogger().warning("seen %d", 1)
    return {"event": event, "id": context.aws_request_id, "arn": context.invoked_function_arn, "in_time": context.get_remaining_time_in_millis() > 0, "custom": context.client_context.custom if context.client_context else None}
def http(event, context):
    if event["rawPath"] == "/plain":
        return "text"
    if event["rawPath"] == "/base64":
        return {"statusCode": 200, "body": event.get("body"), "isBase64Encoded": True}
    del event["requestContext"]["time"], event["requestContext"]["timeEpoch"]
    return {"statusCode": 201, "headers": {"X-A": 1, "Content-Length": "9"}, "cookies": ["a=b", "c=d"], "body": event}
`,
	"node": `
exports.handler = (event, context, callback) => {
  if (event.raise) throw new RangeError('no luck');
  if (event.version) return callback(null, [context.functionVersion, process.env.AWS_LAMBDA_FUNCTION_VERSION, context.invokedFunctionArn.split(':').pop()]);
  callback(null, { event, id: context.awsRequestId, arn: context.invokedFunctionArn, in_time: context.getRemainingTimeInMillis() > 0, custom: context.clientContext ? context.clientContext.custom : null });
};
exports.http = async (event) => {
  if (event.rawPath === '/plain') return 'text';
  if (event.rawPath === '/base64') return { statusCode: 200, body: event.body, isBase64Encoded: true };
  delete event.requestContext.time; delete event.requestContext.timeEpoch;
  return { statusCode: 201, headers: { 'X-A': 1, 'Content-Length': '9' }, cookies: ['a=b', 'c=d'], body: event };
};
exports.stream = awslambda.streamifyResponse(async (event, stream, context) => {
  if (event.raise) throw new RangeError('no luck');
  if (event.destroy) stream.destroy(event.destroy === 'quietly' ? undefined : new RangeError('upstream broke'));
  if (event.begin) stream.write('begun');
  if (event.later) setTimeout(() => stream.end('later'), 50);
  if (event.call) context.call('f', 'x').catch((e) => stream.end(e.code));
  if (event.drain) {
    const [piece, end] = ['x'.repeat(100000), 40];
    const more = (n) => { while (n < end) { n++; if (!stream.write(piece)) { stream.once('drain', () => more(n)); return; } } };
    more(0);
  }
  if (event.destroy || event.begin || event.later || event.call || event.drain || event.nothing) return;
  stream = awslambda.HttpResponseStream.from(stream, { statusCode: 202, headers: { 'content-type': 'text/x' } });
  stream.write('one ');
  await new Promise(setImmediate);
  stream.end('two');
});
`,
}

// The bootstraps call Lambda handlers as Lambda's own runtime does.
func TestLambdaHandlers(t *testing.T) {
	for name, source := range lambdaHandlers {
		contracted(t, name, source, "handler", []string{"FRE_CONTRACT=lambda", "FRE_LAMBDA_EVENT=body", "AWS_LAMBDA_FUNCTION_VERSION=$LATEST"}, func(t *testing.T, l language, i *instance) {
			t.Helper()
			in := channel.Invocation{Function: "f", ID: "id-1", DeadlineMS: 4102444800000, Request: channel.Request{Method: "POST", Path: "/", Headers: [][2]string{{"X-Amz-Client-Context", "eyJjdXN0b20iOjd9"}}}}
			a, err := call(t, i, &in, `{"a": "ü"}`)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal([]byte(a.Body), &got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"event": map[string]any{"a": "ü"}, "id": "id-1", "arn": "arn:aws:lambda:us-east-1:000000000000:function:f", "in_time": true, "custom": 7.0}
			if diff := cmp.Diff(want, got); diff != "" || a.Status != 200 || !slices.Equal(a.Headers, typed(jsonType)) {
				t.Errorf("%v\n%s", a, diff)
			}
			if name == "python" {
				if line := <-i.logs; line != "id-1 warning seen 1" {
					t.Errorf("logged %q", line)
				}
			}
			for qualifier, want := range map[string]string{"prod": `["4","4","prod"]`, "$LATEST": `["$LATEST","$LATEST","$LATEST"]`, "": `["$LATEST","$LATEST","f"]`} {
				in := in
				if qualifier != "" {
					in.Headers = [][2]string{{"X-Fre-Lambda-Qualifier", qualifier}, {"X-Fre-Lambda-Version", map[string]string{"prod": "4"}[qualifier]}}
				}
				if qualifier == "$LATEST" {
					in.Headers[1][1] = qualifier
				}
				if a, err := call(t, i, &in, `{"version": true}`); err != nil || strings.ReplaceAll(a.Body, " ", "") != want {
					t.Errorf("by the qualifier %q: %v, %v, want %s", qualifier, a, err, want)
				}
			}
			if a, err := call(t, i, &in, "{"); err != nil || a.Status != 400 || !strings.Contains(a.Body, "the event is no JSON") {
				t.Errorf("no JSON: %v, %v", a, err)
			}
			var failed *channel.Failure
			if _, err := call(t, i, &in, `{"raise": 1}`); !errors.As(err, &failed) || failed.Type != l.errType || failed.Message != "no luck" {
				t.Errorf("raised: %v", err)
			}
		})
		contracted(t, name, source, "http", []string{"FRE_CONTRACT=lambda", "FRE_LAMBDA_EVENT=http"}, func(t *testing.T, _ language, i *instance) {
			t.Helper()
			in := channel.Invocation{Function: "f", ID: "id-1", Request: channel.Request{Method: "PUT", Path: "/a%20b", Query: "x=1&y=a%20b&x=2", Headers: [][2]string{
				{"Host", "shop.example.org"}, {"X-B", "1"}, {"x-b", "2"}, {"Cookie", "k=v; l=w"}, {"Content-Type", "application/x-www-form-urlencoded"}, {"X-Forwarded-For", "10.0.0.1, 192.0.2.7"}, {"User-Agent", "u"},
			}}}
			a, err := call(t, i, &in, "a=b")
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal([]byte(a.Body), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wholeEvent(), got); diff != "" {
				t.Error(diff)
			}
			slices.SortFunc(a.Headers, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
			if diff := cmp.Diff([][2]string{{"content-type", textType}, {"set-cookie", "a=b"}, {"set-cookie", "c=d"}, {"x-a", "1"}}, a.Headers); diff != "" || a.Status != 201 {
				t.Errorf("%d %s", a.Status, diff)
			}
			in.Path, in.Headers = "/base64", typed("text/plain")
			for body, want := range map[string]string{"aGVsbG8=": "hello", "aGVs\r\nbG8=": "hello", "": "", "aGVsbG8": "!", "aGVsb*G8=": "!", "aGVs bG8=": "!", "aG=sbG8=": "!", "aGVsbG8=====": "!", "ü": "!"} {
				a, err := call(t, i, &in, body)
				var failed *channel.Failure
				if refused := errors.As(err, &failed) && strings.Contains(failed.Message, "base64"); refused != (want == "!") || !refused && a.Body != want {
					t.Errorf("base64 %q: %q, %v, want %q", body, a.Body, err, want)
				}
			}
			in.Path = "/plain"
			if a, err := call(t, i, &in, ""); err != nil || a.Status != 200 || a.Body != "text" {
				t.Errorf("text: %v, %v", a, err)
			}
		})
	}
	contracted(t, "node", lambdaHandlers["node"], "stream", []string{"FRE_CONTRACT=lambda", "FRE_LAMBDA_EVENT=body"}, func(t *testing.T, _ language, i *instance) {
		t.Helper()
		a, err := i.invoke(t.Context(), "{}")
		if diff := cmp.Diff(answer{202, [][2]string{{"content-type", "text/x"}}, "one two"}, a); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		var failed *channel.Failure
		if _, err := i.invoke(t.Context(), `{"raise": 1}`); !errors.As(err, &failed) || failed.Type != "RangeError" {
			t.Errorf("raised: %v", err)
		}
		for body, want := range map[string]string{`{"destroy": "with"}`: "upstream broke", `{"destroy": "quietly"}`: "destroyed the stream"} {
			if a, err := i.invoke(t.Context(), body); !errors.As(err, &failed) || !strings.Contains(failed.Message, want) {
				t.Errorf("%s: %v, %v", body, a, err)
			}
		}
		for body, want := range map[string]string{
			`{"nothing": 1}`: "", `{"begin": 1}`: "begun", `{"begin": 1, "later": 1}`: "begunlater", `{"call": 1}`: "not_possible", `{"drain": 1}`: strings.Repeat("x", 4_000_000),
		} {
			if a, err := i.invoke(t.Context(), body); err != nil || a.Status != 200 || a.Body != want {
				t.Errorf("%s: %d, %d bytes, %v, want %d", body, a.Status, len(a.Body), err, len(want))
			}
		}
	})
}

// wholeEvent is the request of TestLambdaHandlers in payload format 2.0, without its time.
func wholeEvent() map[string]any {
	return map[string]any{
		"version": "2.0", "routeKey": "$default", "rawPath": "/a%20b", "rawQueryString": "x=1&y=a%20b&x=2",
		"cookies": []any{"k=v", "l=w"}, "queryStringParameters": map[string]any{"x": "1,2", "y": "a b"},
		"headers": map[string]any{"host": "shop.example.org", "x-b": "1,2", "content-type": "application/x-www-form-urlencoded", "x-forwarded-for": "10.0.0.1, 192.0.2.7", "user-agent": "u"},
		"requestContext": map[string]any{
			"accountId": "anonymous", "apiId": "f", "domainName": "shop.example.org", "domainPrefix": "shop", "requestId": "id-1", "routeKey": "$default", "stage": "$default",
			"http": map[string]any{"method": "PUT", "path": "/a%20b", "protocol": "HTTP/1.1", "sourceIp": "192.0.2.7", "userAgent": "u"},
		},
		"body": "YT1i", "isBase64Encoded": true,
	}
}

// TestASGI: ASGI applications get requests, streams, disconnects and lifespan events, with several
// requests at once on one loop.
func TestASGI(t *testing.T) {
	const source = `
import asyncio
state = []
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        scope["state"]["began"] = True
        await send({"type": "lifespan.startup.complete"})
        await receive()
        print("stopped", flush=True)
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = (await receive())["body"]
    if scope["path"] == "/fail":
        raise ValueError("no luck")
    if scope["path"] == "/none":
        return
    if scope["path"] == "/meet":  # two at once, or never
        state.append(asyncio.get_running_loop().create_future())
        if len(state) == 2:
            for f in state:
                f.set_result(None)
        await state[-1] if len(state) == 1 else None
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/x"), (b"content-length", b"3")]})
    if scope["path"] == "/big":
        for _ in range(20):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await send({"type": "http.response.body"})
    elif scope["path"] == "/wait":
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        print((await receive())["type"], flush=True)
    elif scope["root_path"]:
        await send({"type": "http.response.body", "body": ("%s %s %s" % (scope["root_path"], scope["path"], scope["raw_path"].decode())).encode()})
    else:
        text = "%s %s %s %r %s %s" % (scope["method"], scope["path"], scope["query_string"].decode(), scope["client"], scope["state"], body.decode())
        await send({"type": "http.response.body", "body": text.encode()})
`
	contracted(t, "python", source, "app", []string{"FRE_CONTRACT=asgi", "FRE_CONCURRENCY=4"}, func(t *testing.T, _ language, i *instance) {
		t.Helper()
		head := [][2]string{{"content-type", "text/x"}}
		in := channel.Invocation{ID: "1", Request: channel.Request{Method: "POST", Path: "/%C3%BC%20b", Query: "a=%20", Headers: [][2]string{{"X-Forwarded-For", "192.0.2.7"}}}}
		got, err := call(t, i, &in, "body")
		if diff := cmp.Diff(answer{201, head, "POST /ü b a=%20 ('192.0.2.7', 0) {'began': True} body"}, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		mounted := channel.Invocation{ID: "1", Request: channel.Request{Method: "GET", Path: "/b%20c", Headers: [][2]string{{"X-Forwarded-Prefix", "/%61/function/f"}}}}
		if got, err := call(t, i, &mounted, ""); err != nil || got.Body != "/a/function/f /a/function/f/b c /%61/function/f/b%20c" {
			t.Errorf("mounted: %v, %v", got, err)
		}
		in.Path = "/big"
		if got, err := call(t, i, &in, strings.Repeat("y", 1_000_000)); err != nil || got.Body != strings.Repeat("x", 2_000_000) {
			t.Errorf("a long stream: %d bytes, %v", len(got.Body), err)
		}
		for path, want := range map[string]string{"/fail": "no luck", "/none": "the application returned before its answer was whole"} {
			in.Path = path
			var failed *channel.Failure
			if _, err := call(t, i, &in, ""); !errors.As(err, &failed) || failed.Message != want {
				t.Errorf("%s: %v", path, err)
			}
		}
		in.Path = "/meet"
		first := make(chan error, 1)
		go func() {
			_, err := i.Invoke(t.Context(), &channel.Invocation{ID: "2", Request: channel.Request{Method: "POST", Path: "/meet", Body: strings.NewReader("")}})
			first <- err
		}()
		if _, err := call(t, i, &in, ""); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		in.Path, in.Body = "/wait", strings.NewReader("")
		r, err := i.Invoke(t.Context(), &in)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close() // CANCEL
		in.Path = "/"
		if _, err := call(t, i, &in, ""); err != nil {
			t.Error(err)
		}
	})
}

// TestASGIStartFails: The message of a failed lifespan start reaches the engine.
func TestASGIStartFails(t *testing.T) {
	const source = `
async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})
`
	contracted(t, "python", source, "app", []string{"FRE_CONTRACT=asgi"}, func(t *testing.T, _ language, i *instance) {
		t.Helper()
		var failed *channel.Failure
		if _, err := i.Ready(t.Context()); !errors.As(err, &failed) || failed.Message != "the application did not start: no database" {
			t.Errorf("%v", err)
		}
	})
}

// TestWSGI: WSGI applications get the request with its mount point, and may start late, write and
// stream.
func TestWSGI(t *testing.T) {
	const source = `
def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/lazy":
        def pieces():
            start_response("200 OK", [("Content-Type", "text/x")])
            yield b"one "
            yield b"two"
        return pieces()
    if path == "/none":
        return []
    if path == "/written":
        start_response("200 OK", [("Content-Type", "text/x")])(b"one ")
        return [b"two"]
    start_response("404 Not Found", [("Content-Type", "text/x"), ("Connection", "close")])
    body = environ["wsgi.input"].read()
    if path == "/mount":
        return [" ".join(environ.get(k, "-") for k in ("SCRIPT_NAME", "REQUEST_URI", "HTTP_X_FORWARDED_FOR", "HTTP_X_REQUEST_ID")).encode()]
    return [("%s %s %s %s %s %s" % (environ["REQUEST_METHOD"], path.encode("latin-1").decode(), environ["QUERY_STRING"], environ["CONTENT_LENGTH"], environ["HTTP_X_B"], "HTTP_PROXY" in environ)).encode() + body]
`
	contracted(t, "python", source, "app", []string{"FRE_CONTRACT=wsgi"}, func(t *testing.T, _ language, i *instance) {
		t.Helper()
		head := [][2]string{{"Content-Type", "text/x"}}
		in := channel.Invocation{ID: "1", Request: channel.Request{Method: "PUT", Path: "/%C3%BC", Query: "a=b", Headers: [][2]string{{"X-B", "1"}, {"Proxy", "evil"}}}}
		for path, want := range map[string]answer{
			"/%C3%BC":  {404, head, "PUT /ü a=b 4 1 Falsebody"},
			"/lazy":    {200, head, "one two"},
			"/written": {200, head, "one two"},
		} {
			in.Path = path
			got, err := call(t, i, &in, "body")
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s: %v\n%s", path, err, diff)
			}
		}
		mounted := channel.Invocation{ID: "2", Request: channel.Request{Method: "GET", Path: "/mount", Query: "a=b", Headers: [][2]string{
			{"X-Forwarded-Prefix", "/%61/function/f"}, {"X-Forwarded-For", "192.0.2.7"}, {"X_Forwarded_For", "forged"}, {"X_Request_Id", "forged"},
		}}}
		if got, err := call(t, i, &mounted, ""); err != nil || got.Body != "/a/function/f /%61/function/f/mount?a=b 192.0.2.7 -" {
			t.Errorf("mounted: %v, %v", got, err)
		}
		in.Path = "/none"
		var failed *channel.Failure
		if _, err := call(t, i, &in, "body"); !errors.As(err, &failed) || failed.Message != "the application did not call start_response" {
			t.Errorf("%v", err)
		}
	})
}
