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
