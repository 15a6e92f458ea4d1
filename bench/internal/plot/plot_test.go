package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// wellFormed reads an SVG to its end and returns its texts.
func wellFormed(t *testing.T, svg []byte) string {
	t.Helper()
	var texts strings.Builder
	d := xml.NewDecoder(strings.NewReader(string(svg)))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts.String()
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, svg)
		}
		if text, ok := token.(xml.CharData); ok {
			texts.Write(text)
		}
	}
}

func TestLines(t *testing.T) {
	svg := Lines{
		Title: "a <title> & more", X: Axis{Label: "count", Log: true}, Y: Axis{Label: "ms"}, Marks: true,
		Lines: []Line{{Name: "one", Color: Blue, Points: []Point{{1, 0}, {10, 50}, {100, 100}}}},
	}.SVG()
	texts := wellFormed(t, svg)
	for _, want := range []string{"a <title> & more", "count", "ms", "one", "100"} {
		if !strings.Contains(texts, want) {
			t.Errorf("no %q in the picture's texts %q", want, texts)
		}
	}
	// The ends of the axes are the corners of the field.
	if want := `d="M72.0 362.0L406.0 214.0L740.0 66.0"`; !strings.Contains(string(svg), want) {
		t.Errorf("no path %s in:\n%s", want, svg)
	}
}

func TestBars(t *testing.T) {
	svg := Bars{
		Title: "bars", Y: Axis{Label: "MB"}, Groups: []string{"a", "b"},
		Series: []Series{{"x", Blue, []float64{10, math.NaN()}}, {"y", Orange, []float64{5, 10}}},
	}.SVG()
	wellFormed(t, svg)
	if got := strings.Count(string(svg), `height="296.0"`); got != 2 {
		t.Errorf("%d bars of the full height, want 2 in:\n%s", got, svg)
	}
	if got := strings.Count(string(svg), `height="148.0"`); got != 1 {
		t.Errorf("%d bars of half the height, want 1", got)
	}
}

func TestNegativeBar(t *testing.T) {
	svg := Bars{Title: "bars", Groups: []string{"a", "b"}, Series: []Series{{"x", Blue, []float64{10, -10}}}}.SVG()
	for _, want := range []string{`y="66.0" width="266.2" height="148.0"`, `y="214.0" width="266.2" height="148.0"`} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("no bar %s in:\n%s", want, svg)
		}
	}
}

func TestEmpty(t *testing.T) {
	wellFormed(t, Lines{Title: "none", Y: Axis{Log: true}}.SVG())
	wellFormed(t, Bars{Title: "none"}.SVG())
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name   string
		axis   Axis
		values []float64
		want   []float64
	}{
		{"linear", Axis{}, []float64{0, 97}, []float64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}},
		{"small", Axis{}, []float64{0, 0.3}, []float64{0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3}},
		{"one value", Axis{}, []float64{5}, []float64{5, 5.2, 5.4, 5.6, 5.8, 6}},
		{"decades", Axis{Log: true}, []float64{0.2, 3000}, []float64{0.1, 1, 10, 100, 1000, 10000}},
		{"one decade", Axis{Log: true}, []float64{2, 9}, []float64{1, 2, 5, 10}},
		{"not positive", Axis{Log: true}, []float64{0, 1}, []float64{1, 2, 5, 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := newScale(c.axis, c.values, 0, 1).ticks
			if diff := cmp.Diff(c.want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
				t.Errorf("ticks (-want +got):\n%s", diff)
			}
		})
	}
}

// A column is well-formed, and has each picture whole and below the picture before.
func TestColumn(t *testing.T) {
	one := Lines{Title: "One", Lines: []Line{{Name: "a", Points: []Point{{1, 2}, {2, 3}}}}}.SVG()
	var doc struct {
		ViewBox string `xml:"viewBox,attr"`
		SVG     []struct {
			Y     float64 `xml:"y,attr"`
			Title string  `xml:"title"`
		} `xml:"svg"`
	}
	if err := xml.Unmarshal(Column(one, Lines{Title: "Two"}.SVG()), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.ViewBox != "0 0 760 840" || len(doc.SVG) != 2 || doc.SVG[0].Title != "One" || doc.SVG[1].Title != "Two" || doc.SVG[1].Y != 420 {
		t.Errorf("%+v", doc)
	}
}
