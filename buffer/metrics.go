package buffer

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// descs are the metrics of a pool. The label size is the size of a class's buffers in bytes.
var descs = struct{ bytes, held, peak, waiting, pressed, pressures, outstanding, acquired, refused *prometheus.Desc }{
	bytes:       prometheus.NewDesc("fre_buffers_bytes", "Memory of the pool of buffers.", nil, nil),
	held:        prometheus.NewDesc("fre_buffers_held_bytes", "Memory in use, in whole buffers.", nil, nil),
	peak:        prometheus.NewDesc("fre_buffers_peak_bytes", "Most memory in use at a time.", nil, nil),
	waiting:     prometheus.NewDesc("fre_buffers_waiting", "Waits for a buffer.", nil, nil),
	pressed:     prometheus.NewDesc("fre_buffers_pressed", "1 from above the high watermark down to the low one.", nil, nil),
	pressures:   prometheus.NewDesc("fre_buffers_pressures_total", "Crossings of the high watermark.", nil, nil),
	outstanding: prometheus.NewDesc("fre_buffers_outstanding", "Buffers in use.", []string{"size"}, nil),
	acquired:    prometheus.NewDesc("fre_buffers_acquired_total", "Buffers acquired since the start.", []string{"size"}, nil),
	refused:     prometheus.NewDesc("fre_buffers_refused_total", "Requests for a buffer that failed, at once or by time-out.", []string{"size"}, nil),
}

// Describe makes a Pool a [prometheus.Collector].
func (p *Pool) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descs.bytes, descs.held, descs.peak, descs.waiting, descs.pressed, descs.pressures, descs.outstanding, descs.acquired, descs.refused} {
		ch <- d
	}
}

// Collect sends the values of [Pool.Stats].
func (p *Pool) Collect(ch chan<- prometheus.Metric) {
	s := p.Stats()
	pressed := 0.
	if s.Pressed {
		pressed = 1
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descs.bytes, float64(s.Bytes))
	gauge(descs.held, float64(s.Held))
	gauge(descs.peak, float64(s.Peak))
	gauge(descs.waiting, float64(s.Waiting))
	gauge(descs.pressed, pressed)
	counter(descs.pressures, s.Pressures)
	for _, c := range s.Classes {
		size := strconv.Itoa(c.Size)
		gauge(descs.outstanding, float64(c.Used), size)
		counter(descs.acquired, c.Acquired, size)
		counter(descs.refused, c.Refused, size)
	}
}
