// Package plot draws the figures of benchmarks and load tests as SVG: lines and bars with axes, a
// grid and a legend. The pictures have colours for light and dark pages. Lines also differ by their
// dashes.
package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Color is a colour of the palette. Use the same colour for the same subject in all figures.
type Color int

// The palette of Okabe and Ito, distinguishable for people with colour-blindness, adjusted to a
// light and a dark background.
const (
	Blue Color = iota
	Orange
	Grey
	Pink
	Green
	Brown
)

var palette = []struct{ light, dark, dashes string }{
	Blue:   {"#0072b2", "#56b4e9", ""},
	Orange: {"#d55e00", "#e69f00", "7 3"},
	Grey:   {"#6b7280", "#a8b0bb", "2 3"},
	Pink:   {"#b5578f", "#e08fc0", "10 3 2 3"},
	Green:  {"#00805e", "#2fc99b", "4 2"},
	Brown:  {"#8a6d00", "#d6c24a", "12 4"},
}

// Axis is an axis of a figure.
type Axis struct {
	Label string // with the unit
	Log   bool   // logarithmic; values must be positive

	Tick func(float64) string // the label of a tick; default: the number
}

// Line is a curve through points, in order of X.
type Line struct {
	Name   string
	Color  Color
	Points []Point
}

// Point is a point of a figure, in the units of the axes.
type Point struct{ X, Y float64 }

// Lines is a figure of curves.
type Lines struct {
	Title string
	X, Y  Axis
	Marks bool // show each point
	Lines []Line
}

// Bars is a figure of groups of bars, one bar of each series in a group.
type Bars struct {
	Title  string
	Y      Axis
	Groups []string // the labels below the groups
	Series []Series
}

// Series holds the bars of one colour: one value per group, NaN for no bar.
type Series struct {
	Name   string
	Color  Color
	Values []float64
}

// The dimensions of a picture, in pixels before scaling.
const (
	width, height            = 760.0, 420.0
	left, right, top, bottom = 72.0, 20.0, 66.0, 58.0
)

// SVG draws the figure.
func (f Lines) SVG() []byte {
	var xs, ys []float64
	for _, l := range f.Lines {
		for _, p := range l.Points {
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
	}
	x, y := newScale(f.X, xs, left, width-right), newScale(f.Y, ys, height-bottom, top)
	d := begin(f.Title)
	d.axis(y, f.Y)
	for _, t := range x.ticks {
		px := x.at(t)
		d.printf(`<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, px, top, px, height-bottom)
		d.text(px, height-bottom+18, "middle", "small", f.X.tick(t))
	}
	d.text((left+width-right)/2, height-14, "middle", "", f.X.Label)
	legend := make([]entry, 0, len(f.Lines))
	for _, l := range f.Lines {
		legend = append(legend, entry{l.Name, l.Color})
		var path strings.Builder
		for i, p := range l.Points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], x.at(p.X), y.at(p.Y))
		}
		d.printf(`<path class="line s%d" d="%s"/>`, l.Color, path.String())
		for _, p := range l.Points {
			if f.Marks {
				d.printf(`<circle class="f%d" cx="%.1f" cy="%.1f" r="3.5"/>`, l.Color, x.at(p.X), y.at(p.Y))
			}
		}
	}
	return d.end(legend, true)
}

// SVG draws the figure.
func (f Bars) SVG() []byte {
	var ys []float64
	for _, s := range f.Series {
		for _, v := range s.Values {
			if !math.IsNaN(v) {
				ys = append(ys, v)
			}
		}
	}
	if !f.Y.Log {
		ys = append(ys, 0) // a bar's length shows the value
	}
	y := newScale(f.Y, ys, height-bottom, top)
	d := begin(f.Title)
	d.axis(y, f.Y)
	base := height - bottom
	if !f.Y.Log {
		base = y.at(0)
	}
	group := (width - left - right) / float64(max(len(f.Groups), 1))
	bar := group * 0.8 / float64(max(len(f.Series), 1))
	for g, name := range f.Groups {
		start := left + group*float64(g)
		d.text(start+group/2, height-bottom+18, "middle", "small", name)
		for i, s := range f.Series {
			if g >= len(s.Values) || math.IsNaN(s.Values[g]) {
				continue
			}
			px, py := start+group*0.1+bar*float64(i), y.at(s.Values[g])
			d.printf(`<rect class="f%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, s.Color, px+0.5, min(py, base), bar-1, math.Abs(base-py))
			d.text(px+bar/2, min(py, base)-4, "middle", "tiny", number(round3(s.Values[g])))
		}
	}
	legend := make([]entry, 0, len(f.Series))
	for _, s := range f.Series {
		legend = append(legend, entry{s.Name, s.Color})
	}
	return d.end(legend, false)
}

// Column returns a picture with the given pictures of this package, one below the other.
func Column(pictures ...[]byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img">`+"\n", width, height*float64(len(pictures)))
	for i, p := range pictures {
		inner, _ := bytes.CutPrefix(p, []byte("<svg "))
		fmt.Fprintf(&b, `<svg y="%g" width="%g" height="%g" %s`, height*float64(i), width, height, inner)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// scale maps the values of an axis to pixels.
type scale struct {
	log      bool
	min, max float64
	from, to float64 // pixels of min and max
	ticks    []float64
}

// newScale returns a scale with round limits around the values.
func newScale(a Axis, values []float64, from, to float64) scale {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if a.Log && v <= 0 {
			continue
		}
		lo, hi = min(lo, v), max(hi, v)
	}
	if lo > hi {
		lo, hi = 1, 10
	}
	s := scale{log: a.Log, from: from, to: to}
	if a.Log {
		s.logTicks(lo, hi)
	} else {
		s.linearTicks(lo, hi)
	}
	return s
}

// logTicks sets ticks at decades, and at 2 and 5 between decades if few decades exist.
func (s *scale) logTicks(lo, hi float64) {
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	if first == last {
		last++
	}
	factors := []float64{1}
	if last-first <= 2 {
		factors = []float64{1, 2, 5}
	}
	for e := first; e <= last; e++ {
		for _, f := range factors {
			if t := f * math.Pow(10, e); e < last || f == 1 {
				s.ticks = append(s.ticks, t)
			}
		}
	}
	s.min, s.max = math.Pow(10, first), math.Pow(10, last)
}

// linearTicks sets four to ten ticks at multiples of 1, 2 or 5 times a power of ten.
func (s *scale) linearTicks(lo, hi float64) {
	if lo == hi {
		hi = lo + 1
	}
	step := math.Pow(10, math.Floor(math.Log10(hi-lo)))
	for _, f := range []float64{0.2, 0.5, 1, 2} {
		if (hi-lo)/(step*f) <= 10 {
			step *= f
			break
		}
	}
	first, last := math.Floor(lo/step), math.Ceil(hi/step)
	for i := first; i <= last; i++ {
		s.ticks = append(s.ticks, i*step)
	}
	s.min, s.max = first*step, last*step
}

func (s scale) at(v float64) float64 {
	lo, hi := s.min, s.max
	if s.log {
		v, lo, hi = math.Log10(max(v, lo)), math.Log10(lo), math.Log10(hi)
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// tick returns the label of the tick at t.
func (a Axis) tick(t float64) string {
	if a.Tick != nil {
		return a.Tick(t)
	}
	return number(t)
}

// number formats a tick: 0.1, 25, 10000.
func number(v float64) string {
	return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
}

// round3 rounds to three digits, more than a bar can show.
func round3(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	return math.Round(v/unit) * unit
}

// drawing is an SVG document under construction.
type drawing struct{ bytes.Buffer }

type entry struct {
	name  string
	color Color
}

func begin(title string) *drawing {
	d := &drawing{}
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img">`, width, height)
	d.printf("<title>%s</title>", escape(title))
	d.printf("<style>")
	d.printf("text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px}.tiny{font-size:10px}.title{font-size:15px;font-weight:600}")
	d.printf(".page{fill:#fff}.grid{stroke:#d8dee4;stroke-width:1}.line{fill:none;stroke-width:2}")
	for i, c := range palette {
		d.printf(".s%d{stroke:%s;stroke-dasharray:%s}.f%d{fill:%s}", i, c.light, orNone(c.dashes), i, c.light)
	}
	d.printf("@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}")
	for i, c := range palette {
		d.printf(".s%d{stroke:%s}.f%d{fill:%s}", i, c.dark, i, c.dark)
	}
	d.printf("}</style>")
	d.printf(`<rect class="page" width="%g" height="%g"/>`, width, height)
	d.text(left, 24, "start", "title", title)
	return d
}

func orNone(dashes string) string {
	if dashes == "" {
		return "none"
	}
	return dashes
}

// axis draws the ordinate with its grid.
func (d *drawing) axis(y scale, a Axis) {
	for _, t := range y.ticks {
		py := y.at(t)
		d.printf(`<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, left, py, width-right, py)
		d.text(left-8, py+4, "end", "small", a.tick(t))
	}
	d.printf(`<text transform="translate(18 %.1f) rotate(-90)" text-anchor="middle">%s</text>`, (top+height-bottom)/2, escape(a.Label))
}

// end adds the legend in one row below the title, and returns the document.
func (d *drawing) end(legend []entry, lines bool) []byte {
	x := left
	for _, e := range legend {
		if lines {
			d.printf(`<path class="line s%d" d="M%.1f 42h24"/>`, e.color, x)
		} else {
			d.printf(`<rect class="f%d" x="%.1f" y="36" width="12" height="12"/>`, e.color, x+6)
		}
		d.text(x+30, 46, "start", "small", e.name)
		x += 30 + 7*float64(len(e.name)) + 18
	}
	d.printf("</svg>")
	return d.Bytes()
}

func (d *drawing) text(x, y float64, anchor, class, text string) {
	d.printf(`<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, class, x, y, anchor, escape(text))
}

func (d *drawing) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(d, format, args...) // a Buffer takes everything
	d.WriteByte('\n')
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
