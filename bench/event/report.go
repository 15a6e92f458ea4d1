package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
)

// markdown returns the tables of the page.
func (r *result) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s\n", r.Host.Markdown())
	p("## First line\n\nMilliseconds from the request (for the bare interpreter, its vfork) to the clock that the handler's first line reads. The bare interpreter runs the same files in a chroot with /proc, without bootstrap or sandbox. *python with imports* holds %.1f MB at its first line, the plain function %.1f MB.\n",
		megabytes(r.HeavyKiB), megabytes(r.PlainKiB))
	p("| | starts | p50 | p99 | slowest | p50 ÷ bare |\n|---|---:|---:|---:|---:|---:|")
	for _, f := range functions {
		if !slices.ContainsFunc(r.Lines, func(s *peer.Series) bool { return s.Peer == f.bareName }) {
			continue // skipped by -quick
		}
		bare := r.line(f.bareName)
		for _, s := range r.Lines {
			if s.Peer != f.bareName && s.Peer != "fre, "+f.label {
				continue
			}
			l := s.Summary()
			p("| %s | %d | %.2f | %.2f | %.2f | %.2f |", s.Name(), l.Count, milliseconds(l.P50), milliseconds(l.P99), milliseconds(l.Slowest),
				stats.Ratio(l.P50, bare.P50))
		}
	}
	p("\n## Throughput\n\nA fresh sandbox for every event; each connection sends its next request when the last is answered. The client runs on the same machine. Milliseconds.\n")
	p("| function | connections | events/s | p50 | p99 | slowest |\n|---|---:|---:|---:|---:|---:|")
	for _, t := range r.Throughput {
		p("| %s | %d | %.0f | %.2f | %.2f | %.2f |", t.Function, t.Connections, mean(t.PerSecond),
			milliseconds(t.Summary.P50), milliseconds(t.Summary.P99), milliseconds(t.Summary.Slowest))
	}
	if r.Ready != nil {
		r.Ready.markdown(p)
	}
	return b.String()
}

func (r *ready) markdown(p func(format string, args ...any)) {
	p("\n## Kept ready\n\nKiB that one more of each holds where %d are kept: the slope from %d, median of %d rounds. *kernel* is what all the kernel's memory grows by (objects that can be reclaimed are, first), *spawner* its part of the spawner's process, *engine* that of the program that keeps it (PSS). A bare parked sandbox has no network namespace yet.\n",
		r.Many, r.Few, len(r.Rounds))
	p("| | kernel | spawner | engine | together |\n|---|---:|---:|---:|---:|")
	for _, row := range []struct {
		name string
		cost held
	}{
		{"bare parked sandbox, without its cgroup", r.bareAlone()},
		{"cgroup, pooled", r.group()},
		{"bare parked sandbox and its cgroup", r.bare()},
		{"network namespace, pooled", r.network()},
	} {
		p("| %s | %.1f | %.1f | %.1f | %.1f |", row.name, kibibytes(row.cost.Kernel), kibibytes(row.cost.Spawner), kibibytes(row.cost.Engine), kibibytes(row.cost.total()))
	}
}

func kibibytes(bytes int64) float64 { return float64(bytes) / 1024 }

func (r *result) line(name string) peer.Line {
	i := slices.IndexFunc(r.Lines, func(s *peer.Series) bool { return s.Peer == name })
	return r.Lines[i].Summary()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func megabytes(kib int64) float64 { return float64(kib) * 1024 / 1e6 }

// mean returns the mean of rates over turns of equal length: all events divided by the total time.
func mean(rates []float64) float64 {
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum / float64(max(len(rates), 1))
}
