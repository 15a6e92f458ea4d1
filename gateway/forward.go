package gateway

import (
	"context"
	"net/http"

	"github.com/fre-engine/fre/engine"
)

// forward invokes the function and sends its answer to f. With t the function may change the
// connection's protocol. It returns the engine's response, nil
// if the function gave none. Before the answer has begun, errors are those of
// [engine.Engine.Invoke], *[http.MaxBytesError] and *[BodyError]; after, *brokenError.
func forward(ctx context.Context, f front, r *request, t *tunnel) (*engine.Response, error) {
	r.Socket = r.lends != nil
	if t != nil {
		r.Upgrade, r.Body, r.Length = t.protocol, t, -1
	}
	if r.Length > r.MaxBodyBytes {
		f.CloseAfter()
		return nil, &http.MaxBytesError{Limit: r.MaxBodyBytes}
	}
	resp, err := r.Engine.Invoke(ctx, r.Function, &r.Request)
	if err != nil {
		if r.body.begun() {
			f.CloseAfter()
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.Status == http.StatusSwitchingProtocols && t != nil {
		return resp, t.carry(newReply(resp), r, resp)
	}
	if begun, err := newReply(resp).send(f, r, resp); err != nil {
		r.Log.DebugContext(ctx, "answer broken off", "function", r.Function, "invocation", resp.ID, "error", err)
		if !begun {
			return resp, err
		}
		return resp, &brokenError{err}
	}
	return resp, nil
}
