package stream

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// element is an element of an XML document.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Children []*element `xml:",any"`
	Text     string     `xml:",chardata"`
}

func (e *element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Space == "" && a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e *element) all(name string) (found []*element) {
	for _, c := range e.Children {
		if c.XMLName.Local == name {
			found = append(found, c)
		}
	}
	return found
}

// rule describes an element: its attributes with the patterns of their values, and its children in
// order. A name with a final ! is required. A child with a final + occurs at least once, a child
// with * any number of times, any other child at most once.
type rule struct {
	attrs    map[string]*regexp.Regexp
	children []string
}

const space = "urn:mpeg:dash:schema:mpd:2011"

var (
	languagePattern = regexp.MustCompile(`^[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8})*$`) // xs:language
	anything        = regexp.MustCompile(`(?s)^.*$`)
	something       = regexp.MustCompile(`(?s)^.+$`)
	unsigned        = regexp.MustCompile(`^[0-9]{1,19}$`)
	positive        = regexp.MustCompile(`^[1-9][0-9]*$`)
	truth           = regexp.MustCompile(`^(true|false)$`)
	durationPattern = regexp.MustCompile(`^PT(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?$`)
	token           = regexp.MustCompile(`^\S+$`)

	descriptor = rule{attrs: map[string]*regexp.Regexp{"schemeIdUri!": token, "value": anything, "id": anything}}

	// Attributes and children that representations and adaptation sets share.
	commonAttrs = map[string]*regexp.Regexp{
		"profiles": token, "width": unsigned, "height": unsigned, "sar": regexp.MustCompile(`^[0-9]+:[0-9]+$`), "frameRate": regexp.MustCompile(`^[0-9]+(/[1-9][0-9]*)?$`),
		"audioSamplingRate": regexp.MustCompile(`^[0-9]+( [0-9]+)?$`), "mimeType": regexp.MustCompile(`^[a-z]+/[a-z0-9.+-]+$`), "codecs": regexp.MustCompile(`^[a-zA-Z0-9.]+$`),
		"startWithSAP": regexp.MustCompile(`^[0-6]$`), "maxPlayoutRate": something, "codingDependency": truth, "scanType": something,
	}
	commonChildren = []string{
		"FramePacking*", "AudioChannelConfiguration*", "ContentProtection*", "OutputProtection", "EssentialProperty*", "SupplementalProperty*",
		"InbandEventStream*", "Switching*", "RandomAccess*", "GroupLabel*", "Label*", "ProducerReferenceTime*", "ContentPopularityRate*", "Resync*",
	}
	// rules holds the rules of ISO/IEC 23009-1 (5th edition, clause 5) for the elements in FRE's
	// manifests. The order of children is the schema's.
	rules = map[string]rule{
		"MPD": {
			attrs:    map[string]*regexp.Regexp{"profiles!": something, "type": regexp.MustCompile(`^static$`), "mediaPresentationDuration!": durationPattern, "minBufferTime!": durationPattern, "xmlns": anything, "id": anything},
			children: []string{"ProgramInformation*", "BaseURL*", "Location*", "PatchLocation*", "ServiceDescription*", "InitializationSet*", "InitializationGroup*", "InitializationPresentation*", "ContentProtection*", "Period+"},
		},
		"Period": {
			attrs: map[string]*regexp.Regexp{"id": something, "start": durationPattern, "duration": durationPattern},
			children: []string{
				"BaseURL*", "SegmentBase", "SegmentList", "SegmentTemplate", "AssetIdentifier", "EventStream*", "ServiceDescription*",
				"ContentProtection*", "AdaptationSet*", "Subset*", "SupplementalProperty*", "EmptyAdaptationSet*", "GroupLabel*", "Preselection*",
			},
		},
		"AdaptationSet": {
			attrs: merge(commonAttrs, map[string]*regexp.Regexp{
				"id": unsigned, "group": unsigned, "lang": languagePattern, "contentType": regexp.MustCompile(`^(video|audio|text|image|application)$`),
				"par": regexp.MustCompile(`^[0-9]+:[0-9]+$`), "segmentAlignment": truth, "subsegmentAlignment": truth, "bitstreamSwitching": truth,
			}),
			children: append(slices.Clone(commonChildren), "Accessibility*", "Role*", "Rating*", "Viewpoint*", "ContentComponent*", "BaseURL*", "SegmentBase", "SegmentList", "SegmentTemplate", "Representation+"),
		},
		"Representation": {
			attrs: merge(commonAttrs, map[string]*regexp.Regexp{
				"id!": token, "bandwidth!": positive, "qualityRanking": unsigned, "dependencyId": something,
			}),
			children: append(slices.Clone(commonChildren), "BaseURL*", "ExtendedBandwidth*", "SubRepresentation*", "SegmentBase", "SegmentList", "SegmentTemplate"),
		},
		"SegmentTemplate": {
			attrs: map[string]*regexp.Regexp{
				"media": something, "initialization": something, "index": something, "startNumber": unsigned, "endNumber": unsigned, "timescale": positive,
				"duration": positive, "presentationTimeOffset": unsigned,
			},
			children: []string{"Initialization", "RepresentationIndex", "SegmentTimeline", "BitstreamSwitching"},
		},
		"SegmentTimeline": {children: []string{"S+"}},
		"S":               {attrs: map[string]*regexp.Regexp{"t": unsigned, "n": unsigned, "d!": positive, "r": regexp.MustCompile(`^(-1|[0-9]+)$`), "k": positive}},
		"BaseURL":         {attrs: map[string]*regexp.Regexp{"serviceLocation": anything}},

		"AudioChannelConfiguration": descriptor, "ContentProtection": descriptor, "EssentialProperty": descriptor, "SupplementalProperty": descriptor,
		"Role": descriptor, "Accessibility": descriptor, "Viewpoint": descriptor, "Rating": descriptor,
	}
)

func merge(a, b map[string]*regexp.Regexp) map[string]*regexp.Regexp {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// follow checks an element and its descendants against the rules. Attributes and children in other
// namespaces are allowed anywhere, as in the schema.
func (e *element) follow(at string) (wrong []string) {
	r, known := rules[e.XMLName.Local]
	at += "/" + e.XMLName.Local
	if !known || e.XMLName.Space != space {
		return []string{at + ": no element that is known of " + e.XMLName.Space}
	}
	return slices.Concat(e.followAttrs(r, at), e.followChildren(r, at), e.followRequired(r, at))
}

// followRequired checks that an element has the attributes and children it needs.
func (e *element) followRequired(r rule, at string) (wrong []string) {
	for name := range r.attrs {
		if required, is := strings.CutSuffix(name, "!"); is && e.attr(required) == "" {
			wrong = append(wrong, at+": no attribute "+required)
		}
	}
	for _, name := range r.children {
		required, is := strings.CutSuffix(name, "+")
		if is && !slices.ContainsFunc(e.Children, func(c *element) bool { return c.XMLName == xml.Name{Space: space, Local: required} }) {
			wrong = append(wrong, at+": no child "+required)
		}
	}
	return wrong
}

// followAttrs checks the attributes of an element.
func (e *element) followAttrs(r rule, at string) (wrong []string) {
	for _, a := range e.Attrs {
		if a.Name.Space != "" {
			continue
		}
		pattern := r.attrs[a.Name.Local]
		if pattern == nil {
			pattern = r.attrs[a.Name.Local+"!"]
		}
		if pattern == nil || !pattern.MatchString(a.Value) {
			wrong = append(wrong, fmt.Sprintf("%s: attribute %s=%q", at, a.Name.Local, a.Value))
		}
	}
	return wrong
}

// followChildren checks the descendants of an element.
func (e *element) followChildren(r rule, at string) (wrong []string) {
	place := 0
	count := map[string]int{}
	for _, c := range e.Children {
		if c.XMLName.Space != space {
			continue
		}
		name := c.XMLName.Local
		i := slices.IndexFunc(r.children, func(s string) bool { return strings.TrimRight(s, "*+") == name })
		count[name]++
		switch {
		case i < 0:
			wrong = append(wrong, at+": child "+name)
			continue
		case i < place:
			wrong = append(wrong, at+": child "+name+" comes too late")
		case count[name] > 1 && !strings.HasSuffix(r.children[i], "*") && !strings.HasSuffix(r.children[i], "+"):
			wrong = append(wrong, at+": child "+name+" comes twice")
		}
		place = max(place, i)
		wrong = append(wrong, c.follow(at)...)
	}
	return wrong
}

// parseManifest parses a static manifest with one period, and checks the rules and the standard's
// constraints between values.
func parseManifest(text []byte) (root *element, wrong []string) {
	d := xml.NewDecoder(bytes.NewReader(text))
	root = &element{}
	if err := d.Decode(root); err != nil {
		return nil, []string{err.Error()}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		wrong = append(wrong, "something follows the manifest")
	}
	wrong = append(wrong, root.follow("")...)
	if len(wrong) > 0 {
		return root, wrong
	}
	if len(root.all("Period")) != 1 {
		return root, []string{"not one period"}
	}
	ids := map[string]bool{}
	for _, set := range root.all("Period")[0].all("AdaptationSet") {
		if set.attr("segmentAlignment") != "true" && len(set.all("Representation")) > 1 {
			wrong = append(wrong, fmt.Sprintf("a set of %d representations is not aligned", len(set.all("Representation"))))
		}
		for _, r := range set.all("Representation") {
			id := r.attr("id")
			if ids[id] {
				wrong = append(wrong, "two representations "+id)
			}
			ids[id] = true
			wrong = append(wrong, representation(set, r)...)
		}
	}
	return root, wrong
}

// representation checks the standard's constraints between the values of a representation in a set.
func representation(set, r *element) (wrong []string) {
	id := r.attr("id")
	if set.attr("mimeType") == "" && r.attr("mimeType") == "" {
		wrong = append(wrong, id+" has no mimeType")
	}
	template := templateOf(set, r)
	if template == nil {
		if len(r.all("BaseURL")) != 1 {
			wrong = append(wrong, id+" has neither template nor address")
		}
		return wrong
	}
	if media := template.attr("media"); !strings.Contains(media, "$Number$") && !strings.Contains(media, "$Time$") || strings.Contains(template.attr("initialization"), "$Number") {
		wrong = append(wrong, id+": its template "+media)
	}
	if (len(template.all("SegmentTimeline")) == 0) == (template.attr("duration") == "") {
		wrong = append(wrong, id+" has not one of timeline and duration")
	}
	return wrong
}

// templateOf returns the segment template of a representation: its own, else that of its set, else
// nil.
func templateOf(set, r *element) *element {
	templates := append(set.all("SegmentTemplate"), r.all("SegmentTemplate")...)
	if len(templates) == 0 {
		return nil
	}
	return templates[len(templates)-1]
}

// CheckManifest checks a manifest without the segments.
func CheckManifest(t testing.TB, text []byte) {
	t.Helper()
	if _, wrong := parseManifest(text); len(wrong) > 0 {
		t.Errorf("%s\n%s", strings.Join(wrong, "\n"), text)
	}
}

// seconds returns the value of an xs:duration in seconds, NaN if s is invalid.
func seconds(s string) float64 {
	m := durationPattern.FindStringSubmatch(s)
	if m == nil {
		return math.NaN()
	}
	total := 0.0
	for i, unit := range []float64{3600, 60, 1} {
		if m[i+1] != "" {
			n, _ := strconv.ParseFloat(m[i+1], 64) // s holds digits only
			total += unit * n
		}
	}
	return total
}

// checkDASH checks the manifest, and that the manifest leads to the segments of the given tracks.
func checkDASH(t testing.TB, base string, tracks map[string]*track) {
	t.Helper()
	text := get(t, base+"/dash/manifest.mpd")
	root, wrong := parseManifest(text)
	if len(wrong) > 0 {
		t.Errorf("%s\n%s", strings.Join(wrong, "\n"), text)
		return
	}
	long := seconds(root.attr("mediaPresentationDuration"))
	found := 0
	for _, set := range root.all("Period")[0].all("AdaptationSet") {
		for _, r := range set.all("Representation") {
			template := templateOf(set, r)
			if template == nil {
				get(t, base+"/dash/"+strings.TrimSpace(r.all("BaseURL")[0].Text))
				continue
			}
			found++
			checkRepresentation(t, base+"/dash/", r, template, tracks, long)
		}
	}
	if found != len(tracks) {
		t.Errorf("%d representations, %d tracks in HLS", found, len(tracks))
	}
}

// checkRepresentation checks a representation in a presentation of so many seconds, and its
// segments, against the track of HLS.
func checkRepresentation(t testing.TB, base string, r, template *element, tracks map[string]*track, long float64) {
	t.Helper()
	address := strings.NewReplacer("$RepresentationID$", r.attr("id"))
	init := address.Replace(template.attr("initialization"))
	tr := tracks[path.Dir(init)]
	if tr == nil {
		t.Errorf("%s: HLS knows no %s", r.attr("id"), init)
		return
	}
	if again := newTrack(t, init, get(t, base+init)); again.scale != tr.scale || template.attr("timescale") != fmt.Sprint(tr.scale) {
		t.Errorf("%s: timescale %s, that of its segments is %d", r.attr("id"), template.attr("timescale"), tr.scale)
	}
	durations := durationsOf(template)
	if len(durations) != len(tr.segments) {
		t.Errorf("%s: %d segments, %d in HLS", r.attr("id"), len(durations), len(tr.segments))
		return
	}
	first, _ := strconv.Atoi(template.attr("startNumber"))
	for i, s := range tr.segments {
		if durations[i] != s.duration {
			t.Errorf("%s: segment %d takes %d, its samples %d", r.attr("id"), i+1, durations[i], s.duration)
		}
		media := strings.ReplaceAll(address.Replace(template.attr("media")), "$Number$", strconv.Itoa(first+i))
		if b := get(t, base+media); len(b) != s.size {
			t.Errorf("%s: segment %d has %d bytes, %d in HLS", r.attr("id"), i+1, len(b), s.size)
		}
	}
	if whole := float64(tr.end) / float64(tr.scale); math.Abs(whole-long) > 0.5 {
		t.Errorf("%s takes %.3f s of the presentation's %.3f", r.attr("id"), whole, long)
	}
	if bandwidth, _ := strconv.ParseFloat(r.attr("bandwidth"), 64); bandwidth < math.Floor(tr.peak()) {
		t.Errorf("%s: a segment takes %.0f bits a second, more than the %.0f that are announced", r.attr("id"), tr.peak(), bandwidth)
	}
}

// durationsOf returns the durations of the segments in a template's timeline.
func durationsOf(template *element) (durations []uint64) {
	for _, s := range template.all("SegmentTimeline")[0].all("S") {
		d, _ := strconv.ParseUint(s.attr("d"), 10, 64) // the attribute holds digits only
		repeat, _ := strconv.Atoi(s.attr("r"))
		for range repeat + 1 {
			durations = append(durations, d)
		}
	}
	return durations
}
