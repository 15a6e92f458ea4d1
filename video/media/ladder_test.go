package media_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
)

// TestLadder: the source's own size comes first, then usual sizes that differ from it. Sides are
// even; aspect ratios and the order of bit rates stay.
func TestLadder(t *testing.T) {
	for _, tt := range []struct {
		width, height, most int
		rate                float64
		want                string
	}{
		{1920, 1080, 4, 30, "1920x1080 1280x720 854x480 640x360"},
		{1280, 720, 4, 25, "1280x720 854x480 640x360 426x240"},
		{1080, 1920, 2, 30, "1080x1920 720x1280"},
		{7680, 4320, 3, 30, "3840x2160 2560x1440 1920x1080"},
		{321, 243, 4, 30, "320x242"},
		{640, 400, 4, 30, "640x400 384x240"},
		{1, 1, 4, 30, "2x2"},
		{10000, 2, 4, 30, "10000x2"},
		{9999, 301, 2, 30, "9966x300 7972x240"},
		{721, 1281, 2, 30, "720x1280 480x852"},
		{1280, 720, 1, 0, "1280x720"},
	} {
		rungs := media.Ladder(tt.width, tt.height, tt.rate, tt.most)
		var got []string
		for i, r := range rungs {
			got = append(got, fmt.Sprintf("%dx%d", r.Width, r.Height))
			if r.Width > max(tt.width, 2) || r.Height > max(tt.height, 2) {
				t.Errorf("%dx%d is made larger: %dx%d", tt.width, tt.height, r.Width, r.Height)
			}
			if r.BitRate <= 0 || i > 0 && r.BitRate >= rungs[i-1].BitRate {
				t.Errorf("%dx%d: %+v", tt.width, tt.height, rungs)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%dx%d: %q, want %q", tt.width, tt.height, got, tt.want)
		}
	}
}
