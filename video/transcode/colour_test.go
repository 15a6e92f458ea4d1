package transcode_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// patches are the red, green and blue of a picture's patches, from left to right.
var patches = [][3]byte{{235, 235, 235}, {200, 40, 40}, {40, 180, 60}, {50, 60, 200}, {128, 128, 128}, {210, 190, 40}, {16, 16, 16}, {180, 90, 200}}

// patched makes a file of ten pictures of the patches with the ffmpeg program and args.
func patched(t *testing.T, name string, width, height int, args string) string {
	t.Helper()
	var raw bytes.Buffer
	for range 10 * height {
		for x := range width {
			p := patches[x*len(patches)/width]
			raw.Write(p[:])
		}
	}
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("ffmpeg", append(strings.Fields(fmt.Sprintf("-v error -f rawvideo -pix_fmt rgb24 -s %dx%d -r 10 -i - %s", width, height, args)), path)...)
	cmd.Stdin = &raw
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return path
}

// seen returns the patches that the ffmpeg program decodes from a file's fifth picture, following
// the file's tags.
func seen(t *testing.T, path, filters string) [][3]byte {
	t.Helper()
	cmd := exec.Command("ffmpeg", "-v", "error", "-nostdin", "-i", path, "-vf", "select=eq(n\\,4),"+filters+"scale=80:1:flags=area,format=rgb24", "-frames:v", "1", "-f", "rawvideo", "-")
	out, err := cmd.Output()
	if err != nil || len(out) != 240 {
		t.Fatalf("%s: %v, %d bytes", cmd, err, len(out))
	}
	var all [][3]byte
	for i := range patches {
		all = append(all, [3]byte(out[30*i+15:]))
	}
	return all
}

// off returns the largest difference of two rows of patches.
func off(a, b [][3]byte) (most int) {
	for i := range a {
		for c := range 3 {
			d := int(a[i][c]) - int(b[i][c])
			most = max(most, d, -d)
		}
	}
	return most
}

// tags returns ffprobe's description of a film's colours and format.
func tags(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("ffprobe", "-v", "error", "-select_streams", "v", "-show_entries", "stream=pix_fmt,color_range,color_space,color_transfer,color_primaries", "-of", "json", path).Output()
	var found struct {
		Streams []struct {
			Format    string `json:"pix_fmt"`
			Range     string `json:"color_range"`
			Matrix    string `json:"color_space"`
			Transfer  string `json:"color_transfer"`
			Primaries string `json:"color_primaries"`
		}
	}
	if err != nil || json.Unmarshal(out, &found) != nil || len(found.Streams) == 0 {
		t.Fatalf("%s: %v\n%s", path, err, out)
	}
	s := found.Streams[0]
	return strings.Join([]string{s.Format, s.Range, s.Matrix, s.Primaries, s.Transfer}, " ")
}

// ladder makes a service's rungs from a source of ten pictures, and returns the files of all rungs.
func ladder(t *testing.T, path, codec string) (*media.Source, []media.Rung, []string) {
	t.Helper()
	s, err := transcode.Probe(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := s.Streams[s.Picture]
	rungs := media.Coloured(of.Colour, media.In(codec, []media.Rung{{Name: "a", Width: of.Width, Height: of.Height, BitRate: 9_000_000}, {Name: "b", Width: of.Width / 2, Height: of.Height / 2, BitRate: 5_000_000}}))
	_, bodies, err := transcode.Chunk(path, media.Chunk{Stream: s.Picture, Offset: s.Offset, Grid: media.Grid{Rate: media.Fraction{Num: 10, Den: 1}, Segment: 10}, To: -1, Rungs: rungs, Preset: "ultrafast", Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for i, b := range bodies {
		out := filepath.Join(t.TempDir(), fmt.Sprintf("%d.mp4", i))
		if err := os.WriteFile(out, b, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, out)
	}
	return s, rungs, files
}

// TestColours: for every matrix, range, set of primaries and format of a source, all rungs declare
// the same colours and show the source's.
func TestColours(t *testing.T) {
	checkLeaks(t)
	const x264 = " -c:v libx264 -qp 10 -preset ultrafast -pix_fmt yuv420p "
	tagged := func(matrix, rest string) string {
		return "-vf scale=out_color_matrix=" + matrix + rest + x264
	}
	const sd, hd = "yuv420p tv smpte170m smpte170m smpte170m", "yuv420p tv bt709 bt709 bt709"
	for _, tt := range []struct {
		name, args, want string
		width            int
	}{
		{"bt709.mp4", tagged("bt709", "") + "-colorspace bt709 -color_primaries bt709 -color_trc bt709", hd, 256},
		{"bt601.mp4", tagged("bt601", "") + "-colorspace smpte170m -color_primaries smpte170m -color_trc smpte170m", sd, 256},
		{"pal.mp4", tagged("bt601", "") + "-colorspace bt470bg -color_primaries bt470bg -color_trc bt709", "yuv420p tv bt470bg bt470bg bt709", 256},
		{"untagged.mp4", tagged("bt601", ""), sd, 256},
		{"untagged and large.mp4", tagged("bt709", ""), hd, 1280},
		{"matrix alone.mkv", tagged("bt709", "") + "-colorspace bt709", hd, 256},
		{"full range.mp4", tagged("bt709", ":out_range=full") + "-color_range pc -colorspace bt709 -color_primaries bt709 -color_trc bt709", hd, 256},
		{"full range of BT.601.mp4", "-vf scale=out_color_matrix=bt601:out_range=full -c:v libx264 -qp 10 -pix_fmt yuvj420p -colorspace smpte170m", sd, 256},
		{"SMPTE 240M.mkv", tagged("smpte240m", "") + "-colorspace smpte240m -color_primaries bt709 -color_trc bt709", hd, 256},
		{"rgb.mkv", "-c:v ffv1 -pix_fmt gbrp", hd, 256},
		{"gif.gif", "-vf split[a][b];[a]palettegen[p];[b][p]paletteuse", hd, 256},
		{"mjpeg.mov", "-vf scale=out_color_matrix=bt601:out_range=full -c:v mjpeg -q:v 1 -pix_fmt yuvj444p", "yuv420p tv bt470bg bt470bg smpte170m", 256},
		{"wide gamut.mkv", "-vf format=gbrp,zscale=pin=709:tin=709:p=2020:t=2020_10:m=2020_ncl:r=tv,format=yuv420p10le -c:v libx265 -x265-params log-level=none:qp=4:lossless=0 -colorspace bt2020nc -color_primaries bt2020 -color_trc bt2020-10", hd, 256},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := patched(t, tt.name, tt.width, 64, tt.args)
			s, _, files := ladder(t, path, media.H264)
			for i, file := range files {
				if got := tags(t, file); got != tt.want {
					t.Errorf("rung %d is %s, want %s; the source is %+v", i, got, tt.want, s.Streams[s.Picture].Colour)
				}
				if got := seen(t, file, ""); off(got, patches) > 8 {
					t.Errorf("rung %d shows\n%v, want\n%v", i, got, patches)
				}
			}
		})
	}
}

// TestHDR: pictures of high dynamic range are mapped to the range of every screen: midtones stay
// and white is near the top. Codecs with high dynamic range get further rungs that keep the range.
func TestHDR(t *testing.T) {
	checkLeaks(t)
	for _, tt := range []struct{ name, transfer, args string }{
		{"pq.mp4", "smpte2084", "-vf format=gbrp,zscale=pin=709:tin=709:npl=203:p=2020:t=smpte2084:m=2020_ncl:r=tv,format=yuv420p10le -color_trc smpte2084"},
		{"hlg.mp4", "arib-std-b67", "-vf format=gbrp,zscale=pin=709:tin=709:npl=203:p=2020:t=arib-std-b67:m=2020_ncl:r=tv,format=yuv420p10le -color_trc arib-std-b67"},
	} {
		path := patched(t, tt.name, 256, 144, tt.args+" -colorspace bt2020nc -color_primaries bt2020 -c:v libx265 -preset ultrafast -x265-params log-level=none:qp=4 -tag:v hvc1")
		for _, codec := range media.Codecs {
			t.Run(codec+" of "+tt.name, func(t *testing.T) {
				_, rungs, files := ladder(t, path, codec)
				if want := map[string]int{media.H264: 2, media.HEVC: 4, media.AV1: 4}[codec]; len(files) != want {
					t.Errorf("%d rungs, want %d", len(files), want)
				}
				for i, file := range files {
					bright := strings.HasSuffix(rungs[i].Name, "-hdr")
					want, filters := "yuv420p tv bt709 bt709 bt709", ""
					if bright {
						want = "yuv420p10le tv bt2020nc bt2020 " + tt.transfer
						filters = "zscale=t=linear:npl=203,format=gbrpf32le,zscale=p=709:t=709:m=gbr:r=pc,format=gbrp,"
					}
					if got := tags(t, file); got != want {
						t.Errorf("rung %d is %s, want %s", i, got, want)
					}
					got := seen(t, file, filters)
					t.Logf("%v", got)
					if bright && off(got, patches) > 16 {
						t.Errorf("rung %d shows\n%v, want\n%v", i, got, patches)
					}
					if grey := got[4]; !bright && (got[0][1] < 190 || grey[1] < 105 || grey[1] > 145 || got[6][1] > 30 || got[1][0] < 3*got[1][1]) {
						t.Errorf("rung %d shows\n%v", i, got)
					}
				}
			})
		}
	}
}
