package gateway

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/fre-engine/fre/access"
)

// serveHTTP answers a request without a body by a net/http handler, for /metrics. It buffers the
// whole answer.
func (e *exchange) serveHTTP(h http.Handler) {
	r := &http.Request{
		Method: string(e.Method), URL: &url.URL{Path: string(e.Path), RawQuery: string(e.Query)}, Host: string(e.Host),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, len(e.Fields)), Body: http.NoBody,
	}
	for _, f := range e.Fields {
		r.Header.Add(string(f.Name), string(f.Value))
	}
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(w, r.WithContext(e.Context()))
	for name, values := range w.header {
		if ours[name] {
			continue
		}
		for _, v := range values {
			e.Set(name, v)
		}
	}
	_ = e.Send(w.status, w.body.Bytes()) // fails only with the connection
}

// metered serves the metrics. If events need a token, metrics need the scope read, and a tenant's
// token shows only the metrics of the tenant and its functions.
func (e *exchange) metered() {
	g := e.g.Guard
	if g == nil || !g.Token {
		e.serveHTTP(e.g.metrics)
		return
	}
	id, ok := e.shown(access.Read)
	switch {
	case !ok:
	case id.All():
		e.serveHTTP(e.g.metrics)
	default:
		e.serveHTTP(promhttp.HandlerFor(ofTenant{e.g.Metrics, id.Tenant, func(function string) bool {
			front, known := g.Front(function)
			return known && front.Tenant == id.Tenant
		}}, promhttp.HandlerOpts{}))
	}
}

// ofTenant gathers the metrics with the tenant's label, or with the label of a function of the
// tenant.
type ofTenant struct {
	prometheus.Gatherer
	tenant string
	has    func(function string) bool
}

// Gather implements prometheus.Gatherer.
func (t ofTenant) Gather() ([]*dto.MetricFamily, error) {
	all, err := t.Gatherer.Gather()
	for _, family := range all {
		family.Metric = slices.DeleteFunc(family.Metric, func(m *dto.Metric) bool {
			return !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
				return l.GetName() == "function" && t.has(l.GetValue()) || l.GetName() == "tenant" && l.GetValue() == t.tenant
			})
		})
	}
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
}
