package lambda

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
)

// target is the receiver of an event: a function, whose traffic split decides, or one revision.
type target struct {
	name      string // qualified name for the engine
	qualifier string // as requested; "" for none
	version   string
}

func (s *server) target(c *call) (target, error) {
	ref, err := s.function(c)
	if err != nil {
		return target{}, err
	}
	all, err := s.revisions(c, ref)
	if err != nil {
		return target{}, err
	}
	t := target{qualifier: ref.qualifier}
	switch a := findAlias(all, ref.qualifier); {
	case ref.qualifier == "":
		t.name, t.version = c.on, latest
		return t, nil
	case a != nil:
		t.version = strconv.Itoa(a.pick())
	default:
		var ok bool
		var r *engine.Revision
		if r, t.version, ok = qualified(all, ref.qualifier); !ok {
			return target{}, notFound("Function not found: %s:%s", s.arn(c.tenant, ref.name), ref.qualifier)
		}
		if t.version == latest {
			t.name = c.on + "@" + strconv.Itoa(r.Number)
			return t, nil
		}
	}
	t.name = c.on + "@" + t.version
	return t, nil
}

// event converts the request to an event.
func (c *call) event(t target) (*engine.Request, error) {
	body := c.body
	if len(body) == 0 {
		body = []byte("{}")
	} else if !json.Valid(body) {
		return nil, refuse(http.StatusBadRequest, "InvalidRequestContentException", "Could not parse request body into json: the payload is no JSON")
	}
	r := &engine.Request{
		Method: http.MethodPost, Path: "/", Headers: [][2]string{{"Content-Type", "application/json"}},
		Body: bytes.NewReader(body), Length: int64(len(body)),
	}
	if t.qualifier != "" {
		r.Headers = append(r.Headers, [2]string{engine.QualifierField, t.qualifier}, [2]string{engine.VersionField, t.version})
	}
	for _, name := range []string{"X-Amz-Client-Context", "X-Amzn-Trace-Id"} {
		if v := c.r.Header.Get(name); v != "" {
			if len(v) > 3583 {
				return nil, invalid("%s has %d bytes, at most 3583", name, len(v))
			}
			r.Headers = append(r.Headers, [2]string{name, v})
		}
	}
	return r, nil
}

func (s *server) invoke(c *call) error {
	to, err := s.target(c)
	if err != nil {
		return err
	}
	r, err := c.event(to)
	if err != nil {
		return err
	}
	switch kind := c.r.Header.Get("X-Amz-Invocation-Type"); kind {
	case "", "RequestResponse":
		return s.invokeNow(c, to, r)
	case "Event":
		return s.later(c, to.name, r)
	case "DryRun":
		c.send(http.StatusNoContent, nil)
		return nil
	default:
		return invalid("invocation type %q is none of RequestResponse, Event and DryRun", clip(kind))
	}
}

// invokeNow runs the event and sends the answer.
func (s *server) invokeNow(c *call, to target, r *engine.Request) error {
	var log *tail
	if c.r.Header.Get("X-Amz-Log-Type") == "Tail" {
		log = s.follow(c)
		defer log.stop()
	}
	begun := time.Now()
	resp, fault, err := s.run(c, to.name, r)
	if err != nil {
		return err
	}
	var payload []byte
	if resp != nil {
		payload, fault = answer(resp, fault)
	}
	h := c.w.Header()
	h.Set("X-Amz-Executed-Version", to.version)
	if fault != nil {
		h.Set("X-Amz-Function-Error", "Unhandled")
		if payload, err = fault.answer(); err != nil {
			return err
		}
	}
	if log != nil {
		h.Set("X-Amz-Log-Result", log.result(instanceOf(resp, fault), h.Get("X-Amzn-Requestid"), to.version, time.Since(begun)))
	}
	h.Set("Content-Type", "application/json")
	c.send(http.StatusOK, payload)
	return nil
}

// later queues an asynchronous event.
func (s *server) later(c *call, name string, r *engine.Request) error {
	if r.Length > maxAsync {
		return refuse(http.StatusRequestEntityTooLarge, "RequestTooLargeException", "%d byte payload is too large for the Event invocation type (limit %d bytes)", r.Length, maxAsync)
	}
	if err := s.Guard.Access.Event(c.tenant); err != nil {
		return err
	}
	id, err := s.Events.Publish(c.r.Context(), name, r)
	if err != nil {
		return err
	}
	c.w.Header().Set("X-Amzn-Requestid", id)
	c.send(http.StatusAccepted, nil)
	return nil
}

// fault is a failure of the function, in the JSON format of the payload.
type fault struct {
	Message string `json:"errorMessage"`
	Type    string `json:"errorType,omitempty"`
	Request string `json:"requestId,omitempty"`

	payload  []byte // the function's own payload, unless nil
	instance string // id of the sandbox; "" if none ran, or if the function responded
}

// run sends an event to the function. A failure of the function is a fault, not an error.
func (s *server) run(c *call, name string, r *engine.Request) (*engine.Response, *fault, error) {
	resp, err := s.Invoker.Invoke(c.r.Context(), name, r)
	if err == nil {
		c.w.Header().Set("X-Amzn-Requestid", resp.ID)
		return resp, nil, nil
	}
	if failed := engine.Failed(err); failed.ID != "" {
		c.w.Header().Set("X-Amzn-Requestid", failed.ID)
	}
	f := faultOf(err, c.w.Header().Get("X-Amzn-Requestid"))
	if f == nil {
		return nil, nil, err
	}
	f.instance = engine.Failed(err).Instance
	return nil, f, nil
}

// faultOf converts an error to a fault, or returns nil if the function did not cause the error.
func faultOf(err error, request string) *fault {
	var failed *engine.FunctionError
	var crash *engine.CrashError
	var step *engine.StepError
	var loop *engine.LoopError
	switch {
	case errors.As(err, &failed):
		return &fault{Message: failed.Message, Type: failed.Type, Request: request}
	case errors.Is(err, engine.ErrTimeout):
		return &fault{Message: "RequestId: " + request + " Error: Task timed out", Type: "Sandbox.Timedout"}
	case errors.As(err, &crash):
		return &fault{Message: "RequestId: " + request + " Error: " + crash.Error(), Type: "Runtime.ExitError"}
	case errors.As(err, &step), errors.As(err, &loop): // not retryable, because some steps have run
		return &fault{Message: err.Error(), Type: "Pipeline.StepFailed", Request: request}
	}
	return nil
}

// answer reads the function's response.
func answer(resp *engine.Response, f *fault) ([]byte, *fault) {
	defer func() { _ = resp.Body.Close() }()
	payload, err := io.ReadAll(io.LimitReader(resp.Body, maxInvoke+1))
	switch {
	case err != nil:
		if f = faultOf(err, resp.ID); f == nil {
			f = &fault{Message: err.Error(), Type: "Runtime.TruncatedResponse", Request: resp.ID}
		}
	case len(payload) > maxInvoke:
		f = &fault{Message: fmt.Sprintf("Response payload size exceeded maximum allowed payload size (%d bytes).", maxInvoke), Type: "Function.ResponseSizeTooLarge", Request: resp.ID}
	case resp.Status >= http.StatusBadRequest: // a function that is not a Lambda handler
		f = &fault{payload: payload}
	}
	return payload, f
}

// answer returns the answer to a failed invocation.
func (f *fault) answer() ([]byte, error) {
	if f.payload != nil {
		return f.payload, nil
	}
	return json.Marshal(f)
}

// end returns the error fields of a stream's last message. f may be nil.
func (f *fault) end() (map[string]string, error) {
	if f == nil {
		return map[string]string{}, nil
	}
	details, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return map[string]string{"ErrorCode": "Unhandled", "ErrorDetails": string(details)}, nil
}

// invokeStream sends the function's output at once, as messages of an event stream.
func (s *server) invokeStream(c *call) error {
	to, err := s.target(c)
	if err != nil {
		return err
	}
	if kind := c.r.Header.Get("X-Amz-Invocation-Type"); cmp.Or(kind, "RequestResponse") != "RequestResponse" {
		return invalid("invocation type %q: a stream is a RequestResponse", clip(kind))
	}
	r, err := c.event(to)
	if err != nil {
		return err
	}
	var log *tail
	if c.r.Header.Get("X-Amz-Log-Type") == "Tail" {
		log = s.follow(c)
		defer log.stop()
	}
	begun := time.Now()
	resp, fault, err := s.run(c, to.name, r)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("X-Amz-Executed-Version", to.version)
	c.send(http.StatusOK, nil)
	control := http.NewResponseController(c.w)
	send := func(kind, contentType string, payload []byte) error {
		_ = control.SetWriteDeadline(time.Now().Add(patience))
		_, err := c.w.Write(message([][2]string{{":message-type", "event"}, {":event-type", kind}, {":content-type", contentType}}, payload))
		if err != nil {
			return err
		}
		return control.Flush()
	}
	if resp != nil {
		defer func() { _ = resp.Body.Close() }()
		var gone bool
		if fault, gone = relay(resp, fault, send); gone {
			return nil // the client has disconnected: closing the body tells the function
		}
	}
	end, err := fault.end()
	if err != nil {
		return err
	}
	if log != nil {
		end["LogResult"] = log.result(instanceOf(resp, fault), h.Get("X-Amzn-Requestid"), to.version, time.Since(begun))
	}
	body, err := json.Marshal(end)
	if err != nil {
		return err
	}
	_ = send("InvokeComplete", "application/json", body) // an error means that the connection ends
	return nil
}

// relay sends the function's output until its end or the client's. It returns f, or the fault that
// broke the output off. gone says that the client has disconnected.
func relay(resp *engine.Response, f *fault, send func(kind, contentType string, payload []byte) error) (_ *fault, gone bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 && send("PayloadChunk", "application/octet-stream", buf[:n]) != nil {
			return f, true
		}
		if errors.Is(err, io.EOF) {
			return f, false
		}
		if err != nil {
			if f = faultOf(err, resp.ID); f == nil {
				f = faultOf(&engine.FunctionError{Type: "Runtime.TruncatedResponse", Message: err.Error()}, resp.ID)
			}
			return f, false
		}
	}
}

// instanceOf returns the id of the sandbox that ran an event, or "".
func instanceOf(resp *engine.Response, f *fault) string {
	switch {
	case resp != nil:
		return resp.Instance
	case f != nil:
		return f.instance
	}
	return ""
}

// --- LogResult -----------------------------------------------------------------

const (
	tailBytes = 4 << 10
	// settling is the wait for lines to pass from the function's pipes to the log.
	settling = 50 * time.Millisecond
)

// tail collects a function's log lines while an event runs.
type tail struct {
	stop func()

	mu    sync.Mutex
	lines []live.LogLine // the last maxTail lines
}

const maxTail = 1000

// follow starts to collect log lines. As with AWS, the right to invoke includes the event's
// output.
func (s *server) follow(c *call) *tail {
	ctx, cancel := context.WithCancel(c.r.Context())
	t := &tail{}
	done, since := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		_ = s.Engine.Logs(ctx, c.on, live.LogOptions{Follow: true, Tail: -1, Since: since}, func(line live.LogLine) error {
			t.mu.Lock()
			defer t.mu.Unlock()
			if len(t.lines) == maxTail {
				t.lines = t.lines[1:]
			}
			t.lines = append(t.lines, line)
			return nil
		})
	}()
	t.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	return t
}

// result returns the last tailBytes of the event's log, in base64: the event's lines, and the
// lines without an invocation from the same instance. The latter belong to the event if the
// instance handles one event at a time.
func (t *tail) result(instance, id, version string, took time.Duration) string {
	<-time.After(settling)
	t.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "START RequestId: %s Version: %s\n", id, version)
	for _, l := range t.lines {
		if l.Invocation == id || l.Invocation == "" && l.Sandbox == instance && instance != "" {
			b.WriteString(l.Text)
			if !l.Partial {
				b.WriteByte('\n')
			}
		}
	}
	fmt.Fprintf(&b, "END RequestId: %s\nREPORT RequestId: %s\tDuration: %.2f ms\n", id, id, float64(took.Microseconds())/1000)
	text := b.String()
	return base64.StdEncoding.EncodeToString([]byte(text[max(0, len(text)-tailBytes):]))
}
