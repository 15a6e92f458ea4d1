package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
)

// page writes the results as Markdown. The page refers to the plots of [result.plots] in the
// directory paper.
func (r *result) page(w io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("# The paper's figures\n\nWritten by `make bench-paper`; `bench/paper` describes the measurement, [paper.json](paper/paper.json) holds the numbers. FRE started from the paper of Wu, Tian, Wan, Wang: *A method for building an ultra-lightweight runtime environment for cloud functions* (2020). This page measures the paper's figures anew, on a single machine in a single run. Peers take turns: read the ratios.\n")
	p("%s\n", r.Host.Markdown())
	for _, s := range r.Skipped {
		p("Not measured: %s.\n", s)
	}
	r.namespacesPage(p)
	r.cgroupsPage(p)
	r.serialPage(p)
	r.burstsPage(p)
	r.memoryPage(p)
	p("%s", references)
}

// references holds figures from other measurements, not made by this program.
const references = `## Beside another design

Not measured in this run: OpenLambda (SOCK), measured once on a machine of this kind **without limits or containment**. Compare with the figures above, with [cold starts](start.md) and with [fresh sandboxes](event.md), where FRE has limits and containment.

| OpenLambda (SOCK) | |
|---|---:|
| create a sandbox | 4.2 ms |
| 64 at once, the last | 227 ms |
| 256 at once, the last | 1,537 ms |
| first call of a new Python function | 16 to 26 ms |
| an idle Python instance, PSS | 1.97 MB |`

type printer func(format string, args ...any)

func (r *result) namespacesPage(p printer) {
	p("## Figure 1: namespaces\n\nThe given number of processes is cloned at once, each with new namespaces. The processes share memory, so only the namespaces cost time. The time ends when the last process runs. Medians; rounds: %d.\n\n![](paper/namespaces.svg)\n", r.Size.Rounds)
	p("| namespaces |%s", row(r.Size.Clones, func(n int) string { return fmt.Sprintf(" %d at once, ms | ÷ none |", n) }))
	p("|---|%s", strings.Repeat("---:|---:|", len(r.Size.Clones)))
	for _, c := range namespaceCases {
		p("| %s |%s", c.Namespaces, row(r.Size.Clones, func(n int) string {
			slowest := r.clones(c.Namespaces, n).slowest()
			return fmt.Sprintf(" %s | %.1f |", milliseconds(slowest), stats.Ratio(slowest, r.clones("none", n).slowest()))
		}))
	}
	p("")
}

func row(sizes []int, cell func(n int) string) string {
	var b strings.Builder
	for _, n := range sizes {
		b.WriteString(cell(n))
	}
	return b.String()
}

func (r *result) clones(namespaces string, atOnce int) *clones {
	i := slices.IndexFunc(r.Namespaces, func(c *clones) bool { return c.Namespaces == namespaces && c.AtOnce == atOnce })
	return r.Namespaces[i]
}

func (r *result) cgroupsPage(p printer) {
	p("## Figure 2: cgroups\n\nA group with limits of memory, CPU and processes from FRE's pool. With *create* the pool is empty; with *reuse* the pool holds used groups. Microseconds until the group exists with its limits. To join the group costs the same in both cases and does not count.\n\n![](paper/cgroups.svg)\n")
	p("| at once | create p50 | slowest | reuse p50 | slowest | create ÷ reuse, p50 |\n|---:|---:|---:|---:|---:|---:|")
	for i := 0; i+1 < len(r.Cgroups); i += 2 {
		create, reuse := r.Cgroups[i].summary(), r.Cgroups[i+1].summary()
		p("| %d | %.1f | %.1f | %.1f | %.1f | %.0f |", r.Cgroups[i].AtOnce, inMicroseconds(create.P50), inMicroseconds(create.Slowest),
			inMicroseconds(reuse.P50), inMicroseconds(reuse.Slowest), stats.Ratio(create.P50, reuse.P50))
	}
	p("")
}

func (r *result) serialPage(p printer) {
	p("## Figure 7: starts one after the other\n\nFrom the request to the first own instruction of a static Go program (`bench/functions/native-clock`): for FRE an HTTP request to its gateway, for docker and runc their command. Docker's image is the program alone, without a network as FRE's sandbox; each start ends before the next.\n\n![](paper/serial.svg)\n")
	p("| starts | peer | mean, ms | p50 | p99 | p50 ÷ bare | docker's p50 ÷ this |\n|---:|---|---:|---:|---:|---:|---:|")
	for _, s := range r.Serial {
		bare, docker := find(s.Series, peer.BareName), find(s.Series, peer.DockerName)
		for _, series := range s.Series {
			sum := series.Summary()
			p("| %d | %s | %s | %s | %s | %.2f | %s |", s.Count, series.Name(), milliseconds(mean(series.All())), milliseconds(sum.P50), milliseconds(sum.P99),
				stats.Ratio(sum.P50, bare.P50), times(docker.P50, sum.P50))
		}
	}
	p("")
}

func (r *result) burstsPage(p printer) {
	p("## Figure 8: starts at once\n\nThe same starts, all requested at the same time; milliseconds from the request. *slowest* is the slowest start of the median burst (runc and docker have a single burst each).\n")
	for _, n := range r.Size.Bursts {
		p("![](paper/%s)\n", burstPlot(n))
	}
	p("| at once | peer | p50 | p99 | slowest | slowest ÷ bare | docker's slowest ÷ this |\n|---:|---|---:|---:|---:|---:|---:|")
	for _, n := range r.Size.Bursts {
		all := r.burst(n)
		bare, docker := find(all, peer.BareName), find(all, peer.DockerName)
		for _, series := range all {
			s := series.Summary()
			p("| %d | %s | %s | %s | %s | %.2f | %s |", n, series.Name(), milliseconds(s.P50), milliseconds(s.P99), milliseconds(s.Slowest),
				stats.Ratio(s.Slowest, bare.Slowest), times(docker.Slowest, s.Slowest))
		}
	}
	p("")
}

// times formats a/b, "–" if a was not measured.
func times(a, b time.Duration) string {
	if a == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", stats.Ratio(a, b))
}

func (r *result) burst(n int) []*peer.Series {
	return slices.DeleteFunc(slices.Clone(r.Bursts), func(s *peer.Series) bool { return s.AtOnce != n })
}

// find returns the summary of a peer's series, zero if missing.
func find(all []*peer.Series, name string) peer.Line {
	i := slices.IndexFunc(all, func(s *peer.Series) bool { return s.Peer == name && s.Kind == "" })
	if i < 0 {
		return peer.Line{}
	}
	return all[i].Summary()
}

func (r *result) memoryPage(p printer) {
	p("## Figures 9 and 10: memory\n")
	p("%d instances of each function (%s). A function answers HTTP events, and each instance has answered an event. All platforms run the same files, command and bootstrap: FRE in its sandboxes; docker from an image for each language, imported from FRE's tree (as from publishers without shared layers); bare as a plain process with FRE's tree as its root. All files were in the page cache. Figure 9 has a single language at a time, figure 10 all languages at once. MB (10⁶ bytes), medians; rounds: %d.\n", r.Size.Instances, strings.Join(r.Languages, ", "), r.Size.Memory)
	p("- *processes*: the proportional set size (`smaps_rollup`) of the functions' own processes.\n- *with helpers*: *processes* and the growth of the platform's own processes: docker's dockerd, containerd and a shim per container; FRE's engine, spawner and parked sandboxes.\n- *host*: the fall of MemAvailable, which includes the kernel's memory. File pages count as available, so shared files do not show.\n\n![](paper/memory.svg)\n\n![](paper/mixed.svg)\n")
	p("| figure | instances | platform | processes | with helpers | host | processes per instance | processes ÷ bare | with helpers ÷ docker | host ÷ docker | host ÷ bare |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, h := range r.Memory {
		figure := "9, " + h.Set
		if h.Set == mixed {
			figure = "10, " + h.Set
		}
		bare, docker := r.held(h.Set, "bare"), r.held(h.Set, "docker")
		m := h.medians()
		p("| %s | %d | %s | %.1f | %.1f | %.1f | %.2f | %s | %s | %s | %s |", figure, h.Instances, h.Platform,
			m.processes, m.withHelpers, m.host, m.processes/float64(h.Instances),
			part(m.processes, bare.processes), part(m.withHelpers, docker.withHelpers), part(m.host, docker.host), part(m.host, bare.host))
	}
	p("")
	r.pairsPage(p)
}

func (r *result) pairsPage(p printer) {
	if len(r.Pairs) == 0 {
		return
	}
	p("### One Python in two images\n\nThe first pair is two functions with the same Python, and the second function has lxml. The second pair is two functions with the same Python, NumPy and Pillow. An instance of each function starts with an empty page cache. *page cache*: the bytes of both images' files in the cache afterwards (`cachestat`); under FRE they include files read before by the parked interpreters. MB, medians; rounds: %d.\n", r.Size.Memory)
	p("| in common | platform | page cache | ÷ docker | processes | ÷ docker | with helpers | ÷ docker |\n|---|---|---:|---:|---:|---:|---:|---:|")
	for i, v := range r.Pairs {
		m, docker := v.medians(), r.Pairs[i|1].medians() // docker comes after FRE
		p("| %s | %s | %.1f | %s | %.1f | %s | %.1f | %s |", v.Common, v.Platform, m.host, part(m.host, docker.host),
			m.processes, part(m.processes, docker.processes), m.withHelpers, part(m.withHelpers, docker.withHelpers))
	}
	p("")
}

func (v *pair) medians() megabytes {
	return (&holding{Processes: v.Processes, Helpers: v.Helpers, Available: v.Cached}).medians()
}

// megabytes holds the values of a holding for a table or plot.
type megabytes struct{ processes, withHelpers, host float64 }

func (h *holding) medians() megabytes {
	const mb = 1e6
	both := make([]int64, len(h.Processes))
	for i := range both {
		both[i] = h.Processes[i] + h.Helpers[i]
	}
	return megabytes{float64(stats.Median(h.Processes)) / mb, float64(stats.Median(both)) / mb, float64(stats.Median(h.Available)) / mb}
}

// held returns the megabytes of a set on a platform, NaN if not measured.
func (r *result) held(set, platform string) megabytes {
	for _, h := range r.Memory {
		if h.Set == set && h.Platform == platform {
			return h.medians()
		}
	}
	return megabytes{math.NaN(), math.NaN(), math.NaN()}
}

func part(a, b float64) string {
	if math.IsNaN(a) || math.IsNaN(b) || b <= 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(len(all), 1))
}

func inMicroseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", inMilliseconds(d)) }
