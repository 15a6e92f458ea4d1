package video_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// browser starts a headless Chromium. An error on the browser's console fails the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	profile, err := os.MkdirTemp("", "chromium-") //nolint:usetesting // it is removed when Chromium lets it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // Chromium's processes write there until the last of them has ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := testdaemon.Until(ctx, func() error { return os.RemoveAll(profile) }); err != nil {
			t.Error(err)
		}
	})
	// Chromium has no sandbox of its own as root; the page is FRE's own.
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.Flag("autoplay-policy", "no-user-gesture-required"), chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(profile),
		chromedp.Env("TMPDIR="+profile))...) // what it leaves behind where it is killed goes with the profile
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page throws %s", e.ExceptionDetails.Error())
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.LevelError && !strings.Contains(e.Entry.URL, "favicon") {
				t.Errorf("the browser says of %s: %s", e.Entry.URL, e.Entry.Text)
			}
		}
	})
	if err := chromedp.Run(ctx, cdplog.Enable()); err != nil { // the browser ends with this context; a separate context can still report the page's state
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	return ctx
}

// evaluate returns the value of an expression on the page.
func evaluate[T any](ctx context.Context, t *testing.T, expression string) (v T) {
	t.Helper()
	if err := chromedp.Run(ctx, chromedp.Evaluate(expression, &v)); err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// becomes waits until an expression is true on the page.
func becomes(ctx context.Context, t *testing.T, expression string) {
	t.Helper()
	if err := testdaemon.Until(ctx, func() error {
		if evaluate[bool](ctx, t, expression) {
			return nil
		}
		return errors.New("not yet")
	}); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // the page may not answer any more
		defer cancel()
		t.Fatalf("%s: %v; the player is at %s", expression, err, evaluate[string](ctx, t,
			`(v => [v.currentTime + " of " + v.duration, v.videoHeight + " lines", "state " + v.readyState, v.paused ? "paused" : "playing", v.seeking ? "seeking" : "",
				"has " + Array.from(v.buffered, (_, i) => v.buffered.start(i) + " to " + v.buffered.end(i)), document.body.innerText,
				performance.getEntriesByType("resource").slice(-8).map(e => [e.name, e.startTime, e.duration, e.transferSize, e.responseStatus].join(" ")).join("\n"), performance.now(),
			].join(", "))(document.querySelector("video"))`))
	}
}

// page: in a browser, the page uploads a video and shows the progress, and the player plays the
// video to its end, also after a change of the rung and after a seek.
func (w *world) page(t *testing.T) {
	path := clip(t, filepath.Join(t.TempDir(), "film.mp4"), "-f lavfi -i testsrc2=size=640x360:rate=25:duration=20 -f lavfi -i sine=duration=20 -c:v libx264 -preset ultrafast -c:a aac")
	ctx := browser(t)
	if err := chromedp.Run(ctx,
		chromedp.Navigate(w.url("/")),
		chromedp.WaitVisible("#none"),
		chromedp.SetUploadFiles("#file", []string{path}, chromedp.NodeReady),
		chromedp.WaitVisible(`td.working, td.ready`),
		chromedp.WaitVisible(`td.ready`),
		chromedp.Click(`//button[text()="Play"]`),
	); err != nil {
		t.Fatal(err)
	}
	becomes(ctx, t, `video.currentTime > 0.5 && document.getElementById("buffer").value > 1`)
	if got := evaluate[int](ctx, t, `hls.levels.length`); got != 2 {
		t.Errorf("%d levels", got)
	}
	for level, height := range []int{240, 360} {
		if got := evaluate[int](ctx, t, fmt.Sprintf(`hls.levels[%d].height`, level)); got != height {
			t.Errorf("level %d has %d lines", level, got)
		}
		evaluate[bool](ctx, t, `(video.currentTime = 1, video.play(), true)`) // a busy machine may have played the video to its end
		if err := chromedp.Run(ctx, chromedp.SetValue("#level", fmt.Sprint(level)), chromedp.Evaluate(`document.getElementById("level").onchange()`, nil)); err != nil {
			t.Fatal(err)
		}
		becomes(ctx, t, fmt.Sprintf(`video.videoHeight === %d && document.getElementById("playing").textContent === "%dp"`, height, height))
	}
	evaluate[float64](ctx, t, `video.currentTime = 16`)
	becomes(ctx, t, `video.ended`)
	if end := evaluate[float64](ctx, t, `video.currentTime`); end < 19.9 || end > 20.1 {
		t.Errorf("the end is at second %v", end)
	}
	if !evaluate[bool](ctx, t, `document.getElementById("problem").hidden`) {
		t.Error(evaluate[string](ctx, t, `document.getElementById("problem").textContent`))
	}
	becomes(ctx, t, `document.querySelector(".thumb img").naturalWidth > 0`)
	if err := chromedp.Run(ctx, chromedp.Click(`//button[text()="Copy HLS"]`)); err != nil {
		t.Fatal(err)
	}
	becomes(ctx, t, `/(Copied|by hand): http.*master.m3u8$/.test(document.getElementById("said").textContent) || /denied|not allowed|not focused/i.test(document.getElementById("said").textContent)`)
	if err := chromedp.Run(ctx, chromedp.Click(`//button[text()="Delete"]`), chromedp.WaitVisible("#sure"), chromedp.Click(`//button[text()="Keep"]`), chromedp.WaitNotVisible("#sure")); err != nil {
		t.Fatal(err)
	}
	if got := evaluate[int](ctx, t, `document.querySelectorAll("#assets tr").length`); got != 1 {
		t.Errorf("%d videos after none was deleted", got)
	}
	if _, errs, status := w.cli(t, "live", "start", "studio"); status != 0 {
		t.Fatalf("live start: %d %s", status, errs)
	}
	evaluate[bool](ctx, t, `(list(), true)`)
	becomes(ctx, t, `document.querySelector("#streams td")?.textContent === "studio"`)
	// The longest words do not move the columns.
	evaluate[bool](ctx, t, `(document.querySelector("#assets").append(row({ id: "x", name: "n".repeat(300), state: "failed", error: "word".repeat(500) })), true)`)
	if !evaluate[bool](ctx, t, `document.documentElement.scrollWidth <= document.documentElement.clientWidth && document.querySelector("#assets tr:last-child .words").offsetHeight < 120`) {
		t.Error("a long error breaks the page's columns")
	}
	for _, gone := range []string{"#none", "#live[hidden]"} {
		if err := chromedp.Run(ctx, chromedp.Click(`//button[text()="Delete"]`), chromedp.Click("#yes", chromedp.NodeVisible)); err != nil {
			t.Fatal(err)
		}
		becomes(ctx, t, fmt.Sprintf(`document.querySelector("#sure").open === false && (document.querySelector(%q)?.hidden === %v)`, gone, gone != "#none"))
	}
	a, err := http.Get(w.url("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "default-src 'self'") {
		t.Errorf("%v", a.Header)
	}
}
