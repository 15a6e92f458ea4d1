package runtimes_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/channel"
)

// callingContracts are handlers of contracts that call the function named in the path and answer
// with its body, or with the code of the error, as all.calls does for FRE's own contract.
var callingContracts = []struct{ name, contract, handler, source string }{
	{"python", "lambda", "handler", `
def handler(event, context):
    try:
        body = event.get("body", "").encode()
        a = context.call(event["rawPath"][1:], body, method="PUT", path="/p?q=1", headers={"x-a": "1", "content-type": "application/octet-stream"})
    except context.CallError as e:
        return {"statusCode": 200, "body": "%s %s" % (type(e).__name__, e.code)}
    return {"statusCode": a.status, "headers": {"x-b": a.headers.get("X-B", "")}, "body": a.text}
`},
	{"python", "wsgi", "app", `
def app(environ, start_response):
    context = environ["fre.context"]
    try:
        a = context.call(environ["PATH_INFO"][1:], environ["wsgi.input"].read(), method="PUT", path="/p?q=1", headers={"x-a": "1"})
    except context.CallError as e:
        start_response("200 OK", [])
        return [("%s %s" % (type(e).__name__, e.code)).encode()]
    start_response("%d Other" % a.status, [("x-b", a.headers.get("X-B", ""))])
    return [a.body]
`},
	{"python", "asgi", "app", `
import asyncio
async def app(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    context, body = scope["fre"]["context"], (await receive())["body"]
    what = dict(method="PUT", path="/p?q=1", headers={"x-a": "1"})
    status, headers = 200, []
    try:
        context.call("other", b"")
        raise AssertionError("a call in the loop")
    except RuntimeError:
        pass
    try:
        name = scope["path"][1:]
        if name == "many":  # more at once than there are threads, beside one in a thread
            answers = await asyncio.gather(*(context.acall("f", body + b"%d" % i) for i in range(20)), asyncio.to_thread(context.call, "f", body + b"t"))
            answer = b" ".join(a.body for a in answers)
        elif name == "hasty":  # gives up what it has called
            try:
                await asyncio.wait_for(context.acall("waits"), 0.01)
            except asyncio.TimeoutError:
                answer = b"gave up"
        else:
            a = await context.acall(name, body, **what)
            status, headers, answer = a.status, [(b"x-b", a.headers.get("X-B", "").encode())], a.body
    except context.CallError as e:
        answer = ("%s %s" % (type(e).__name__, e.code)).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
`},
	{"node", "lambda", "handler", `
exports.handler = async (event, context) => {
  try {
    const a = await context.call(event.rawPath.slice(1), event.body || '', { method: 'PUT', path: '/p?q=1', headers: { 'x-a': '1', 'content-type': 'application/octet-stream' } });
    return { statusCode: a.status, headers: { 'x-b': a.headers['x-b'] || '' }, body: a.text };
  } catch (e) {
    return { statusCode: 200, body: e.name + ' ' + e.code };
  }
};
`},
}

// callingContract calls test with an instance of each contract.
func callingContract(t *testing.T, concurrency string, test func(t *testing.T, contract string, i *instance)) {
	t.Helper()
	for _, c := range callingContracts {
		t.Run(c.name+" "+c.contract+" "+concurrency, func(t *testing.T) {
			env := []string{"FRE_CONTRACT=" + c.contract, "FRE_LAMBDA_EVENT=http", "FRE_CONCURRENCY=" + concurrency, "FRE_CALLS=32", "FRE_FILES=/tmp", "FRE_MEMORY_BYTES=1000000000"}
			contracted(t, c.name, c.source, c.handler, env, func(t *testing.T, _ language, i *instance) {
				t.Helper()
				test(t, c.contract, i)
			})
		})
	}
}

// Handlers of contracts in the bootstrap call other functions like FRE's own handlers.
func TestCallsFromContracts(t *testing.T) {
	big := string(bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16))
	for _, concurrency := range []string{"1", "4"} {
		callingContract(t, concurrency, func(t *testing.T, contract string, i *instance) {
			t.Helper()
			for _, size := range []int{1, 1000, 70_000, 256<<10 + 1, 600_000, 8 << 20} {
				got, err := callFrom(t, i, otherFunctions{t: t}, "/other", big[:size])
				if err != nil || got.Status != 207 || got.Body != big[:size] || !slices.Contains(got.Headers, [2]string{"x-b", "2"}) {
					t.Errorf("%d bytes: %d %q, %d came back, %v", size, got.Status, got.Headers, len(got.Body), err)
				}
			}
			if got, err := callFrom(t, i, otherFunctions{t: t}, "/fails", "x"); err != nil || got.Body != "CallError function_error" {
				t.Errorf("of the failed call: %q, %v", got.Body, err)
			}
			if contract != "asgi" {
				return
			}
			for range 10 {
				want := "x0 x1 x2 x3 x4 x5 x6 x7 x8 x9 x10 x11 x12 x13 x14 x15 x16 x17 x18 x19 xt"
				if got, err := callFrom(t, i, otherFunctions{t: t}, "/many", "x"); err != nil || got.Body != want {
					t.Errorf("many at once: %q, %v", got.Body, err)
				}
			}
			if got, err := callFrom(t, i, otherFunctions{t: t}, "/hasty", ""); err != nil || got.Body != "gave up" {
				t.Errorf("one that gives up: %q, %v", got.Body, err)
			}
		})
	}
}

// After the client's cancellation a pending call does not hold a contract's handler, and the
// channel is ready for the next event.
func TestCallsFromContractsGivenUp(t *testing.T) {
	callingContract(t, "1", func(t *testing.T, contract string, i *instance) {
		t.Helper()
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			waited, finished := make(chan struct{}), make(chan struct{})
			go func() {
				<-waited
				cancel()
			}()
			in := &channel.Invocation{Request: channel.Request{Method: "POST", Path: "/waits", Body: strings.NewReader("")}, Caller: otherFunctions{t, waited}, Finished: func() { close(finished) }}
			if r, err := i.Invoke(ctx, in); err == nil { // the handler saw the end of its call first
				_ = r.Body.Close()
			}
			<-finished
		}
		if got, err := callFrom(t, i, otherFunctions{t: t}, "/other", "again"); err != nil || got.Body != "again" {
			t.Errorf("afterwards: %q, %v", got.Body, err)
		}
	})
}
