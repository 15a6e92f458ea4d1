package cluster

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	forwarded *prometheus.CounterVec // requests offered to peers, by result
	taken     prometheus.Counter     // requests of peers that ran here
}

func newMetrics(r prometheus.Registerer, partitioned func() bool, lacking func() []string) *metrics {
	m := &metrics{
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_cluster_forwarded_total", Help: "Requests forwarded to other nodes, by result: answered, refused (by all nodes), failed."}, []string{"result"}),
		taken:     prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_cluster_taken_total", Help: "Requests of other nodes that the node ran."}),
	}
	if r == nil {
		return m
	}
	r.MustRegister(m.forwarded, m.taken,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_cluster_connected", Help: "1 while the node reaches the other nodes, 0 while partitioned."}, func() float64 {
			if partitioned() {
				return 0
			}
			return 1
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_cluster_lacking", Help: "Functions of the table not in force on the node."}, func() float64 { return float64(len(lacking())) }),
	)
	return m
}
