package nettrace

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics exports a tracer's counts to Prometheus, and reads the counts at each scrape.
// Retransmissions are reported per function, because connections are too many for labels.
type Metrics struct {
	mu     sync.Mutex
	tracer *Tracer

	retransmissions, drops, allocations, softirq, runQueue *prometheus.Desc
}

// NewMetrics returns the metrics of t. After NewMetrics only the metrics may use t.
func NewMetrics(t *Tracer) *Metrics {
	return &Metrics{
		tracer:          t,
		retransmissions: prometheus.NewDesc("fre_net_retransmissions_total", "TCP segments sent again, by function; none: outside of sandboxes.", []string{"function"}, nil),
		drops:           prometheus.NewDesc("fre_net_drops_total", "Packets the kernel gave up, by reason.", []string{"reason"}, nil),
		allocations:     prometheus.NewDesc("fre_net_buffer_allocations_total", "Packet buffers allocated, by the kernel's cache.", []string{"cache", "bytes"}, nil),
		softirq:         prometheus.NewDesc("fre_net_softirq_seconds_total", "Time in soft interrupts.", []string{"cpu"}, nil),
		runQueue:        prometheus.NewDesc("fre_net_run_queue_seconds_total", "Time that threads could run and had no CPU.", []string{"sandbox", "function"}, nil),
	}
}

// Describe sends the description of each metric.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.retransmissions, m.drops, m.allocations, m.softirq, m.runQueue} {
		out <- d
	}
}

// Collect takes a Sample and sends the values.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.tracer.Sample()
	if err != nil {
		out <- prometheus.NewInvalidMetric(m.drops, err)
		return
	}
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	functions := map[string]uint64{}
	for _, r := range s.Retransmissions {
		functions[r.Function] += r.Count
	}
	for function, n := range functions {
		send(m.retransmissions, float64(n), function)
	}
	for _, d := range s.Drops {
		send(m.drops, float64(d.Count), d.Reason)
	}
	for _, a := range s.Allocations {
		send(m.allocations, float64(a.Count), a.Cache, strconv.FormatUint(uint64(a.Bytes), 10))
	}
	for _, i := range s.SoftIRQ {
		send(m.softirq, i.Time.Seconds(), strconv.Itoa(i.CPU))
	}
	for _, d := range s.RunQueue {
		send(m.runQueue, d.Time.Seconds(), d.Sandbox, d.Function)
	}
}
