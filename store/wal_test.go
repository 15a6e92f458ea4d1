package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDamagedLog: After kill -9 only the log holds the last transactions. A damaged frame of the
// log loses no transaction: SQLite would drop all later frames, and with them the images'
// directories and the tenants' ids. A truncated last frame is no damage.
func TestDamagedLog(t *testing.T) {
	s := openStore(t, t.TempDir())
	populate(t, s)
	want := stateOf(s)
	img, err := s.Image("web")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} { // parts do not show in stateOf
		if err := s.PutPart(t.Context(), key, Part{Kind: "pip", Name: key, Tree: img.Parts[0].Tree}); err != nil {
			t.Fatal(err)
		}
	}
	paths := []string{filepath.Join(s.disk.dir, dbName), filepath.Join(s.disk.dir, dbName+"-wal")}
	var killed [2][]byte
	for i, path := range paths {
		if killed[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	log := killed[1]
	const frame = 24 + 4096
	open := func(what string, log []byte, rebuilt bool) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for i, b := range [][]byte{killed[0], log} {
			if err := os.WriteFile(paths[i], b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s = openStore(t, s.disk.dir)
		if diff := cmp.Diff(want, stateOf(s)); diff != "" {
			t.Fatalf("%s: state (-before +after):\n%s", what, diff)
		}
		aside, err := filepath.Glob(filepath.Join(s.disk.dir, dbName+".corrupt-*"))
		if err != nil || (len(aside) > 0) != rebuilt {
			t.Errorf("%s: moved aside %q, %v", what, aside, err)
		}
		for _, path := range aside {
			err = errors.Join(err, os.Remove(path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	open("as it was", log, false)
	open("cut off", log[:len(log)-frame/2], false)
	open("empty", append(log[:len(log):len(log)], make([]byte, 2*frame)...), false)
	frames := (len(log) - 32) / frame
	if frames < 20 {
		t.Fatalf("%d frames", frames)
	}
	for n := 0; n < frames-8; n += 3 { // a crash may damage the frames of the last transaction
		damaged := append([]byte(nil), log...)
		damaged[32+n*frame+[]int{2, 12, 20, 24 + 2000}[n%4]] ^= 4
		open(fmt.Sprintf("frame %d of %d damaged", n, frames), damaged, true)
	}
	for _, at := range []int{2, 9, 17, 30} {
		damaged := append([]byte(nil), log...)
		damaged[at] ^= 4
		open("damaged header", damaged, true)
	}
}
