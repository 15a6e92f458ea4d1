package asset_test

import (
	"os"
	"testing"

	"github.com/fre-engine/fre/video/asset"
)

// TestPlace: a segment begins at the file's end, or at the next page if the kernel's pipe of 16
// pages then fills one time fewer.
func TestPlace(t *testing.T) {
	page := int64(os.Getpagesize())
	for _, c := range []struct {
		name            string
		end, size, want int64
	}{
		{"a page's begin", 2 * page, 16 * page, 2 * page},
		{"one page more than the pipe", 700, 16 * page, page},
		{"at a page's end", page - 1, 16 * page, 2 * page}, // a box of one byte cannot exist
		{"room for a head", page - 8, 16 * page, page},
		{"as many turns", 700, 17 * page, 700},
		{"small", page - 100, 300, page - 100},
		{"large", 700, 128 * page, page},
		{"large, as many turns", 700, 125 * page, 700},
	} {
		if got := asset.Place(c.end, c.size); got != c.want {
			t.Errorf("%s: %d bytes behind %d are at %d, not %d", c.name, c.size, c.end, got, c.want)
		}
	}
	for end := range 2*page + 10 {
		at := asset.Place(end, 16*page)
		if gap := at - end; gap != 0 && (gap < 8 || int64(len(asset.AppendFree(nil, gap))) != gap) || gap > page+8 {
			t.Fatalf("behind %d there is a gap of %d", end, gap)
		}
	}
}
