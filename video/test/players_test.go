package video_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/video/asset"
)

// modules returns the directory of the players' files, from an image that FRE builds from npm
// packages.
func (w *world) modules(t *testing.T) string {
	t.Helper()
	build := exec.Command(daemontest.Bin(t), "build", filepath.Join("testdata", "players"))
	build.Env = append(os.Environ(), "FRE_SOCKET="+filepath.Join(w.dir, "sock"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(w.dir, "engine", "store", "images", "*", "rootfs", "node_modules", "shaka-player"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	return filepath.Dir(found[0])
}

// players: hls.js, dash.js and Shaka Player play clear and encrypted assets to the end, over
// changes of the rung and seeks.
func (w *world) players(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/node_modules/", http.StripPrefix("/node_modules/", http.FileServer(http.Dir(w.modules(t)))))
	mux.HandleFunc("/player.html", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "testdata/player.html") })
	pages := httptest.NewServer(mux)
	defer pages.Close()
	path := clip(t, filepath.Join(t.TempDir(), "film.mp4"), "-f lavfi -i testsrc2=size=640x360:rate=25:duration=20 -f lavfi -i sine=duration=20 -c:v libx264 -preset ultrafast -c:a aac")
	for _, protection := range []asset.Protection{asset.Clear, asset.AES128, asset.CBCS} {
		name := cmp.Or(string(protection), "none")
		t.Run(name, func(t *testing.T) {
			a, status := w.upload(t, path, "--protect", name)
			if status != 0 {
				t.Fatalf("%+v", a.Asset)
			}
			for _, tt := range []struct{ library, form, at string }{
				{"hls.js", "MP4", a.HLS}, {"hls.js", "TS", a.HLSTS}, {"shaka", "MP4", a.HLS}, {"dash.js", "DASH", a.DASH}, {"shaka", "DASH", a.DASH},
			} {
				switch {
				case tt.at == "":
					continue
				case protection == asset.CBCS && tt.library == "hls.js" && tt.form == "MP4": // it has no SAMPLE-AES in MP4
					continue
				}
				t.Run(tt.library+" "+tt.form, func(t *testing.T) { w.play(t, pages.URL+"/player.html", tt.library, tt.at, a.License) })
			}
			if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
				t.Errorf("rm: %d %s", status, errs)
			}
		})
	}
}

// play plays an asset of 20 seconds in two rungs on a page of its own.
func (w *world) play(t *testing.T, page, library, at, license string) {
	t.Helper()
	ctx := browser(t)
	if license != "" {
		license = w.url(license)
	}
	if err := chromedp.Run(ctx, chromedp.Navigate(page), chromedp.WaitReady("#video")); err != nil {
		t.Fatal(err)
	}
	evaluate[bool](ctx, t, fmt.Sprintf(`start(%q, %q, %q)`, library, w.url(at), license))
	becomes(ctx, t, `problem !== "" || video.currentTime > 0.5 && levels() === 2`)
	for level, height := range []int{240, 360} {
		evaluate[bool](ctx, t, fmt.Sprintf(`(level(%d), true)`, level))
		becomes(ctx, t, fmt.Sprintf(`problem !== "" || video.videoHeight === %d`, height))
	}
	evaluate[float64](ctx, t, `video.currentTime = 16`)
	becomes(ctx, t, `problem !== "" || over`)
	if problem := evaluate[string](ctx, t, `problem`); problem != "" {
		t.Fatalf("the player says: %s", problem)
	}
	if end := evaluate[float64](ctx, t, `video.currentTime`); end < 19.8 || end > 20.2 {
		t.Errorf("the end is at second %v", end)
	}
}
