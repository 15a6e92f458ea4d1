package docker

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// boxesOf returns n running instances. If mixed, each has an ended instance and two containers
// beside it.
func boxesOf(n int, mixed bool) []*live.Sandbox {
	var out []*live.Sandbox
	for i := range n {
		b := live.Sandbox{
			ID: fmt.Sprintf("%012x", i), Function: "resize", Image: "resize:1", Digest: store.Digest(fmt.Sprintf("sha256:%064x", i)), Tenant: "default",
			Command: "/usr/bin/python3 /opt/fre/bootstrap.py", State: live.StateIdle, PID: 1000 + i, Created: time.Now().Add(-time.Duration(50+i) * time.Hour), // an age in days does not change meanwhile
		}
		out = append(out, &b)
		if !mixed {
			continue
		}
		ended, made, runs := b, b, b
		ended.State, ended.Function, ended.Ended, ended.Exit = live.StateExited, "", time.Now().Add(-50*time.Hour), &sandbox.ExitStatus{Code: 3}
		made.State, made.Function, made.Name = live.StateCreated, "", fmt.Sprintf("made-%d", i)
		made.Record = &container.Container{Created: b.Created, Config: container.Config{
			Work: container.WorkReadOnly, Labels: map[string]string{"z": `<"Status":"` + "\x00\xff", "a": ""}, Annotations: map[string]string{"kept": `"Status":"`},
		}}
		runs.State, runs.Name, runs.Record = live.StateRunning, fmt.Sprintf("runs-%d", i), made.Record
		out = append(out, &ended, &made, &runs)
	}
	return out
}

// TestAnnotationsListed: the list shows a container's annotations.
func TestAnnotationsListed(t *testing.T) {
	for _, b := range boxesOf(1, true) {
		want := 0
		if b.Record != nil {
			want = 1
		}
		if got := summaryOfContainer(containerOf(b)).HostConfig.Annotations; len(got) != want {
			t.Errorf("annotations of %s: %v, want %d", b.Name, got, want)
		}
	}
}

// TestContainerRows: the list has the same bytes as from encoding/json, after any omission or
// change since the last encoding.
func TestContainerRows(t *testing.T) {
	rows := newContainerRows()
	boxes := boxesOf(5, true)
	sizes := func(c shownContainer) (int64, int64) { return int64(c.PID - 1000), 1 << 40 } // the first has written nothing
	running := func(c shownContainer) bool { return c.running() }
	every := func(shownContainer) bool { return true }
	for _, tt := range []struct {
		name  string
		limit int
		keep  func(shownContainer) bool
		sizes func(shownContainer) (int64, int64)
	}{
		{"all", 0, every, nil},
		{"sizes", 0, every, sizes},
		{"running", 0, running, sizes},
		{"two", 2, running, nil},
		{"none", 0, func(shownContainer) bool { return false }, sizes},
	} {
		for _, change := range []func(){
			func() {},
			func() {
				boxes = slices.Clone(boxes)
				next := *boxes[0]
				next.State, next.Ended, next.Exit = live.StateExited, time.Now().Add(-50*time.Hour), &sandbox.ExitStatus{Signal: 9}
				boxes[0] = &next
			},
		} {
			change()
			want := []containerSummary{}
			for _, b := range boxes {
				c := containerOf(b)
				if !tt.keep(c) || tt.limit > 0 && len(want) == tt.limit {
					continue
				}
				one := summaryOfContainer(c)
				if tt.sizes != nil {
					one.SizeRw, one.SizeRootFs = tt.sizes(c)
				}
				one.Status = c.statusText(time.Now())
				want = append(want, one)
			}
			plain, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := rows.append([]byte("x"), boxes, tt.limit, tt.keep, tt.sizes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff("x"+string(plain), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		}
	}
}

// TestImageRows: the list of images has the same bytes as from encoding/json, with the current
// numbers.
func TestImageRows(t *testing.T) {
	images := newImageLists()
	foreign := json.RawMessage(`{"base":"b","labels":{"<&>":"\",\"Containers\":1"}}`)
	var used []engine.ImageUsage
	for i, names := range [][]string{{"a:1", "b:1"}, nil} {
		img := &store.Image{Digest: store.Digest(fmt.Sprintf("sha256:%064x", i)), Names: names, Created: time.Unix(1, 0), Size: 7}
		img.Config = foreign
		used = append(used, engine.ImageUsage{Image: img, ImageSize: store.ImageSize{Bytes: int64(i+1) << 40, UniqueBytes: int64(i + 1)}, HeldBytes: 5, InUse: i == 1})
	}
	users := map[store.Digest]int{used[0].Digest: 3} // ended sandboxes
	for _, old := range []bool{false, true} {
		want := []imageSummary{}
		for i, u := range used {
			one := summaryOf(u.Image, labelsOf(u.Image), old)
			one.Containers, one.SharedSize, one.Size = i, u.Bytes-[]int64{1, 5}[i], u.Bytes
			if old {
				one.VirtualSize = one.Size
			}
			want = append(want, one)
		}
		plain, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := images.appendUsage(nil, used, users, old)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(plain), string(got)); diff != "" {
			t.Errorf("old %t (-want +got):\n%s", old, diff)
		}
	}
}

// BenchmarkContainers: BenchmarkContainers encodes the list of running containers, with sizes at no
// cost. In "one changed" one container changes before each list.
func BenchmarkContainers(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		for _, how := range []string{"same", "one changed"} {
			b.Run(fmt.Sprintf("%d/%s", n, how), func(b *testing.B) {
				var s server
				keep, err := s.containerFilter(nil)
				if err != nil {
					b.Fatal(err)
				}
				rows, boxes, buf := newContainerRows(), boxesOf(n, false), []byte(nil)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if how == "one changed" {
						next := *boxes[i%n]
						boxes = slices.Clone(boxes)
						boxes[i%n] = &next
					}
					buf, err = rows.append(buf[:0], boxes, 0, keep, func(shownContainer) (int64, int64) { return 4096, 50 << 20 })
					if err != nil {
						b.Fatal(err)
					}
					b.SetBytes(int64(len(buf)))
				}
			})
		}
	}
}

// BenchmarkFirst: BenchmarkFirst encodes a list of 10,000 images and a list of 1,000 containers for
// the first time.
func BenchmarkFirst(b *testing.B) {
	const n = 10_000
	config, err := json.Marshal(image.Config{
		Base: "python", Handler: "main:handle", Args: []string{"/usr/bin/python3", "/opt/fre/bootstrap.py"}, Env: []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"},
		Labels: map[string]string{"team": "a", "stage": "test"}, Protocol: image.ProtocolChannel, Tenant: template.DefaultTenant,
	})
	if err != nil {
		b.Fatal(err)
	}
	var images []*store.Image
	for i := range n {
		images = append(images, &store.Image{
			Digest: store.Digest(fmt.Sprintf("sha256:%064x", i)), Names: []string{fmt.Sprintf("image-%d:1", i)}, Created: time.Unix(1, 0), Size: 7, Manifest: store.Manifest{Config: config},
		})
	}
	b.Run("images", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			lists := newImageLists()
			shown := slices.DeleteFunc(slices.Clone(images), isTools)
			if _, err := lists[0][0].Of(shown); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("containers", func(b *testing.B) {
		b.ReportAllocs()
		boxes := boxesOf(n/10, false)
		for b.Loop() {
			if _, err := newContainerRows().cache.Of(boxes); err != nil {
				b.Fatal(err)
			}
		}
	})
}
