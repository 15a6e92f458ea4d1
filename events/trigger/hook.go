package trigger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
)

// maxHook is the largest body of a hook in bytes. The whole body is held in memory to check its
// signature. GitHub sends no more.
const maxHook = 25 << 20

// Hook gives a request to a function's trigger. ids are the ids of the events made of the request;
// ignored says why parts of the request, or all of it, made no event.
func (s *Set) Hook(ctx context.Context, function, trigger string, r *engine.Request) (ids []string, ignored string, err error) {
	f, t, err := s.find(function, trigger)
	if err != nil {
		return nil, "", err
	}
	if r.Method != "POST" {
		return nil, "", refused(failure.MethodNotAllowed, errors.New("a hook takes POST"))
	}
	body, err := readBody(r)
	if err != nil {
		return nil, "", err
	}
	if t.CloudEvents != nil {
		return s.cloudEvents(ctx, f, t, r, body)
	}
	return s.webhook(ctx, f, t, r, body)
}

// webhook publishes the event of a request to a webhook, if the request is signed and wanted.
func (s *Set) webhook(ctx context.Context, f *engine.Function, t *template.Trigger, r *engine.Request, body []byte) (ids []string, ignored string, err error) {
	w := t.Webhook
	var secret []byte
	if w.Secret != "" {
		if secret, err = s.secret(f, t, w.Secret); err != nil {
			return nil, "", err
		}
	}
	key, err := verify(w, secret, r.Headers, body, s.cfg.Now())
	if err != nil {
		return nil, "", refused(failure.BadSignature, err)
	}
	if why := wanted(w, r.Path, r.Headers); why != "" {
		return nil, why, nil
	}
	if w.Key != "" {
		key = cmp.Or(namedKey(w.Key, r.Headers, body), key)
	}
	if key != "" {
		key = "webhook\x00" + t.Name + "\x00" + key
	}
	ev := *r
	ev.Headers, ev.Body, ev.Length = withoutSecrets(r.Headers), bytes.NewReader(body), int64(len(body))
	receipt, err := s.takeOn(ctx, f, &ev, events.Options{Key: key, Source: "webhook/" + t.Name})
	if err != nil {
		return nil, "", err
	}
	return []string{receipt.ID}, "", nil
}

// Handshake answers an OPTIONS request by which a sender of CloudEvents asks for permission to
// deliver to a trigger. It returns the answer's fields (CloudEvents 1.0, HTTP 1.1 Web Hooks for
// Event Delivery, section 4). Any origin may deliver at any rate, because the trigger's token
// authenticates the sender.
func (s *Set) Handshake(function, trigger string, header [][2]string) ([][2]string, error) {
	_, t, err := s.find(function, trigger)
	if err != nil {
		return nil, err
	}
	origin := field(header, "WebHook-Request-Origin")
	if t.CloudEvents == nil || origin == "" {
		return nil, refused(failure.MethodNotAllowed, errors.New("a hook accepts POST; for CloudEvents also OPTIONS with WebHook-Request-Origin"))
	}
	rate := cmp.Or(field(header, "WebHook-Request-Rate"), "*")
	return [][2]string{{"Allow", "OPTIONS, POST"}, {"WebHook-Allowed-Origin", origin}, {"WebHook-Allowed-Rate", rate}}, nil
}

// find returns a function and its trigger, unless the trigger is a time of day.
func (s *Set) find(function, trigger string) (*engine.Function, *template.Trigger, error) {
	f, err := s.cfg.Engine.Function(function)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(f.Config.Triggers, func(t template.Trigger) bool { return t.Name == trigger && (t.Webhook != nil || t.CloudEvents != nil) })
	if i < 0 {
		return nil, nil, refused(failure.NotFound, fmt.Errorf("function %s has no HTTP trigger %q", function, trigger))
	}
	return f, &f.Config.Triggers[i], nil
}

// authorise checks the bearer token of a trigger for CloudEvents, if the trigger has one.
func (s *Set) authorise(f *engine.Function, t *template.Trigger, r *engine.Request) error {
	name := t.CloudEvents.Token
	if name == "" {
		return nil
	}
	secret, err := s.secret(f, t, name)
	if err != nil {
		return err
	}
	if !same([]byte(field(r.Headers, "Authorization")), append([]byte("Bearer "), secret...)) {
		return refused(failure.BadToken, errors.New("the bearer token is missing or wrong"))
	}
	return nil
}

// cloudEvents publishes the events of a request that match the trigger. If one is refused, the
// sender tries again, and the events accepted before are recognised by their keys.
func (s *Set) cloudEvents(ctx context.Context, f *engine.Function, t *template.Trigger, r *engine.Request, body []byte) (ids []string, ignored string, err error) {
	c := t.CloudEvents
	if err := s.authorise(f, t, r); err != nil {
		return nil, "", err
	}
	all, err := parseCloudEvents(r.Headers, body)
	if err != nil {
		return nil, "", refused(failure.BadEvent, err)
	}
	for _, e := range all {
		if len(c.Types) > 0 && !matches(c.Types, e.typ) || len(c.Sources) > 0 && !matches(c.Sources, e.source) {
			ignored = fmt.Sprintf("type %s of %s is none of the trigger's", e.typ, e.source)
			continue
		}
		ev := &engine.Request{Method: "POST", Path: r.Path, Query: r.Query, Headers: e.header, Body: bytes.NewReader(e.body), Length: int64(len(e.body))}
		receipt, err := s.takeOn(ctx, f, ev, events.Options{Key: cloudEventKey(e.source, e.id), Source: "cloudevents/" + t.Name})
		if err != nil {
			return ids, "", err
		}
		ids = append(ids, receipt.ID)
	}
	return ids, ignored, nil
}

func readBody(r *engine.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	var body []byte
	var err error
	if r.Length <= maxHook {
		body, err = io.ReadAll(io.LimitReader(r.Body, maxHook+1))
	}
	if err == nil && (r.Length > maxHook || len(body) > maxHook) {
		err = refused(failure.BodyTooLarge, fmt.Errorf("a hook's body has at most %d bytes", maxHook))
	}
	return body, err
}
