package viewers

import (
	"io"
	"time"

	"github.com/fre-engine/fre/bench/internal/plot"
)

// WriteSVG draws the run over time in a column of figures: requests and errors, bit rates,
// viewers, latencies of segments.
func (r *Report) WriteSVG(w io.Writer) error {
	line := func(name string, color plot.Color, of func(Step) float64) plot.Line {
		l := plot.Line{Name: name, Color: color}
		for _, s := range r.TimeLine {
			l.Points = append(l.Points, plot.Point{X: s.At.Seconds(), Y: of(s)})
		}
		return l
	}
	// measured drops the steps without a measurement.
	measured := func(l plot.Line) plot.Line {
		var kept []plot.Point
		for _, p := range l.Points {
			if p.Y > 0 {
				kept = append(kept, p)
			}
		}
		l.Points = kept
		return l
	}
	milliseconds := func(d time.Duration) float64 { return float64(d) / 1e6 }
	x := plot.Axis{Label: "time (s)"}
	_, err := w.Write(plot.Column(
		plot.Lines{
			Title: "Requests", X: x, Y: plot.Axis{Label: "each second"},
			Lines: []plot.Line{
				line("requests", plot.Blue, func(s Step) float64 { return s.Requests }),
				line("errors", plot.Orange, func(s Step) float64 { return s.Errors }),
			},
		}.SVG(),
		plot.Lines{
			Title: "Bit rate of what is loaded", X: x, Y: plot.Axis{Label: "Mbit/s"},
			Lines: []plot.Line{measured(line("of a viewer, on average", plot.Green, func(s Step) float64 { return s.BitRate / 1e6 }))},
		}.SVG(),
		plot.Lines{
			Title: "Throughput", X: x, Y: plot.Axis{Label: "Mbit/s"},
			Lines: []plot.Line{line("of all viewers", plot.Brown, func(s Step) float64 { return s.BitsSent / 1e6 })},
		}.SVG(),
		plot.Lines{
			Title: "Viewers", X: x, Y: plot.Axis{Label: "viewers"},
			Lines: []plot.Line{
				line("there", plot.Blue, func(s Step) float64 { return s.Viewers }),
				line("rebuffering", plot.Orange, func(s Step) float64 { return s.Rebuffering }),
			},
		}.SVG(),
		plot.Lines{
			Title: "Loading a segment", X: x, Y: plot.Axis{Label: "to the last byte (ms)", Log: true},
			Lines: []plot.Line{
				measured(line("p50", plot.Blue, func(s Step) float64 { return milliseconds(s.P50) })),
				measured(line("p99", plot.Pink, func(s Step) float64 { return milliseconds(s.P99) })),
			},
		}.SVG(),
	))
	return err
}
