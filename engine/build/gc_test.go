package build

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
)

// TestGCSurplusAfterClockTurnedBack: the newest image of a name is the last to arrive, even if the
// clock was turned back.
func TestGCSurplusAfterClockTurnedBack(t *testing.T) {
	var images []*store.Image // newest arrival first
	for i := range 3 {
		d := store.Digest(fmt.Sprintf("sha256:%064d", i))
		images = append(images, &store.Image{Digest: d, Names: []string{fmt.Sprintf("app:%d", i)}, Created: time.Unix(int64(i), 0)})
	}
	c := gcChoice{policy: GCPolicy{PerName: 1}}
	want := map[store.Digest]bool{images[1].Digest: true, images[2].Digest: true}
	if diff := cmp.Diff(want, c.surplus(images)); diff != "" {
		t.Errorf("surplus (-want +got):\n%s", diff)
	}
}
