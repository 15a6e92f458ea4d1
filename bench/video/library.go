package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// The assets, and the files of a run:
//
//	DIR/state          state directory of fre-video
//	DIR/files          for nginx: each size of segment, each playlist
//	DIR/media/film.mp4 for nginx-vod-module: the film's video track as an ordinary MP4
const (
	sizesAsset = "sizesofsegments0" // segments of each size, filled with zeros
	filmAsset  = "filmofsomeminute" // video with 720 lines, a megabyte per four seconds
	filmAES128 = "filmunderaes1280" // the same film, encrypted
	filmCBCS   = "filmundercbcs000"

	filmRendition  = "v720p"
	segmentsOfSize = 4
	segmentSeconds = 4
)

// segmentSizes lists the sizes of stored segments.
var segmentSizes = []struct {
	bytes int
	label string
}{{64 << 10, "64 KiB"}, {512 << 10, "512 KiB"}, {2 << 20, "2 MiB"}}

func stateDir(dir string) string { return filepath.Join(dir, "state") }
func filesDir(dir string) string { return filepath.Join(dir, "files") }
func mediaDir(dir string) string { return filepath.Join(dir, "media") }

// makeLibrary fills the service's library.
func makeLibrary(ctx context.Context, dir string, quick bool) (err error) {
	for _, sub := range []string{filesDir(dir), mediaDir(dir)} {
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
	}
	library, damaged, err := asset.Open(stateDir(dir))
	if err != nil {
		return errors.Join(append(damaged, err)...)
	}
	defer func() { err = errors.Join(err, library.Close()) }()
	if err := addSizes(dir, library); err != nil {
		return err
	}
	return addFilm(ctx, dir, library, quick)
}

func addSizes(dir string, library *asset.Library) error {
	a := &asset.Asset{ID: sizesAsset, Name: "sizes", Created: time.Now(), State: asset.Ready, Made: sizesAsset, Duration: segmentsOfSize * segmentSeconds}
	const initial = 700
	for _, s := range segmentSizes {
		r := &asset.Rendition{
			Name: "v" + strconv.Itoa(s.bytes), Kind: "video", Codec: "avc1.64001f", Width: 1280, Height: 720,
			FrameRate: media.Fraction{Num: 25, Den: 1}, TimeScale: 90000, Init: initial,
		}
		end := int64(initial)
		for range segmentsOfSize {
			at := asset.Place(end, int64(s.bytes))
			end = at + int64(s.bytes)
			r.Segments = append(r.Segments, asset.Segment{
				Offset: at, Size: int64(s.bytes), Duration: segmentSeconds * 90000, Key: int64(s.bytes / 4),
			})
		}
		a.Renditions = append(a.Renditions, r)
		if err := os.WriteFile(filepath.Join(filesDir(dir), strconv.Itoa(s.bytes)), make([]byte, s.bytes), 0o644); err != nil {
			return err
		}
	}
	if err := library.Create(a); err != nil {
		return err
	}
	for _, r := range a.Renditions {
		last := r.Segments[len(r.Segments)-1]
		if err := os.WriteFile(library.Path(a.ID, r.Name+".mp4"), make([]byte, last.Offset+last.Size), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// addFilm makes a film of noise with segments of a megabyte.
func addFilm(ctx context.Context, dir string, library *asset.Library, quick bool) error {
	seconds, size := 120, "1280x720"
	if quick {
		seconds, size = 8, "320x180"
	}
	film := filepath.Join(mediaDir(dir), "film.mp4")
	encode := fmt.Sprintf("-f lavfi -i testsrc2=size=%s:rate=25:duration=%d,noise=alls=30:allf=t -c:v libx264 -preset ultrafast -profile:v high -pix_fmt yuv420p "+
		"-b:v 2M -maxrate 2M -bufsize 2M -g %d -keyint_min %[3]d -sc_threshold 0 -video_track_timescale 90000 -movflags +faststart", size, seconds, 25*segmentSeconds)
	if _, err := ffmpeg(ctx, append(strings.Fields(encode), film)...); err != nil {
		return err
	}
	width, height, _ := strings.Cut(size, "x")
	r := &asset.Rendition{Name: filmRendition, Kind: "video", Codec: "avc1.64001f", BitRate: 2_000_000, FrameRate: media.Fraction{Num: 25, Den: 1}, TimeScale: 90000}
	r.Width, _ = strconv.Atoi(width) // width and height are numbers, see size above
	r.Height, _ = strconv.Atoi(height)
	fragmented := filepath.Join(dir, "film.mp4")
	if _, err := ffmpeg(ctx, "-i", film, "-c", "copy", "-video_track_timescale", "90000", "-movflags", "+frag_keyframe+empty_moov+default_base_moof+skip_trailer", fragmented); err != nil {
		return err
	}
	file, err := os.ReadFile(fragmented)
	if err != nil {
		return err
	}
	if err := places(r, file); err != nil {
		return fmt.Errorf("%s: %w", fragmented, err)
	}
	for id, protection := range map[string]asset.Protection{filmAsset: asset.Clear, filmAES128: asset.AES128, filmCBCS: asset.CBCS} {
		a := &asset.Asset{
			ID: id, Name: "film", Created: time.Now(), State: asset.Ready, Made: id, Duration: float64(seconds), Renditions: []*asset.Rendition{r},
			Protection: protection, Secret: asset.NewSecret(),
		}
		if err := library.Create(a); err != nil {
			return err
		}
		if err := os.WriteFile(library.Path(a.ID, r.Name+".mp4"), file, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// places records the segments of a fragmented MP4: one moof and one mdat each, after ftyp and moov
// (ISO/IEC 14496-12, 4.2).
func places(r *asset.Rendition, file []byte) error {
	for at := 0; at < len(file); {
		if len(file)-at < 8 {
			return errors.New("a box without a head")
		}
		size := int(binary.BigEndian.Uint32(file[at:]))
		if size < 8 || size > len(file)-at {
			return fmt.Errorf("a box of %d bytes at %d of %d", size, at, len(file))
		}
		switch kind := string(file[at+4 : at+8]); kind {
		case "ftyp", "moov":
			r.Init += int64(size)
		case "moof":
			r.Segments = append(r.Segments, asset.Segment{Offset: int64(at), Size: int64(size), Duration: segmentSeconds * 90000})
		case "mdat":
			if len(r.Segments) == 0 {
				return errors.New("mdat before moof")
			}
			s := &r.Segments[len(r.Segments)-1]
			s.Size += int64(size)
			s.Key = s.Size / 4
		default:
			return fmt.Errorf("box %q", kind)
		}
		at += size
	}
	if len(r.Segments) == 0 || r.Segments[0].Offset != r.Init {
		return errors.New("no segments behind the initialisation")
	}
	return nil
}

// ffmpeg runs the program and returns its CPU time.
func ffmpeg(ctx context.Context, args ...string) (cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, "ffmpeg", append([]string{"-nostdin", "-loglevel", "error", "-y"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("ffmpeg %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
