// Package stream checks the playlists, manifests and segments that an origin serves for a video.
// The parsers share no code with FRE: Python's m3u8 (python3-m3u8) reads playlists, abema/go-mp4
// reads boxes of segments, and a grammar in this package checks DASH manifests.
package stream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"testing"
)

// Check checks all resources that BASE/hls/master.m3u8 and BASE/dash/manifest.mpd lead to. The
// asset must not be encrypted.
func Check(t testing.TB, base string) {
	t.Helper()
	tracks := checkHLS(t, base)
	checkDASH(t, base, tracks)
}

// get fetches an address. The path may contain "..".
func get(t testing.TB, address string) []byte {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = path.Clean(u.Path)
	a, err := http.Get(u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", u, a.Status, err)
	}
	return b
}

// playlist is the output of Python's m3u8.
type playlist struct {
	Version     json.Number `json:"version"`
	Independent bool        `json:"is_independent_segments"`
	Ended       bool        `json:"is_endlist"`
	KeysOnly    bool        `json:"is_i_frames_only"`
	Kind        string      `json:"playlist_type"`
	Target      float64     `json:"targetduration"`
	Segments    []struct {
		URI      string  `json:"uri"`
		Duration float64 `json:"duration"`
		Range    string  `json:"byterange"`
		Init     struct {
			URI string `json:"uri"`
		} `json:"init_section"`
	} `json:"segments"`
	Playlists []struct {
		URI  string  `json:"uri"`
		Info variant `json:"stream_info"`
	} `json:"playlists"`
	Keys []struct {
		URI  string  `json:"uri"`
		Info variant `json:"iframe_stream_info"`
	} `json:"iframe_playlists"`
	Media []struct {
		Kind     string `json:"type"`
		Group    string `json:"group_id"`
		Name     string `json:"name"`
		Language string `json:"language"`
		Default  string `json:"default"`
		URI      string `json:"uri"`
	} `json:"media"`
}

// variant is the entry of a playlist in the master playlist.
type variant struct {
	Bandwidth  int64  `json:"bandwidth"`
	Average    int64  `json:"average_bandwidth"`
	Codecs     string `json:"codecs"`
	Resolution string `json:"resolution"`
	Audio      string `json:"audio"`
	Subtitles  string `json:"subtitles"`
}

// parse parses a playlist.
func parse(t testing.TB, text []byte) *playlist {
	t.Helper()
	cmd := exec.Command("/usr/bin/python3", "-c", "import sys,json,m3u8; print(json.dumps(m3u8.loads(sys.stdin.buffer.read().decode()).data, default=str))")
	cmd.Stdin = bytes.NewReader(text)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("m3u8: %v\n%s\n%s", err, &errs, text)
	}
	p := &playlist{}
	if err := json.Unmarshal(out, p); err != nil {
		t.Fatalf("m3u8: %v\n%s", err, out)
	}
	return p
}

// CheckMaster checks a master playlist without the media playlists (RFC 8216bis section 4.4.6).
func CheckMaster(t testing.TB, text []byte) {
	t.Helper()
	checkMaster(t, text)
}

func checkMaster(t testing.TB, text []byte) *playlist {
	t.Helper()
	p := parse(t, text)
	groups := checkGroups(t, p)
	if len(p.Playlists) == 0 {
		t.Error("no playlists")
	}
	for _, v := range p.Playlists {
		if v.Info.Bandwidth <= 0 || v.Info.Average > v.Info.Bandwidth || v.Info.Codecs == "" {
			t.Errorf("%s: %+v", v.URI, v.Info)
		}
		for kind, group := range map[string]string{"AUDIO ": v.Info.Audio, "SUBTITLES ": v.Info.Subtitles} {
			if group != "" && groups[kind+group] == nil {
				t.Errorf("%s: there is no group %s%s", v.URI, kind, group)
			}
		}
	}
	return p
}

// checkGroups checks the groups of renditions in a master playlist, and returns the names of each.
func checkGroups(t testing.TB, p *playlist) map[string]map[string]bool {
	t.Helper()
	groups := map[string]map[string]bool{} // names by group
	defaults := map[string]bool{}
	for _, m := range p.Media {
		group := m.Kind + " " + m.Group
		if groups[group] == nil {
			groups[group] = map[string]bool{}
		}
		if m.Name == "" || groups[group][m.Name] {
			t.Errorf("group %s: the name %q is empty, or of two", group, m.Name)
		}
		groups[group][m.Name] = true
		if m.Default == "YES" {
			if defaults[group] {
				t.Errorf("group %s: several are the default", group)
			}
			defaults[group] = true
		}
		if m.Language != "" && !languagePattern.MatchString(m.Language) {
			t.Errorf("group %s: language %q", group, m.Language)
		}
		if m.URI == "" || strings.Contains(m.URI, ":") {
			t.Errorf("group %s: address %q", group, m.URI)
		}
	}
	return groups
}

// checkHLS checks the playlists and their segments. The result holds the tracks by folder.
func checkHLS(t testing.TB, base string) map[string]*track {
	t.Helper()
	master := checkMaster(t, get(t, base+"/hls/master.m3u8"))
	tracks := map[string]*track{}
	for _, v := range master.Playlists {
		tr := checkMedia(t, base+"/hls/", v.URI)
		tracks[tr.folder] = tr
		if peak := tr.peak(); v.Info.Bandwidth < int64(peak) {
			t.Errorf("%s: a segment takes %.0f bits a second, more than the %d that are announced", v.URI, peak, v.Info.Bandwidth)
		}
	}
	for _, m := range master.Media {
		if m.Kind == "AUDIO" {
			tr := checkMedia(t, base+"/hls/", m.URI)
			tracks[tr.folder] = tr
		} else if p := parse(t, get(t, base+"/hls/"+m.URI)); len(p.Segments) == 0 || !p.Ended || !bytes.HasPrefix(get(t, base+"/hls/"+p.Segments[0].URI), []byte("WEBVTT")) {
			t.Errorf("%s: %+v", m.URI, p)
		}
	}
	checkTargets(t, tracks)
	for _, k := range master.Keys {
		checkKeys(t, base+"/hls/", k.URI, tracks)
	}
	return tracks
}

// checkTargets checks that all playlists have the same target duration (RFC 8216, 6.2.4).
func checkTargets(t testing.TB, tracks map[string]*track) {
	t.Helper()
	targets := map[float64]string{}
	for _, tr := range tracks {
		targets[tr.target] = tr.name
	}
	if len(targets) > 1 {
		t.Errorf("the playlists have several target durations: %v", targets)
	}
}

// checkMedia checks a rendition's playlist (RFC 8216bis sections 4.4.3, 4.4.4) and segments.
func checkMedia(t testing.TB, base, name string) *track {
	t.Helper()
	p := parse(t, get(t, base+name))
	version, _ := strconv.Atoi(p.Version.String())
	if !p.Ended || !p.Independent || p.Kind != "vod" || version < 6 || len(p.Segments) == 0 {
		t.Fatalf("%s: %+v", name, p)
	}
	tr := newTrack(t, name, get(t, base+p.Segments[0].Init.URI))
	tr.folder, tr.target = path.Dir(p.Segments[0].Init.URI), p.Target
	for i, s := range p.Segments {
		if s.Init.URI != p.Segments[0].Init.URI {
			t.Errorf("%s: segment %d has another initialisation", name, i+1)
		}
		if math.Round(s.Duration) > p.Target {
			t.Errorf("%s: segment %d takes %v s, more than the target %v", name, i+1, s.Duration, p.Target)
		}
		before := tr.end
		tr.add(t, get(t, base+s.URI))
		if took := float64(tr.end-before) / float64(tr.scale); math.Abs(took-s.Duration) > 0.001 {
			t.Errorf("%s: segment %d takes %v s, and %v in its playlist", name, i+1, took, s.Duration)
		}
	}
	tr.checkStart(t)
	return tr
}

// checkKeys checks a playlist of key frames: each range ends at the end of the first sample.
func checkKeys(t testing.TB, base, name string, tracks map[string]*track) {
	t.Helper()
	p := parse(t, get(t, base+name))
	if !p.KeysOnly || !p.Ended || len(p.Segments) == 0 {
		t.Fatalf("%s: %+v", name, p)
	}
	tr := tracks[path.Dir(p.Segments[0].URI)]
	if tr == nil || len(tr.segments) != len(p.Segments) {
		t.Fatalf("%s: not as many as in %+v", name, p.Segments)
	}
	for i, s := range p.Segments {
		if want := fmt.Sprintf("%d@0", tr.segments[i].first); s.Range != want {
			t.Errorf("%s: segment %d: range %s, and the first sample is %s", name, i+1, s.Range, want)
		}
	}
}
