package live_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/fre-engine/fre/video/asset"
)

// player is a page that plays a stream with hls.js and records the player's events.
const player = `<!doctype html><video id=video muted autoplay playsinline></video><script src=hls.min.js></script><script>
const seen = {parts: 0, segments: 0, waited: 0, deltas: 0, fatal: ""}
const hls = new Hls({lowLatencyMode: true, maxLiveSyncPlaybackRate: 1.5}) // catches up after a stall
hls.on(Hls.Events.FRAG_LOADED, (_, d) => d.part ? seen.parts++ : seen.segments++)
hls.on(Hls.Events.LEVEL_LOADED, (_, d) => {
  if (/_HLS_msn=[0-9]+&_HLS_part=[0-9]+/.test(d.networkDetails.responseURL)) seen.waited++
  if (/_HLS_skip=/.test(d.networkDetails.responseURL)) seen.deltas++
})
hls.on(Hls.Events.ERROR, (_, d) => { if (d.fatal) seen.fatal = d.type + " " + d.details + " " + d.reason })
hls.attachMedia(video)
hls.loadSource("/live/studio/hls/master.m3u8")
</script>`

// TestPlayer: hls.js plays a stream by parts in Chromium, keeps the playlist's distance from the
// end, and continues when the publisher has returned.
func TestPlayer(t *testing.T) {
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	stop := publish(t, w.publishAt(view), "-f flv")
	w.segments(t, "studio", "v0", 2)
	profile, err := os.MkdirTemp("", "chromium-") //nolint:usetesting // its removal has to wait
	if err != nil {
		t.Fatal(err)
	}
	// Chromium's processes write to the profile until the last of them has ended.
	t.Cleanup(func() { until(t, "the profile is removed", func() error { return os.RemoveAll(profile) }) })
	// Chromium has no sandbox of its own as root; the page is the test's own.
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.Flag("autoplay-policy", "no-user-gesture-required"), chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(profile))...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 3*patience)
	defer cancel()
	chromedp.ListenTarget(ctx, func(ev any) {
		if e, ok := ev.(*runtime.EventExceptionThrown); ok {
			t.Errorf("the page throws %s", e.ExceptionDetails.Error())
		}
	})
	evaluate := func(expression string, to any) {
		t.Helper()
		if err := chromedp.Run(ctx, chromedp.Evaluate(expression, to)); err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
	}
	state := func() (s string) {
		evaluate(`JSON.stringify({...seen, at: video.currentTime, latency: hls.latency, target: hls.targetLatency, width: video.videoWidth, error: video.error && video.error.message})`, &s)
		return s
	}
	becomes := func(expression string) {
		t.Helper()
		until(t, expression, func() error {
			var ok bool
			evaluate(expression, &ok)
			if !ok {
				return fmt.Errorf("%s", state())
			}
			return nil
		})
	}
	if err := chromedp.Run(ctx, chromedp.Navigate(w.url+"/player")); err != nil {
		t.Fatal(err)
	}
	becomes(`video.currentTime > 0 && seen.parts > 10 && seen.waited > 10`)
	t.Log(state())
	var details string
	evaluate(`JSON.stringify([hls.latestLevelDetails.canBlockReload, hls.latestLevelDetails.partTarget, hls.latestLevelDetails.partHoldBack])`, &details)
	if details != "[true,0.5,1.5]" {
		t.Errorf("the player has understood %s", details)
	}
	becomes(`hls.latency < hls.latestLevelDetails.holdBack`) // the hold-back of whole segments
	stop()
	until(t, "the publisher has gone", func() error {
		if got, err := w.Get("studio"); err != nil || got.State != asset.Waiting {
			return fmt.Errorf("%+v %w", got, err)
		}
		return nil
	})
	publish(t, w.publishAt(view), "-f flv")
	w.segments(t, "studio", "v0", 3)
	var at float64
	evaluate(`video.currentTime`, &at)
	becomes(fmt.Sprintf(`video.currentTime > %f`, at+5))
	if s := state(); !strings.Contains(s, `"fatal":""`) {
		t.Error(s)
	}
	t.Log(state())
	http.DefaultClient.CloseIdleConnections()
}
