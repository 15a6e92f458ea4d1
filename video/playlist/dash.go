package playlist

import (
	"bytes"
	"fmt"
	"regexp"
	"time"

	"github.com/Eyevinn/dash-mpd/mpd"

	"github.com/fre-engine/fre/video/asset"
)

// DASH returns the DASH manifest of an asset.
func DASH(a *asset.Asset) ([]byte, error) {
	m := mpd.NewMPD(mpd.STATIC_TYPE)
	m.Profiles = "urn:mpeg:dash:profile:isoff-live:2011"
	m.MediaPresentationDuration = seconds(a.Duration)
	longest := 0.0
	for _, r := range a.Renditions {
		if r.Kind != "text" {
			longest = max(longest, r.Longest())
		}
	}
	m.MinBufferTime = seconds(max(longest, 1))
	period := mpd.NewPeriod()
	period.Id = "0"
	start := mpd.Duration(0)
	period.Start = &start
	m.AppendPeriod(period)
	for _, hdr := range []bool{false, true} { // separate sets, since players must not switch between both ranges
		if set := pictures(a, hdr); set != nil {
			period.AppendAdaptationSet(set)
		}
	}
	sounds := a.Of("audio")
	for i, r := range sounds {
		set := mpd.NewAdaptationSetWithParams("audio", "audio/mp4", true, 1)
		set.Lang = language(r)
		role := "alternate"
		if i == mainSound(sounds) {
			role = "main"
		}
		set.Roles = append(set.Roles, mpd.NewRole(role))
		set.ContentProtections = protections(a)
		set.SegmentTemplate = template(r)
		_, peak := r.Rates()
		rep := mpd.NewAudioRepresentation(r.Name, r.Codec, "", int(peak), r.SampleRate)
		rep.AudioChannelConfigurations = append(rep.AudioChannelConfigurations,
			mpd.NewDescriptor("urn:mpeg:dash:23003:3:audio_channel_configuration:2011", fmt.Sprint(r.Channels), ""))
		set.AppendRepresentation(rep)
		period.AppendAdaptationSet(set)
	}
	for _, r := range a.Of("text") {
		set := mpd.NewAdaptationSetWithParams("text", "text/vtt", false, 1)
		set.Lang = language(r)
		set.Roles = append(set.Roles, mpd.NewRole("subtitle"))
		rep := &mpd.RepresentationType{Id: r.Name, Bandwidth: 1000}
		rep.BaseURLs = append(rep.BaseURLs, mpd.NewBaseURL("../text/"+r.Name+".vtt"))
		set.AppendRepresentation(rep)
		period.AppendAdaptationSet(set)
	}
	return Manifest(m)
}

// nanoseconds matches the broken text that dash-mpd 0.12 writes for a duration below one
// second: the number of nanoseconds and a byte that is no text.
var nanoseconds = regexp.MustCompile(`="PT(\d{1,9})\x{FFFD}S"`)

// Manifest writes m as XML.
func Manifest(m *mpd.MPD) ([]byte, error) {
	var b bytes.Buffer
	if _, err := m.Write(&b, "  ", true); err != nil {
		return nil, err
	}
	return nanoseconds.ReplaceAllFunc(b.Bytes(), func(s []byte) []byte {
		return fmt.Appendf(nil, `="PT0.%09sS"`, nanoseconds.FindSubmatch(s)[1])
	}), nil
}

// pictures returns an adaptation set of the renditions with or without HDR, or nil. A player
// without support for an HDR transfer function ignores the set (DASH-IF IOP 4.3, 10.3.3).
func pictures(a *asset.Asset, hdr bool) *mpd.AdaptationSetType {
	var set *mpd.AdaptationSetType
	for _, r := range a.Of("video") {
		if r.Colour.HDR() != hdr {
			continue
		}
		if set == nil {
			set = mpd.NewAdaptationSetWithParams("video", "video/mp4", true, 1)
			set.ContentProtections = protections(a)
			set.SegmentTemplate = template(r) // the frames of all renditions are aligned, hence their segments too
			if hdr {
				set.EssentialProperties = []*mpd.DescriptorType{
					mpd.NewDescriptor("urn:mpeg:mpegB:cicp:ColourPrimaries", fmt.Sprint(r.Colour.Primaries), ""),
					mpd.NewDescriptor("urn:mpeg:mpegB:cicp:TransferCharacteristics", fmt.Sprint(r.Colour.Transfer), ""),
					mpd.NewDescriptor("urn:mpeg:mpegB:cicp:MatrixCoefficients", fmt.Sprint(r.Colour.Matrix), ""),
				}
			}
		}
		_, peak := r.Rates()
		set.AppendRepresentation(mpd.NewVideoRepresentation(r.Name, r.Codec, "", fmt.Sprintf("%d/%d", r.FrameRate.Num, max(r.FrameRate.Den, 1)), int(peak), r.Width, r.Height))
	}
	return set
}

// template describes a rendition's segments: their addresses and durations.
func template(r *asset.Rendition) *mpd.SegmentTemplateType {
	t := mpd.NewSegmentTemplate()
	t.SetTimescale(uint32(r.TimeScale))
	t.Initialization = "../cmaf/$RepresentationID$/init.mp4"
	t.Media = "../cmaf/$RepresentationID$/$Number$.m4s"
	t.StartNumber = new(uint32(1))
	t.SegmentTimeline = mpd.NewSegmentTimeline()
	var last *mpd.S
	for i, s := range r.Segments {
		switch {
		case last != nil && last.D == uint64(s.Duration):
			last.R++
		default:
			last = &mpd.S{D: uint64(s.Duration)}
			if i == 0 {
				last.T = new(uint64(0))
			}
			t.SegmentTimeline.S = append(t.SegmentTimeline.S, last)
		}
	}
	return t
}

func seconds(s float64) *mpd.Duration {
	d := mpd.Duration(time.Duration(s * float64(time.Second)).Round(time.Microsecond))
	return &d
}

// protections describes the encryption of an adaptation set's samples (ISO/IEC 23001-7 section
// 11.2), with Clear Key (DASH-IF IOP 5.0 part 6). The address of the license is left out, since
// players differ in how they resolve relative addresses.
func protections(a *asset.Asset) []*mpd.ContentProtectionType {
	if a.Protection != asset.CBCS {
		return nil
	}
	k := a.Secret.KeyID.String()
	common := &mpd.ContentProtectionType{DefaultKID: k[:8] + "-" + k[8:12] + "-" + k[12:16] + "-" + k[16:20] + "-" + k[20:]}
	common.SchemeIdUri, common.Value = "urn:mpeg:dash:mp4protection:2011", "cbcs"
	clearKey := &mpd.ContentProtectionType{}
	clearKey.SchemeIdUri, clearKey.Value = "urn:uuid:e2719d58-a985-b3c9-781a-b030af78d30e", "ClearKey1.0"
	return []*mpd.ContentProtectionType{common, clearKey}
}
