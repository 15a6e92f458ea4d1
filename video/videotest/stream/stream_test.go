package stream

import (
	"strings"
	"testing"
)

const manifest = `<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:isoff-live:2011" type="static" mediaPresentationDuration="PT1M8.5S" minBufferTime="PT2S">
 <Period id="0" start="PT0S">
  <AdaptationSet lang="de" contentType="audio" segmentAlignment="true" mimeType="audio/mp4" startWithSAP="1">
   <Role schemeIdUri="urn:mpeg:dash:role:2011" value="main"/>
   <SegmentTemplate media="$RepresentationID$/$Number$.m4s" initialization="init.mp4" startNumber="1" timescale="48000"><SegmentTimeline><S t="0" d="9" r="1"/></SegmentTimeline></SegmentTemplate>
   <Representation id="a" bandwidth="1" codecs="mp4a.40.2"><AudioChannelConfiguration schemeIdUri="urn:x" value="2"/></Representation>
  </AdaptationSet>
 </Period>
</MPD>`

// TestManifests: a manifest that the schema allows passes; a manifest that breaks a rule fails.
func TestManifests(t *testing.T) {
	if _, wrong := parseManifest([]byte(manifest)); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	for _, tt := range []struct{ from, to string }{
		{"</MPD>", ""},
		{"</MPD>", "</MPD><MPD/>"},
		{"mpd:2011", "mpd:2012"},
		{` profiles="urn:mpeg:dash:profile:isoff-live:2011"`, ""},
		{` minBufferTime="PT2S"`, ""},
		{`"PT1M8.5S"`, `"68.5"`},
		{`lang="de"`, `lang="German!"`},
		{`lang="de"`, `language="de"`},
		{`<Role `, `<Rolle `},
		{` d="9"`, ""},
		{` d="9"`, ` d="-9"`},
		{` id="a"`, ""},
		{` bandwidth="1"`, ""},
		{"$Number$", "1"},
		{` mimeType="audio/mp4"`, ""},
		{"<SegmentTimeline>", "<!--"},
		{"</Period>", "</Period><Period/>"},
		{"</Representation>", `</Representation><Role schemeIdUri="urn:x"/>`},
		{"</Representation>", `</Representation><Representation id="a" bandwidth="1"/>`},
		{"</SegmentTemplate>", "</SegmentTemplate><SegmentTemplate/>"},
	} {
		text := strings.Replace(manifest, tt.from, tt.to, 1)
		if text == manifest {
			t.Errorf("there is no %q", tt.from)
		}
		if _, wrong := parseManifest([]byte(text)); len(wrong) == 0 {
			t.Errorf("%q for %q passes", tt.to, tt.from)
		}
	}
	if got := seconds("PT1H2M3.5S"); got != 3723.5 {
		t.Errorf("%v seconds", got)
	}
}
