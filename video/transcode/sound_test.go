package transcode_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// TestSoundOfHours: the buffer has room for the longest allowed sound, even for noise, which takes
// the maximum of bits. The buffer is not moved as it grows.
func TestSoundOfHours(t *testing.T) {
	checkLeaks(t)
	const seconds, segment = 60, 4
	path := clip(t, "noise.wav", strings.Fields("-f lavfi -i anoisesrc=duration=60:sample_rate=48000:amplitude=1:seed=1 -ac 2")...)
	made, parts, err := transcode.Sound(path, media.Sound{Segment: segment})
	if err != nil {
		t.Fatal(err)
	}
	size, largest := 0, 0
	for _, p := range parts {
		size += len(p)
		largest = max(largest, len(p))
	}
	if all := size * (media.MostSound / seconds); all > transcode.MostOfSound || all < transcode.MostOfSound/2 {
		t.Errorf("%d bytes of noise in %d seconds, so %d at most; there is room for %d", size, seconds, all, transcode.MostOfSound)
	}
	if len(parts) != 1+len(made.Segments) || largest != max(made.Init, slices.Max(made.Segments)) {
		t.Errorf("%d parts, the largest of %d bytes, of %+v", len(parts), largest, made)
	}
}
