package openfaas

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/openfaas/faas-provider/logs"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/template"
)

// logOptions parses tail, since, follow and instance.
func logOptions(q url.Values) (o live.LogOptions, err error) {
	o = live.LogOptions{Tail: -1, Sandbox: q.Get("instance")}
	if s := q.Get("tail"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			return o, badRequest("tail: %q is not a number", s)
		}
		if n > 0 { // otherwise all lines
			o.Tail = n
		}
	}
	if s := q.Get("since"); s != "" {
		if o.Since, err = time.Parse(time.RFC3339, s); err != nil {
			return o, badRequest("since: %q is not a time, for example 2026-01-02T15:04:05Z", s)
		}
	}
	if s := q.Get("follow"); s != "" {
		if o.Follow, err = strconv.ParseBool(s); err != nil {
			return o, badRequest("follow: %q is neither true nor false", s)
		}
	}
	return o, nil
}

// logs answers GET /system/logs?name=&namespace=&instance=&tail=&since=&follow= with one line of
// JSON per log line.
func (h *handler) logs(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	o, err := logOptions(q)
	if err != nil {
		return err
	}
	f, err := h.function(r, q.Get("name"), q.Get("namespace"))
	if err != nil {
		return err
	}
	plain, tenant, err := template.SplitName(f.Name)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	if o.Follow { // tells the client that the stream has begun
		if err := control.Flush(); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
	}
	e := json.NewEncoder(w)
	_ = h.Engine.Logs(r.Context(), f.Name, o, func(line live.LogLine) error { // the status was already sent: an error ends the log
		err := e.Encode(logs.Message{Name: plain, Namespace: namespaceOf(tenant), Instance: line.Sandbox, Timestamp: line.Time, Text: line.Text})
		if err != nil || !o.Follow {
			return err
		}
		return control.Flush()
	})
	return nil
}
