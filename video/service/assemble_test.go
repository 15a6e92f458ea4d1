package service

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// TestAssemble: a rendition's file has the segments of all parts at the offsets in its asset's
// record. Segments that would touch one page too many begin at a page. Another MP4 reader reads the
// whole file.
func TestAssemble(t *testing.T) {
	page := os.Getpagesize()
	init := mp4.CreateEmptyInit()
	init.AddEmptyTrack(48000, "audio", "und")
	if err := init.Moov.Trak.SetAACDescriptor(2, 48000); err != nil {
		t.Fatal(err)
	}
	var head bytes.Buffer
	if err := init.Encode(&head); err != nil {
		t.Fatal(err)
	}
	number := uint32(0)
	fragment := func(size int) []byte {
		number++
		var b bytes.Buffer
		for sample := 100; b.Len() != size; sample += size - b.Len() {
			b.Reset()
			f, err := mp4.CreateFragment(number, mp4.DefaultTrakID)
			if err != nil {
				t.Fatal(err)
			}
			f.AddFullSample(mp4.FullSample{Sample: mp4.NewSample(mp4.SyncSampleFlags, 1024, uint32(sample), 0), DecodeTime: uint64(number) * 1024, Data: bytes.Repeat([]byte{byte(number)}, sample)})
			if err := f.Encode(&b); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	library, _, err := asset.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	a := &asset.Asset{ID: asset.NewID(), State: asset.Working}
	if err := library.Create(a); err != nil {
		t.Fatal(err)
	}
	var parts []part
	var want [][]byte
	for i, sizes := range [][]int{{1000, 16 * page, 300}, {32 * page, 2000}} {
		body := bytes.Clone(head.Bytes())
		made := media.Made{Init: head.Len()}
		for _, size := range sizes {
			f := fragment(size)
			want = append(want, f)
			body = append(body, f...)
			made.Segments = append(made.Segments, size)
		}
		file := filepath.Join(t.TempDir(), string(rune('a'+i)))
		if err := os.WriteFile(file, append([]byte("{}\n"), body...), 0o600); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part{file: file, made: made})
	}
	r := &asset.Rendition{Name: "a0", Kind: "audio"}
	if err := (&work{Service: &Service{library: library}, id: a.ID}).assemble(r, parts); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(library.Path(a.ID, "a0.mp4"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Segments) != len(want) || !bytes.Equal(got[:r.Init], head.Bytes()) {
		t.Fatalf("%d segments behind %d bytes", len(r.Segments), r.Init)
	}
	end := r.Init
	for i, s := range r.Segments {
		if !bytes.Equal(got[s.Offset:s.Offset+s.Size], want[i]) {
			t.Errorf("segment %d is not at %d", i+1, s.Offset)
		}
		if large := s.Size >= int64(16*page); large && s.Offset%int64(page) != 0 || !large && s.Offset != end {
			t.Errorf("segment %d of %d bytes behind %d is at %d", i+1, s.Size, end, s.Offset)
		}
		end = s.Offset + s.Size
	}
	whole, err := mp4.DecodeFile(bytes.NewReader(got))
	if err != nil {
		t.Fatal(err)
	}
	fragments := 0
	for _, s := range whole.Segments {
		fragments += len(s.Fragments)
	}
	if fragments != len(want) {
		t.Errorf("%d fragments of %d are found in the whole file", fragments, len(want))
	}
}
