package engine

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// tenantMetrics show the use of tenants' quotas, as far as known without reading images or disks.
// They list each tenant that has had an instance, a container or a build since the engine's
// start.
type tenantMetrics struct{ e *Engine }

var (
	tenantInstances  = prometheus.NewDesc("fre_tenant_instances", "Sandboxes that count against a tenant's quotas: of functions, agents and containers.", []string{"tenant"}, nil)
	tenantContainers = prometheus.NewDesc("fre_tenant_containers", "Containers that run, which are among its instances.", []string{"tenant"}, nil)
	tenantMemory     = prometheus.NewDesc("fre_tenant_memory_bytes", "Its instances' limits of memory together.", []string{"tenant"}, nil)
	tenantCPUs       = prometheus.NewDesc("fre_tenant_cpus", "Its instances' limits of CPU together.", []string{"tenant"}, nil)
	tenantBuilds     = prometheus.NewDesc("fre_tenant_builds", "Its builds, under way (running) and in their queue (waiting).", []string{"tenant", "state"}, nil)
)

// Describe is part of prometheus.Collector.
func (tenantMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tenantInstances, tenantContainers, tenantMemory, tenantCPUs, tenantBuilds} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (m tenantMetrics) Collect(ch chan<- prometheus.Metric) {
	m.e.uses.Range(func(name, use any) bool {
		tenant := name.(string)
		if strings.HasPrefix(tenant, "_") { // the engine's own tenants
			return true
		}
		u := use.(*tenantUse).now()
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{tenant}, labels...)...)
		}
		gauge(tenantInstances, float64(u.Instances))
		gauge(tenantContainers, float64(u.Containers))
		gauge(tenantMemory, float64(u.MemoryBytes))
		gauge(tenantCPUs, float64(u.CPUMillis)/1000)
		gauge(tenantBuilds, float64(u.Builds), "running")
		gauge(tenantBuilds, float64(u.WaitingBuilds), "waiting")
		return true
	})
}
