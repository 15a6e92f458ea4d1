package registry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a registry's counters; the zero value counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	gcBytes  prometheus.Counter
}

func (m *metrics) register(to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fre_registry_requests_total", Help: "Requests of the registry, by kind, method and result.",
	}, []string{"resource", "method", "result"})
	m.gcBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fre_registry_gc_bytes_total", Help: "Bytes freed by the registry's garbage collection.",
	})
	if err := to.Register(m.requests); err != nil {
		return err
	}
	return to.Register(m.gcBytes)
}

func (m *metrics) unregister(from prometheus.Registerer) {
	if m.requests != nil {
		from.Unregister(m.requests)
		from.Unregister(m.gcBytes)
	}
}

// count counts a request. Its labels have few values, even for hostile requests.
func (m *metrics) count(res resource, method string, err error) {
	if m.requests == nil {
		return
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		method = "other"
	}
	result := "ok"
	if err != nil {
		result = "refused"
		if answerTo(err).status >= http.StatusInternalServerError {
			result = "failed"
		}
	}
	m.requests.WithLabelValues(res.String(), method, result).Inc()
}
