package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/httpserver"
)

// connections collects the metrics of a server's connections.
type connections struct{ s *httpserver.Server }

var connectionDescs = struct{ open, refused, evicted, noMemory *prometheus.Desc }{
	open:     prometheus.NewDesc("fre_connections", "Connections of clients.", nil, nil),
	refused:  prometheus.NewDesc("fre_connections_refused_total", "Refused connections, by bound: all connections, or a client's.", []string{"bound"}, nil),
	evicted:  prometheus.NewDesc("fre_connections_evicted_total", "Connections without a request that were closed for new connections.", nil, nil),
	noMemory: prometheus.NewDesc("fre_connections_no_memory_total", "Times that a connection got no memory for reads or copies.", nil, nil),
}

// Connections returns the metrics of the server's connections.
func Connections(s *httpserver.Server) prometheus.Collector { return connections{s} }

// Describe implements [prometheus.Collector].
func (c connections) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectionDescs.open, connectionDescs.refused, connectionDescs.evicted, connectionDescs.noMemory} {
		ch <- d
	}
}

// Collect sends the counts of [httpserver.Server.Stats].
func (c connections) Collect(ch chan<- prometheus.Metric) {
	s := c.s.Stats()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	ch <- prometheus.MustNewConstMetric(connectionDescs.open, prometheus.GaugeValue, float64(s.Open))
	counter(connectionDescs.refused, s.Refused, "all")
	counter(connectionDescs.refused, s.RefusedClient, "client")
	counter(connectionDescs.evicted, s.Evicted)
	counter(connectionDescs.noMemory, s.NoMemory)
}
