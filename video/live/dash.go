package live

import (
	"fmt"
	"slices"
	"time"

	"github.com/Eyevinn/dash-mpd/mpd"

	"github.com/fre-engine/fre/video/playlist"
)

// manifestLocked returns the stream's DASH manifest (ISO/IEC 23009-1), with a period for each
// epoch in the window. The result is nil before the first segment is finished. The manifest names
// finished segments only.
func (s *Stream) manifestLocked() ([]byte, error) {
	if s.current == nil || s.endLocked() == 0 {
		return nil, nil
	}
	m := mpd.NewMPD(mpd.DYNAMIC_TYPE)
	m.Profiles = "urn:mpeg:dash:profile:isoff-live:2011"
	m.AvailabilityStartTime = mpd.DateTime(stamp(s.began))
	m.PublishTime = mpd.DateTime(stamp(s.began.Add(s.clock())))
	m.MinimumUpdatePeriod = xsDuration(segmentTarget)
	m.MinBufferTime = xsDuration(segmentTarget)
	m.TimeShiftBufferDepth = xsDuration(s.window)
	m.SuggestedPresentationDelay = xsDuration(3 * segmentTarget)
	m.MaxSegmentDuration = xsDuration(segmentMost)
	m.UTCTimings = append(m.UTCTimings, mpd.NewDescriptor("urn:mpeg:dash:utc:http-iso:2014", "../time", ""))

	epochs, of := s.windowLocked()
	for i, e := range epochs {
		p := mpd.NewPeriod()
		p.Id = fmt.Sprint(e.Number)
		p.Start = xsDuration(e.Start)
		var end time.Duration
		for _, all := range of[e] {
			end = max(end, all[len(all)-1].end())
		}
		if i < len(epochs)-1 && end > e.Start {
			p.Duration = xsDuration(end - e.Start)
		}
		m.AppendPeriod(p)
		s.addTracksLocked(p, e, of[e])
	}
	return playlist.Manifest(m)
}

// windowLocked returns the epochs in the window, in order, and the listed segments of each track.
func (s *Stream) windowLocked() ([]*epoch, map[*epoch]map[string][]*segment) {
	var epochs []*epoch
	of := map[*epoch]map[string][]*segment{}
	for _, r := range s.rows {
		for _, g := range r.segments[r.listed:] {
			if of[g.epoch] == nil {
				of[g.epoch] = map[string][]*segment{}
				epochs = append(epochs, g.epoch)
			}
			of[g.epoch][g.track.Name] = append(of[g.epoch][g.track.Name], g)
		}
	}
	slices.SortFunc(epochs, func(a, b *epoch) int { return a.Number - b.Number })
	return epochs, of
}

// addTracksLocked adds an epoch's tracks to its period: a set for each sound track, and a set of all
// picture tracks at the end.
func (s *Stream) addTracksLocked(p *mpd.Period, e *epoch, segments map[string][]*segment) {
	pictures := mpd.NewAdaptationSetWithParams("video", "video/mp4", true, 1)
	sounds, keys := 0, true
	for n := range e.Tracks {
		t := &e.Tracks[n]
		all := segments[t.Name]
		if len(all) == 0 {
			continue
		}
		_, peak := s.ratesLocked(t)
		if t.Kind == "video" {
			rate := ""
			if t.FrameRate > 0 {
				rate = fmt.Sprintf("%d/1000", int(1000*t.FrameRate+.5))
			}
			rep := mpd.NewVideoRepresentation(t.Name, t.Codec, "", rate, int(peak), t.Width, t.Height)
			rep.SegmentTemplate = s.template(e, all)
			pictures.AppendRepresentation(rep)
			for _, g := range all {
				keys = keys && g.independent
			}
			continue
		}
		set := soundSet(t, sounds == 0, int(peak), s.template(e, all))
		sounds++
		p.AppendAdaptationSet(set)
	}
	if !keys { // some segment does not begin with a key frame
		pictures.StartWithSAP = 0
	}
	if len(pictures.Representations) > 0 {
		p.AppendAdaptationSet(pictures)
	}
}

func soundSet(t *Track, main bool, peak int, template *mpd.SegmentTemplateType) *mpd.AdaptationSetType {
	set := mpd.NewAdaptationSetWithParams("audio", "audio/mp4", true, 1)
	set.Lang = t.Language
	role := "alternate"
	if main {
		role = "main"
	}
	set.Roles = append(set.Roles, mpd.NewRole(role))
	rep := mpd.NewAudioRepresentation(t.Name, t.Codec, "", peak, t.SampleRate)
	rep.AudioChannelConfigurations = append(rep.AudioChannelConfigurations,
		mpd.NewDescriptor("urn:mpeg:dash:23003:3:audio_channel_configuration:2011", fmt.Sprint(max(t.Channels, 1)), ""))
	rep.SegmentTemplate = template
	set.AppendRepresentation(rep)
	return set
}

// template describes a track's segments in an epoch.
func (s *Stream) template(e *epoch, all []*segment) *mpd.SegmentTemplateType {
	track := all[0].track
	t := mpd.NewSegmentTemplate()
	t.SetTimescale(uint32(track.TimeScale))
	t.Initialization = s.initPath(all[0])
	t.Media = fmt.Sprintf("../media/%s/%s/$Number$.m4s", s.id, track.Name)
	t.PresentationTimeOffset = new(uint64(inUnits(e.Start, track.TimeScale)))
	t.StartNumber = new(uint32(all[0].number))
	t.SegmentTimeline = mpd.NewSegmentTimeline()
	var last *mpd.S
	at := int64(-1)
	for _, g := range all {
		if last != nil && last.D == uint64(g.duration) && at == g.start {
			last.R++
		} else {
			last = &mpd.S{D: uint64(g.duration)}
			if at != g.start {
				last.T = new(uint64(g.start))
			}
			t.SegmentTimeline.S = append(t.SegmentTimeline.S, last)
		}
		at = g.start + g.duration
	}
	return t
}

func xsDuration(d time.Duration) *mpd.Duration {
	v := mpd.Duration(d.Round(time.Microsecond))
	return &v
}
