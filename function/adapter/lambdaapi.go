package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// runtimeAPI is the server of AWS Lambda's Runtime API
// (docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html) for one client:
//
//	client                                    adapter
//	  │ GET …/invocation/next ─────────────────▶ │  the first request: READY
//	  │ ◀───────────────────── an event, its id  │
//	  │ POST …/invocation/ID/response, /error ─▶ │
//	  │ ◀─────────────────────────────────── 202 │
//	  │ POST …/init/error ─────────────────────▶ │  FAILED
type runtimeAPI struct {
	server *server
	whole  bool // the event is the whole request, not only its body

	next   chan *invocation // to a client that asks
	asked  chan struct{}    // closed at the client's first request for an event
	failed chan *channel.Failure
	once   sync.Once

	mu      sync.Mutex
	current *invocation
}

func (api *runtimeAPI) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+runtimeVersion+"/invocation/next", api.serveNext)
	mux.HandleFunc("POST "+runtimeVersion+"/invocation/{id}/response", api.serveResponse)
	mux.HandleFunc("POST "+runtimeVersion+"/invocation/{id}/error", func(w http.ResponseWriter, r *http.Request) {
		inv := api.take(r)
		if f := failureOf(r); inv != nil {
			inv.answer <- answered{err: f}
		}
		accepted(w)
	})
	mux.HandleFunc("POST "+runtimeVersion+"/init/error", func(w http.ResponseWriter, r *http.Request) {
		f := failureOf(r)
		accepted(w)
		select {
		case api.failed <- f:
		default: // a failure is reported already
		}
	})
	return mux
}

// serveNext waits for the next event and answers with it.
func (api *runtimeAPI) serveNext(w http.ResponseWriter, r *http.Request) {
	inv := api.waitNext(r.Context().Done())
	if inv == nil {
		return
	}
	api.deliver(inv)
	h := w.Header()
	for _, f := range inv.fields() {
		h[f[0]] = []string{f[1]}
	}
	_, err := w.Write(inv.payload)
	if err == nil && inv.rest != nil {
		_, err = io.Copy(w, inv.rest)
	}
	if err != nil {
		inv.answer <- answered{err: fmt.Errorf("the client did not take the event: %w", err)}
	}
}

func (api *runtimeAPI) serveResponse(w http.ResponseWriter, r *http.Request) {
	inv := api.take(r)
	if inv == nil {
		_, _ = io.Copy(io.Discard, r.Body)
		accepted(w)
		return
	}
	b := &streamed{r: r, done: make(chan struct{})}
	a, streams, err := b.answer(api.whole)
	if err != nil {
		a, streams = nil, false
	}
	inv.answer <- answered{a, err}
	if streams {
		select {
		case <-b.done: // the engine has the body, or needs no more of it
		case <-inv.gone:
		}
	}
	_, _ = io.Copy(io.Discard, r.Body) // an unread body would make the client fail
	accepted(w)
}

// waitNext waits for the next event. It returns nil if the client goes first.
func (api *runtimeAPI) waitNext(gone <-chan struct{}) *invocation {
	api.once.Do(func() { close(api.asked) })
	select {
	case inv := <-api.next:
		return inv
	case <-gone:
		return nil
	}
}

// deliver registers the event that the client gets.
func (api *runtimeAPI) deliver(inv *invocation) {
	api.mu.Lock()
	defer api.mu.Unlock()
	api.current = inv
}

// take returns the invocation that a request answers; nil if the invocation has ended by time-out
// or because its client has gone.
func (api *runtimeAPI) take(r *http.Request) *invocation { return api.takeID(r.PathValue("id")) }

func (api *runtimeAPI) takeID(id string) *invocation {
	api.mu.Lock()
	defer api.mu.Unlock()
	inv := api.current
	if inv == nil || inv.e.ID != id {
		return nil
	}
	api.current = nil
	return inv
}

// smallAnswer is the size up to which an answer is read whole before it is passed on.
const smallAnswer = 256 << 10

func accepted(w http.ResponseWriter) {
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"status":"OK"}`)
}

// waitReady returns nil after the client's first request for an event, or the failure.
func (api *runtimeAPI) waitReady(timeout time.Duration) *channel.Failure {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-api.asked:
		return nil
	case f := <-api.failed:
		return f
	case <-api.server.exited:
		select {
		case f := <-api.failed: // the client reported it before its end
			return f
		default:
		}
		return api.end()
	case <-t.C:
		return &channel.Failure{
			Type: "NotReady", Stack: api.server.words.String(),
			Message: "the program did not ask for an event at $AWS_LAMBDA_RUNTIME_API, as a Lambda runtime interface client does",
		}
	}
}

// end is the failure of a client that has ended.
func (api *runtimeAPI) end() *channel.Failure {
	api.server.waitCopied()
	return api.server.failure()
}

// handle is the channel's handler: it hands the event to the client.
func (api *runtimeAPI) handle(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	inv := &invocation{e: e, answer: make(chan answered, 1), gone: make(chan struct{})}
	if err := api.read(inv); err != nil {
		return nil, err
	}
	select {
	case api.next <- inv:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-api.server.gone.Done(): // the client never saw the event
		return nil, channel.ErrUnserved
	}
	select {
	case r := <-inv.answer:
		return r.a, r.err
	case <-ctx.Done():
		close(inv.gone)
		return nil, context.Cause(ctx)
	case <-api.server.gone.Done():
		select {
		case r := <-inv.answer:
			return r.a, r.err
		default:
		}
		return nil, api.end()
	}
}

// read reads the payload of an event.
func (api *runtimeAPI) read(inv *invocation) (err error) {
	e := inv.e
	if api.whole {
		body, err := io.ReadAll(e.Body)
		if err != nil {
			return err
		}
		inv.payload, err = json.Marshal(httpEvent(e, body))
		inv.length = int64(len(inv.payload))
		return err
	}
	inv.payload = make([]byte, 512)
	n, err := io.ReadFull(e.Body, inv.payload)
	inv.payload = inv.payload[:n]
	switch {
	case errors.Is(err, io.EOF): // as Lambda's Invoke: no body is an event without members
		inv.payload = []byte("{}")
		inv.length = 2
	case errors.Is(err, io.ErrUnexpectedEOF):
		inv.length = int64(n)
	case err != nil:
		return err
	default:
		inv.rest, inv.length = e.Body, e.Length
	}
	return nil
}
