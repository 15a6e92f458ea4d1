package video_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/fre-engine/fre/video/asset"
)

// patch is a colour in sRGB: red, green and blue.
type patch [3]int

// patches are the colours of the test's sources, from left to right.
var patches = []patch{{255, 255, 255}, {200, 40, 40}, {40, 180, 60}, {50, 60, 200}, {128, 128, 128}, {210, 190, 40}, {0, 0, 0}, {180, 90, 200}}

// mapped returns the shown colour of a patch in HDR, with white at 203 cd/m². The mapping follows
// the brightest channel: below 0.3 of white the colour stays, above it a Möbius transform maps 1000
// cd/m² to white (tonemap=mobius in the docs of ffmpeg-filters). Screens show code values by a
// power of 2.4 (ITU-R BT.1886).
func mapped(p patch) patch {
	const knee, peak = 0.3, 1000. / 203
	light := math.Pow(float64(max(p[0], p[1], p[2]))/255, 2.4)
	if light <= knee {
		return p
	}
	a := -knee * knee * (peak - 1) / (knee*knee - 2*knee + peak)
	b := (knee*knee - 2*knee*peak + peak) / (peak - 1)
	darker := (b + knee) * (b + knee) / (b - a) * (light + a) / (light + b) / light
	for i := range p {
		p[i] = int(math.Round(float64(p[i]) * math.Pow(darker, 1/2.4)))
	}
	return p
}

// colours: for every matrix, range, set of primaries and transfer function of a source, Chromium
// shows the source's colours in every rung.
func (w *world) colours(t *testing.T) {
	const width, height, frames = 640, 360, 10
	// The encoders may be wrong by two steps of luma and four of chroma, which are 1.2 and 2.1
	// steps of blue each (ITU-R BT.709, 3.2).
	const most = 11
	var raw bytes.Buffer
	for range frames * height {
		for x := range width {
			for _, c := range patches[x*len(patches)/width] {
				raw.WriteByte(byte(c))
			}
		}
	}
	ctx := browser(t)
	if err := chromedp.Run(ctx, chromedp.Navigate(w.url("/")), chromedp.WaitVisible("#none")); err != nil {
		t.Fatal(err)
	}
	in := t.TempDir()
	const h264, hevc = " -c:v libx264 -qp 4 -preset ultrafast", " -c:v libx265 -preset ultrafast -x265-params log-level=none:qp=4"
	const sd, hd = " -colorspace smpte170m -color_primaries smpte170m -color_trc smpte170m", " -colorspace bt709 -color_primaries bt709 -color_trc bt709"
	const wide = " -colorspace bt2020nc -color_primaries bt2020 -color_trc "
	to := func(colour, format string) string {
		return "-vf format=gbrp,zscale=pin=709:tin=709:npl=203:" + colour + ",format=" + format
	}
	// Chromium treats the primaries of BT.601 as sRGB's, in the sources too.
	to601 := func(span string) string {
		return "-vf format=gbrp,zscale=pin=170m:tin=601:p=170m:t=601:m=170m:r=" + span + ",format=yuv420p"
	}
	for _, tt := range []struct {
		name, codec, args string
		want              func(patch) patch // nil: as the source
	}{
		{"BT.709.mp4", "h264", to("p=709:t=709:m=709:r=tv", "yuv420p") + hd + h264, nil},
		{"BT.709 in full range.mp4", "h264", to("p=709:t=709:m=709:r=pc", "yuv420p") + " -color_range pc" + hd + h264, nil},
		{"BT.601.mp4", "h264", to601("tv") + sd + h264, nil},
		{"BT.601 in full range.mp4", "av1", to601("pc") + " -color_range pc" + sd + h264, nil},
		{"BT.601, untagged.avi", "h264", to601("tv") + " -c:v mpeg4 -q:v 1", nil},
		{"RGB.mkv", "h264", "-c:v ffv1 -pix_fmt gbrp", nil},
		{"BT.2020.mkv", "h264", to("p=2020:t=2020_10:m=2020_ncl:r=tv", "yuv420p10le") + wide + "bt2020-10" + hevc, nil},
		{"PQ.mp4", "h264", to("p=2020:t=smpte2084:m=2020_ncl:r=tv", "yuv420p10le") + wide + "smpte2084" + hevc, mapped},
		{"HLG.mp4", "h264", to("p=2020:t=arib-std-b67:m=2020_ncl:r=tv", "yuv420p10le") + wide + "arib-std-b67" + hevc, mapped},
		{"PQ beside HDR.mp4", "av1", to("p=2020:t=smpte2084:m=2020_ncl:r=tv", "yuv420p10le") + wide + "smpte2084" + hevc, mapped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(in, tt.name)
			cmd := exec.Command("ffmpeg", append(strings.Fields(fmt.Sprintf("-v error -f rawvideo -pix_fmt rgb24 -s %dx%d -r %d -i - %s", width, height, frames, tt.args)), path)...)
			cmd.Stdin = bytes.NewReader(raw.Bytes())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", cmd, err, out)
			}
			a, _ := w.upload(t, path, "--codec", tt.codec)
			if a.State != asset.Ready || len(a.Of("video")) < 2 {
				t.Fatalf("%+v", a.Asset)
			}
			for _, rung := range a.Of("video") {
				if rung.Colour.HDR() {
					continue // the shown colours depend on the screen
				}
				got := w.drawn(ctx, t, "/assets/"+a.ID+"/cmaf/"+rung.Name+".mp4")
				for i, p := range patches {
					if tt.want != nil {
						p = tt.want(p)
					}
					for c := range p {
						if off := got[i][c] - p[c]; off < -most || off > most {
							t.Errorf("%s: patch %d is %v, want %v", rung.Name, i, got[i], p)
							break
						}
					}
				}
			}
			if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
				t.Errorf("rm: %d %s", status, errs)
			}
		})
	}
}

// drawn returns the patches' colours in the middle of a film that Chromium draws on a canvas of
// sRGB.
func (w *world) drawn(ctx context.Context, t *testing.T, at string) (all []patch) {
	t.Helper()
	if err := chromedp.Run(ctx, chromedp.Evaluate(fmt.Sprintf(`(async () => {
		const v = document.createElement("video");
		v.muted = true;
		v.src = %q;
		await new Promise((done, failed) => { v.onloadeddata = done; v.onerror = () => failed(new Error(v.error.message)); });
		await new Promise((done) => { v.onseeked = done; v.currentTime = 0.55; });
		const canvas = new OffscreenCanvas(v.videoWidth, v.videoHeight), c = canvas.getContext("2d", { colorSpace: "srgb" });
		do { // a seek may end before its picture can be drawn: the canvas stays transparent
			await new Promise((done) => setTimeout(done));
			c.drawImage(v, 0, 0);
		} while (c.getImageData(0, 0, 1, 1).data[3] === 0);
		return Array.from({ length: %d }, (_, i) => [...c.getImageData((i + 0.5) * v.videoWidth / %[2]d, v.videoHeight / 2, 1, 1).data.slice(0, 3)]);
	})()`, at, len(patches)), &all, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) })); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return all
}
