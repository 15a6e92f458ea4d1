package engine

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/sandbox"
)

// register exports the engine's metrics to reg, unless nil: its counters, and gauges of its present
// load.
func (e *Engine) register(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	host, m := e.cfg.Sandboxes, e.metrics
	parked := func(kind sandbox.StartKind, count func(sandbox.ParkedStats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fre_parked_sandboxes", Help: "Parked sandboxes, bare or attached to an image.",
			ConstLabels: prometheus.Labels{"kind": string(kind)},
		}, func() float64 { return count(host.Parked()) })
	}
	for _, s := range admission.States {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fre_admission_state", Help: "1 for the present state of admission of events with memory for bodies.",
			ConstLabels: prometheus.Labels{"state": s.String()},
		}, func() float64 {
			if now, _ := e.admission.State(); now != s {
				return 0
			}
			return 1
		}))
	}
	prometheus.WrapRegistererWith(prometheus.Labels{"pool": "answers"}, reg).MustRegister(e.buffers)
	queued := func(queue string, count func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fre_queue_length", Help: "Events waiting for an instance (function), or for a slot of the engine.",
			ConstLabels: prometheus.Labels{"queue": queue},
		}, func() float64 { return float64(count()) })
	}
	reg.MustRegister(m.waits,
		queued("function", func() (n int) {
			e.each(func(f *function) {
				f.mu.Lock()
				n += f.waiters.Len()
				f.mu.Unlock()
			})
			return n
		}),
		queued("engine", func() int { _, n := e.slots.count(); return n }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_events", Help: "Events under way."}, func() float64 {
			n, _ := e.slots.count()
			return float64(n)
		}))
	reg.MustRegister(tenantMetrics{e}, m.refused, m.calls, m.start, m.duration, m.forkServers, m.gcImages, m.gcBytes, m.gcInodes, m.gcSeconds, e.interpreters,
		parked(sandbox.StartBare, func(s sandbox.ParkedStats) float64 { return float64(s.Bare) }),
		parked(sandbox.StartAttached, func(s sandbox.ParkedStats) float64 { return float64(s.Attached) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fre_parked_sandboxes_died_total", Help: "Parked sandboxes that ended before use."}, func() float64 {
			return float64(host.Parked().Died)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_sandboxes", Help: "Live sandboxes."}, func() float64 {
			return float64(e.boxes.Len())
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_functions", Help: "Deployed functions."}, func() float64 {
			return float64(len(*e.functions.Load()))
		}))
}

// tenantMetrics show the use of tenants' quotas, as far as known without reading images or disks.
// They list each tenant that has had an instance, a container or a build since the engine's
// start.
type tenantMetrics struct{ e *Engine }

var (
	tenantInstances  = prometheus.NewDesc("fre_tenant_instances", "Sandboxes of a tenant's functions, agents and containers, as counted by quotas.", []string{"tenant"}, nil)
	tenantContainers = prometheus.NewDesc("fre_tenant_containers", "Running containers of a tenant, a part of the tenant's instances.", []string{"tenant"}, nil)
	tenantMemory     = prometheus.NewDesc("fre_tenant_memory_bytes", "Sum of the memory limits of a tenant's instances.", []string{"tenant"}, nil)
	tenantCPUs       = prometheus.NewDesc("fre_tenant_cpus", "Sum of the CPU limits of a tenant's instances.", []string{"tenant"}, nil)
	tenantBuilds     = prometheus.NewDesc("fre_tenant_builds", "Builds of a tenant, running and waiting.", []string{"tenant", "state"}, nil)
)

// Describe is part of prometheus.Collector.
func (tenantMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tenantInstances, tenantContainers, tenantMemory, tenantCPUs, tenantBuilds} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (m tenantMetrics) Collect(ch chan<- prometheus.Metric) {
	for tenant, share := range m.e.tenants.Shares() {
		if strings.HasPrefix(tenant, "_") { // the engine's own tenants
			continue
		}
		u := share.Now()
		running, waiting := m.e.Builds(tenant)
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{tenant}, labels...)...)
		}
		gauge(tenantInstances, float64(u.Instances))
		gauge(tenantContainers, float64(u.Containers))
		gauge(tenantMemory, float64(u.MemoryBytes))
		gauge(tenantCPUs, float64(u.CPUMillis)/1000)
		gauge(tenantBuilds, float64(running), "running")
		gauge(tenantBuilds, float64(waiting), "waiting")
	}
}
