package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/plot"
)

// colors maps peers and platforms to colours, equal in all figures.
var colors = map[string]plot.Color{
	peer.FREName:    plot.Blue, // the peer and the platform
	peer.DockerName: plot.Orange, "docker": plot.Orange,
	peer.BareName: plot.Grey, "bare": plot.Grey,
	peer.RuncName: plot.Pink,
}

// plots returns the figures by file name.
func (r *result) plots() map[string][]byte {
	plots := map[string][]byte{
		"namespaces.svg": r.namespacesPlot().SVG(),
		"cgroups.svg":    r.cgroupsPlot().SVG(),
		"serial.svg":     r.serialPlot().SVG(),
		"memory.svg":     r.memoryPlot().SVG(),
		"mixed.svg":      r.mixedPlot().SVG(),
	}
	for _, n := range r.Size.Bursts {
		plots[burstPlot(n)] = r.burstsPlot(n).SVG()
	}
	return plots
}

func burstPlot(n int) string { return fmt.Sprintf("burst-%d.svg", n) }

func (r *result) namespacesPlot() plot.Bars {
	f := plot.Bars{Title: "Figure 1: processes with new namespaces, made at once", Y: plot.Axis{Label: "ms until the last runs", Log: true}}
	for _, c := range namespaceCases {
		f.Groups = append(f.Groups, c.Namespaces)
	}
	for i, n := range r.Size.Clones {
		s := plot.Series{Name: fmt.Sprintf("%d at once", n), Color: []plot.Color{plot.Blue, plot.Grey}[i%2]}
		for _, c := range namespaceCases {
			s.Values = append(s.Values, inMilliseconds(r.clones(c.Namespaces, n).slowest()))
		}
		f.Series = append(f.Series, s)
	}
	return f
}

func (r *result) cgroupsPlot() plot.Lines {
	create := plot.Line{Name: "create", Color: plot.Orange}
	reuse := plot.Line{Name: "reuse", Color: plot.Blue}
	for _, g := range r.Cgroups {
		l := &create
		if g.How == "reuse" {
			l = &reuse
		}
		l.Points = append(l.Points, plot.Point{X: float64(g.AtOnce), Y: inMicroseconds(g.summary().P50)})
	}
	return plot.Lines{
		Title: "Figure 2: cgroups made and reused", Marks: true,
		X: plot.Axis{Label: "asked for at once", Log: true}, Y: plot.Axis{Label: "µs for one, p50", Log: true},
		Lines: []plot.Line{create, reuse},
	}
}

func (r *result) serialPlot() plot.Lines {
	f := plot.Lines{
		Title: "Figure 7: starts one after the other", Marks: true,
		X: plot.Axis{Label: "starts"}, Y: plot.Axis{Label: "ms to the first instruction, mean", Log: true},
	}
	for _, name := range peerNames {
		l := plot.Line{Name: name, Color: colors[name]}
		for _, s := range r.Serial {
			for _, series := range s.Series {
				if series.Peer == name && series.Kind == "" {
					l.Points = append(l.Points, plot.Point{X: float64(s.Count), Y: inMilliseconds(mean(series.All()))})
				}
			}
		}
		if len(l.Points) > 0 {
			f.Lines = append(f.Lines, l)
		}
	}
	return f
}

// burstsPlot shows the cumulative distribution of each peer's start times.
func (r *result) burstsPlot(n int) plot.Lines {
	f := plot.Lines{
		Title: fmt.Sprintf("Figure 8: %d starts at once", n),
		X:     plot.Axis{Label: "ms from the burst's begin", Log: true}, Y: plot.Axis{Label: "part of all starts"},
	}
	for _, series := range r.burst(n) {
		if series.Kind != "" {
			continue
		}
		l := plot.Line{Name: series.Peer, Color: colors[series.Peer]}
		all := slices.Sorted(slices.Values(series.All()))
		l.Points = append(l.Points, plot.Point{X: inMilliseconds(all[0])})
		for i, d := range all {
			l.Points = append(l.Points, plot.Point{X: inMilliseconds(d), Y: float64(i+1) / float64(len(all))})
		}
		f.Lines = append(f.Lines, l)
	}
	return f
}

var platformNames = []string{"docker", "fre", "bare"}

func (r *result) memoryPlot() plot.Bars {
	f := plot.Bars{
		Title: "Figure 9: memory of an instance, one language at a time", Groups: r.Languages,
		Y: plot.Axis{Label: "MB per instance, PSS with helpers"},
	}
	for _, name := range platformNames {
		s := plot.Series{Name: name, Color: colors[name]}
		for _, language := range r.Languages {
			s.Values = append(s.Values, r.held(language, name).withHelpers/float64(r.Size.Instances))
		}
		f.Series = appendMeasured(f.Series, s)
	}
	return f
}

func (r *result) mixedPlot() plot.Bars {
	f := plot.Bars{
		Title:  fmt.Sprintf("Figure 10: memory of %d instances of each of %d languages at once", r.Size.Instances, len(r.Languages)),
		Groups: []string{"processes, PSS", "with helpers, PSS", "host, MemAvailable"}, Y: plot.Axis{Label: "MB"},
	}
	for _, name := range platformNames {
		m := r.held(mixed, name)
		f.Series = appendMeasured(f.Series, plot.Series{
			Name: name, Color: colors[name], Values: []float64{m.processes, m.withHelpers, m.host},
		})
	}
	return f
}

// appendMeasured appends s unless no value was measured.
func appendMeasured(all []plot.Series, s plot.Series) []plot.Series {
	if !slices.ContainsFunc(s.Values, func(v float64) bool { return !math.IsNaN(v) }) {
		return all
	}
	return append(all, s)
}
