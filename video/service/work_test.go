package service

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// TestRetryAnotherPlan: the retry of a failed asset follows the service's present settings; no
// result of an earlier plan is used, even if a crash has left it on the disk.
func TestRetryAnotherPlan(t *testing.T) {
	w := newWorld(t, t.TempDir(), Config{})
	second := make(chan struct{})
	w.engine.meets(func(ctx context.Context, job string) error {
		if job == "/chunk 12" {
			close(second)
			<-ctx.Done()
		}
		return nil
	})
	id := w.add(t, film(t, "in.mp4", "640x360", "20"))
	<-second
	w.until(t, id, func(*asset.Asset) bool { _, err := os.Stat(w.library.Path(id, jobsDir, "chunk-0")); return err == nil })
	w.close(t)
	w.engine.meets(nil)

	// The asset has failed, and the service was killed before the removal of the old files.
	path := filepath.Join(w.state, "assets", id, "asset.json")
	b, err := os.ReadFile(path)
	var a asset.Asset
	if err := errors.Join(err, json.Unmarshal(b, &a)); err != nil || a.State != asset.Working || len(a.Plan.Rungs) != 2 {
		t.Fatalf("%v, %+v", err, a)
	}
	a.State, a.Error = asset.Failed, "for a reason"
	if b, err = json.Marshal(&a); err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	old := filepath.Join(t.TempDir(), "jobs")
	if err := errors.Join(err, os.CopyFS(old, os.DirFS(filepath.Join(filepath.Dir(path), jobsDir)))); err != nil {
		t.Fatal(err)
	}
	w.cfg.Codec, w.cfg.Rungs = media.HEVC, 1
	w.open(t)
	if got := w.left(t, id); got != "asset.json source" {
		t.Errorf("left of an asset that has failed: %s", got)
	}
	if err := os.CopyFS(w.library.Path(id, jobsDir), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Retry(id); err != nil {
		t.Fatal(err)
	}
	made := w.done(t, id)
	if made.State != asset.Ready || made.Duration != 20 || len(made.Of("video")) != 1 || !strings.HasPrefix(made.Of("video")[0].Codec, "hvc1") {
		t.Fatalf("%+v", made)
	}
	if n := w.engine.times("/chunk 0"); n != 2 {
		t.Errorf("the first chunk was made %d times, want once by each plan", n)
	}

	// A service that is killed just after an asset became ready leaves the working files.
	w.close(t)
	if err := os.CopyFS(filepath.Join(filepath.Dir(path), jobsDir), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	w.open(t)
	if got := w.left(t, id); got != "a0.mp4 asset.json sheet0.jpg source v360p.mp4" {
		t.Errorf("left of an asset that is ready: %s", got)
	}
}

// left returns the names in an asset's directory.
func (w *world) left(t *testing.T, id string) string {
	t.Helper()
	entries, err := os.ReadDir(w.library.Path(id))
	if err != nil {
		t.Error(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestRemoveBesideRetry: after the removal of an asset no work on the asset runs, even if a client
// retries the asset at the same time.
func TestRemoveBesideRetry(t *testing.T) {
	fretest.CheckLeaks(t)
	w := newWorld(t, t.TempDir(), Config{})
	source := filepath.Join(t.TempDir(), "in.mp4")
	if err := os.WriteFile(source, []byte("no video"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := func(id string) {
		t.Helper()
		w.mu.Lock()
		working, removing := len(w.working), len(w.removing)
		w.mu.Unlock()
		if working > 0 || removing > 0 || w.library.Get(id) != nil {
			t.Errorf("%d are worked on, %d being removed; it is %+v", working, removing, w.library.Get(id))
		}
		for _, dir := range []string{w.library.Path(id), filepath.Join(w.engine.sources, id)} {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", dir, err)
			}
		}
	}

	// The retry arrives while the removal waits for the cleanup of the failed work.
	tidies, goOn := make(chan struct{}), make(chan struct{})
	w.engine.meets(func(_ context.Context, job string) error {
		if job == "DELETE" {
			close(tidies)
			<-goOn
		}
		return nil
	})
	id := w.add(t, source)
	<-tidies
	w.engine.meets(nil)
	removed := make(chan error)
	go func() { removed <- w.Remove(id) }()
	w.mu.Lock()
	for w.removing[id] == 0 {
		w.mu.Unlock()
		w.mu.Lock()
	}
	w.mu.Unlock()
	if _, err := w.Retry(id); err != nil {
		t.Errorf("retry: %v", err)
	}
	close(goOn)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	gone(id)
	if n := w.engine.times("/probe"); n != 1 {
		t.Errorf("it was worked on %d times", n)
	}

	for range 30 { // in any order
		id := w.add(t, source)
		w.done(t, id)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, err := w.Retry(id); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrState) {
					t.Errorf("retry: %v", err)
				}
			})
			all.Go(func() {
				if err := w.Remove(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("remove: %v", err)
				}
			})
		}
		all.Wait()
		gone(id)
	}
}

// TestRemoveFails: the work on an asset continues if the asset cannot be removed.
func TestRemoveFails(t *testing.T) {
	w := newWorld(t, t.TempDir(), Config{})
	begun := make(chan struct{}, 1)
	w.engine.meets(func(ctx context.Context, job string) error {
		if job == "/probe" {
			select {
			case begun <- struct{}{}:
				<-ctx.Done() // until the work has ended
			default:
			}
		}
		return nil
	})
	id := w.add(t, film(t, "in.mp4", "64x64", "2"))
	for w.engine.times("/probe") == 0 {
		w.until(t, id, func(*asset.Asset) bool { return true })
	}
	aside := filepath.Join(w.state, "removed")
	if err := errors.Join(os.Remove(aside), os.WriteFile(aside, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(id); err == nil {
		t.Error("it was removed")
	}
	if err := errors.Join(os.Remove(aside), os.Mkdir(aside, 0o700)); err != nil {
		t.Fatal(err)
	}
	if a := w.done(t, id); a.State != asset.Ready {
		t.Errorf("%+v", a)
	}
}

// TestCutOff: a truncated source is served up to its end, and the asset's warning states the
// missing part.
func TestCutOff(t *testing.T) {
	w := newWorld(t, t.TempDir(), Config{})
	whole := clip(t, "in.mp4", "-f lavfi -i testsrc2=size=160x120:rate=10:duration=20 "+silence+"20 -c:v libx264 -preset ultrafast -g 20 -c:a aac -movflags faststart")
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(t.TempDir(), "half.mp4")
	if err := os.WriteFile(half, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.done(t, w.add(t, half))
	if a.State != asset.Ready || a.Duration < 5 || a.Duration > 15 || len(a.Warnings) != 1 || !strings.HasPrefix(a.Warnings[0], "the file was cut off: it ends ") {
		t.Errorf("%+v", a)
	}
}

// TestRoom: writing of sources and results stops when the disk has only its reserve left, and
// continues when there is more room.
func TestRoom(t *testing.T) {
	var most atomic.Int64 // free bytes above the reserve
	most.Store(1 << 40)
	asked := func(bytes int64) error {
		if bytes > most.Load() || most.Load() == 0 {
			return unix.ENOSPC
		}
		most.Add(-bytes)
		return nil
	}
	w := newWorld(t, t.TempDir(), Config{Slots: 1, Room: asked})
	source := film(t, "in.mp4", "160x120", "60")
	body, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	large := append(body, make([]byte, 4*roomPiece)...) // an MP4 may end in zeros
	ask := w.tus(t)
	size := strconv.Itoa(len(large))

	// A body, and an announced upload.
	most.Store(2 * roomPiece)
	if _, err := w.Add(t.Context(), Order{Name: "a"}, bytes.NewReader(large)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a body without room: %v", err)
	}
	if a := ask("POST", "/v1/uploads/", nil, "Upload-Length", size); a.Code != 507 {
		t.Errorf("an upload without room: %d %s", a.Code, a.Body)
	}
	if all := w.library.List(); len(all) > 0 {
		t.Errorf("left: %+v", all)
	}

	// An upload on its way.
	most.Store(1 << 40)
	a := ask("POST", "/v1/uploads/", nil, "Upload-Length", size)
	if a.Code != 201 {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	id := filepath.Base(a.Header().Get("Location"))
	most.Store(2 * roomPiece)
	if a := ask("PATCH", "/v1/uploads/"+id, large, "Upload-Offset", "0"); a.Code != 507 {
		t.Errorf("a piece without room: %d %s", a.Code, a.Body)
	}
	if info, err := os.Stat(w.SourcePath(id)); err != nil || info.Size() != 2*roomPiece {
		t.Errorf("%v, %v; want the two pieces that had room", info, err)
	}

	// The work: the answer to a job cannot be stored. The asset waits, and asks for no further
	// answers meanwhile.
	most.Store(1 << 40)
	first := make(chan string, 1)
	w.engine.meets(func(_ context.Context, job string) error {
		if job != "PUT" && job != "/probe" {
			select {
			case first <- job:
				most.Store(0)
			default:
			}
		}
		return nil
	})
	if a := ask("PATCH", "/v1/uploads/"+id, large[2*roomPiece:], "Upload-Offset", strconv.Itoa(2*roomPiece)); a.Code != 204 {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	w.until(t, id, func(a *asset.Asset) bool {
		return a.Jobs != nil && strings.Contains(a.Jobs.Waits, "no room on the disk")
	})
	if kept, err := filepath.Glob(w.library.Path(id, jobsDir, "*")); err != nil || len(kept) > 0 {
		t.Errorf("kept without room: %v, %v", kept, err)
	}
	most.Store(1 << 40)
	made := w.done(t, id)
	if made.State != asset.Ready || made.Duration != 60 || len(made.Warnings) > 0 {
		t.Fatalf("%+v", made)
	}
	if job := <-first; w.engine.times(job) != 2 {
		t.Errorf("%s was asked for %d times, want once without room and once with it", job, w.engine.times(job))
	}
	published := int64(0)
	for name := range strings.FieldsSeq(w.left(t, id)) {
		if name != "asset.json" && name != sourceFile {
			info, err := os.Stat(w.library.Path(id, name))
			if err != nil {
				t.Fatal(err)
			}
			published += info.Size()
		}
	}
	if asked := 1<<40 - most.Load(); 2*asked < 3*published { // each byte is first stored with its job
		t.Errorf("room for %d bytes was asked for, and %d were published", asked, published)
	}
}

// TestUploadEndsOnFullDisk: if the disk is too full to record an upload's end, the client gets an
// error; once there is room, the client's next request completes the upload.
func TestUploadEndsOnFullDisk(t *testing.T) {
	fretest.RequireRoot(t)
	w := newWorld(t, t.TempDir(), Config{})
	ask := w.tus(t)
	a := ask("POST", "/v1/uploads/", nil, "Upload-Length", "8")
	id := filepath.Base(a.Header().Get("Location"))
	// The service writes the asset's record to a temporary name: make this impossible.
	aside := w.library.Path(id, "asset.json.new")
	if err := errors.Join(os.WriteFile(aside, nil, 0o600), unix.Mount("/dev/full", aside, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	if a := ask("PATCH", "/v1/uploads/"+id, []byte("no video"), "Upload-Offset", "0"); a.Code != 507 {
		t.Errorf("the end on a full disk: %d %s", a.Code, a.Body)
	}
	if a := ask("HEAD", "/v1/uploads/"+id, nil); a.Code != 507 {
		t.Errorf("on a full disk: %d", a.Code)
	}
	if err := unix.Unmount(aside, 0); err != nil {
		t.Fatal(err)
	}
	if a := ask("HEAD", "/v1/uploads/"+id, nil); a.Code != 200 || a.Header().Get("Upload-Offset") != "8" {
		t.Errorf("there is room: %d %v", a.Code, a.Header())
	}
	if a := w.done(t, id); a.State != asset.Failed || !strings.Contains(a.Error, "is text") {
		t.Errorf("%+v", a)
	}
}

// TestDiskFull: an asset whose work meets a full disk reports that it waits, and continues by
// itself once there is room, without repeating finished work. The same holds if the failure of an
// asset cannot be recorded.
func TestDiskFull(t *testing.T) {
	fretest.RequireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, filepath.Join(disk, "state"), Config{Slots: 1})
	filler := filepath.Join(disk, "filler")
	fill := func(free int64) error {
		var s unix.Statfs_t
		if err := unix.Statfs(disk, &s); err != nil {
			return err
		}
		return os.WriteFile(filler, make([]byte, int64(s.Bavail)*s.Bsize-free), 0o600)
	}
	words := filepath.Join(t.TempDir(), "words.srt")
	junk := filepath.Join(t.TempDir(), "junk.mp4")
	if err := errors.Join(os.WriteFile(words, []byte("1\n00:00:01,000 --> 00:00:03,500\nGood morning\n\n"), 0o600), os.WriteFile(junk, []byte("no video"), 0o600)); err != nil {
		t.Fatal(err)
	}
	whole := clip(t, "in.mkv", "-f lavfi -i testsrc2=size=160x120:rate=10:duration=60 "+silence+"60 -i "+words+" -map 0 -map 1 -map 2 -c:v libx264 -preset ultrafast -g 20 -c:a aac -c:s srt")
	jobs := []string{"/probe", "/chunk 0", "/chunk 24", "/chunk 48", "/sound", "/text", "/thumbs"}
	for _, tt := range []struct {
		at, source string
		free       int64 // bytes
		state      asset.State
	}{
		{"/probe", whole, 0, asset.Ready},
		{"/chunk 0", whole, 0, asset.Ready},
		{"/chunk 24", whole, 4096, asset.Ready},
		{"/sound", whole, 0, asset.Ready},
		{"/text", whole, 0, asset.Ready},
		{"/thumbs", whole, 0, asset.Ready},
		{"the last", whole, 300_000, asset.Ready},
		{"/probe", junk, 0, asset.Failed},
	} {
		t.Run(tt.at+" of "+filepath.Base(tt.source), func(t *testing.T) {
			w.engine.mu.Lock()
			clear(w.engine.asked)
			w.engine.mu.Unlock()
			filled := ""
			var kept []string // finished files at the time of the full disk
			w.engine.meets(func(_ context.Context, job string) error {
				w.engine.mu.Lock()
				last := len(w.engine.asked) == len(jobs)+1 // and PUT
				w.engine.mu.Unlock()
				if filled != "" || job != tt.at && (tt.at != "the last" || !last) {
					return nil
				}
				filled = job
				kept, _ = filepath.Glob(filepath.Join(w.state, "assets", "*", "jobs", "*")) // the pattern is right
				return fill(tt.free)
			})
			id := w.add(t, tt.source)
			w.until(t, id, func(a *asset.Asset) bool {
				return a.Jobs != nil && strings.Contains(a.Jobs.Waits, "no room on the disk")
			})
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			a := w.done(t, id)
			if a.State != tt.state || a.State == asset.Ready && (len(a.Warnings) > 0 || a.Duration != 60 || len(a.Of("text")) != 1 || a.Thumbnails == nil) || a.State == asset.Failed && !strings.Contains(a.Error, "Invalid data") {
				t.Errorf("%+v", a)
			}
			w.engine.mu.Lock()
			asked := maps.Clone(w.engine.asked)
			w.engine.mu.Unlock()
			for _, job := range jobs {
				if asked[job] == 0 && a.State == asset.Ready {
					t.Errorf("%s was not done", job)
				}
			}
			if len(kept) > 0 && asked["/probe"] != 1 {
				t.Errorf("/probe was done %d times", asked["/probe"])
			}
			kept = slices.DeleteFunc(kept, func(file string) bool { return strings.HasSuffix(file, ".new") })
			if tt.at == "the last" && len(kept) == 0 {
				t.Errorf("nothing was finished before %s", filled)
			}
			for _, file := range kept { // unfinished work may be repeated
				job := map[string]string{"chunk-0": "/chunk 0", "chunk-1": "/chunk 24", "chunk-2": "/chunk 48", "audio-0": "/sound", "text-0": "/text", "thumbs-0": "/thumbs"}[filepath.Base(file)]
				if n := asked[job]; n != 1 {
					t.Errorf("%s (%s) was done %d times, the disk was full at %s", file, job, n, filled)
				}
			}
			if err := w.Remove(id); err != nil {
				t.Error(err)
			}
		})
	}
}

// claim makes a Matroska file claim another duration.
func claim(t *testing.T, path string, seconds float64) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte{0x44, 0x89, 0x88}) // Duration, of 8 bytes, in milliseconds
	if at < 0 {
		t.Fatal("it claims nothing")
	}
	binary.BigEndian.PutUint64(b[at+3:], math.Float64bits(1000*seconds))
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLongest: the limit of duration counts the content, not the claim: a longer video is refused
// if its claim is true; a video with too short a claim is cut, with a warning.
func TestLongest(t *testing.T) {
	w := newWorld(t, t.TempDir(), Config{MostDuration: 20e9})
	sound := clip(t, "sound.mka", silence+"40 -c:a aac")
	for _, tt := range []struct {
		name, path string
		seconds    float64 // claimed
		state      asset.State
		duration   float64
		words      string // of the error or the warning
	}{
		{"claims less", film(t, "less.mkv", "64x64", "40"), 5, asset.Ready, 20, "what comes after second 20 is left out: fre-video serve --max-duration"},
		{"claims more", film(t, "more.mkv", "64x64", "10"), 1000, asset.Ready, 10, ""},
		{"claims more than anybody has", film(t, "most.mkv", "64x64", "10"), 1e9, asset.Ready, 10, ""},
		{"is longer", film(t, "longer.mkv", "64x64", "40"), 1000, asset.Failed, 0, "more than the 20 that are allowed: fre-video serve --max-duration"},
		{"is longer and says so", film(t, "true.mkv", "64x64", "40"), 40, asset.Failed, 0, "it takes 40 seconds"},
		{"sound claims less", sound, 5, asset.Ready, 20, "what comes after second 20 is left out"},
		{"sound is longer", sound, 1000, asset.Failed, 0, "more than the 20 that are allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := w.done(t, w.add(t, claim(t, tt.path, tt.seconds)))
			said := a.Error + strings.Join(a.Warnings, "; ")
			if a.State != tt.state || math.Abs(a.Duration-tt.duration) > 0.1 || !strings.Contains(said, tt.words) || tt.words == "" && said != "" {
				t.Errorf("%s, %v seconds, %q", a.State, a.Duration, said)
			}
			if a.Thumbnails != nil && float64(a.Thumbnails.Count)*a.Thumbnails.Interval > tt.duration+a.Thumbnails.Interval {
				t.Errorf("%+v", a.Thumbnails)
			}
			for _, r := range a.Renditions {
				if r.Total() > tt.duration+0.1 {
					t.Errorf("%s has %v seconds", r.Name, r.Total())
				}
			}
		})
	}
	if n := w.engine.times("/chunk 24"); n > 0 {
		t.Errorf("what comes later was asked for %d times", n)
	}
}

// TestKilledAnywhere: after kill -9 at any step, the asset becomes ready, no finished job runs
// again, and no working file stays.
func TestKilledAnywhere(t *testing.T) {
	w := newWorld(t, t.TempDir(), Config{Slots: 1})
	var mu sync.Mutex
	left := map[string]string{} // directories, by the step
	w.engine.meets(func(_ context.Context, job string) error {
		mu.Lock()
		defer mu.Unlock()
		if left[job] != "" {
			return nil
		}
		left[job] = t.TempDir()
		return os.CopyFS(filepath.Join(left[job], "assets"), os.DirFS(filepath.Join(w.state, "assets")))
	})
	id := w.add(t, film(t, "in.mp4", "160x120", "58"))
	if a := w.done(t, id); a.State != asset.Ready {
		t.Fatalf("%+v", a)
	}
	w.close(t) // the cleanup is done
	w.engine.meets(nil)
	files := map[string]string{"/chunk 0": "chunk-0", "/chunk 20": "chunk-1", "/chunk 40": "chunk-2", "/sound": "audio-0", "/thumbs": "thumbs-0"}
	steps := slices.Sorted(maps.Keys(left))
	if len(steps) != len(files)+3 { // PUT, /probe, DELETE
		t.Errorf("steps %q", steps)
	}
	for _, step := range steps {
		w.engine.mu.Lock()
		clear(w.engine.asked)
		w.engine.mu.Unlock()
		w.state = left[step]
		finished := map[string]bool{}
		for job, file := range files {
			_, err := os.Stat(filepath.Join(w.state, "assets", id, jobsDir, file))
			finished[job] = err == nil || step == "DELETE"
		}
		w.open(t)
		a := w.done(t, id)
		if a.State != asset.Ready || a.Duration != 58 || len(a.Warnings) > 0 {
			t.Errorf("killed at %s: %+v", step, a)
		}
		w.close(t)
		for job := range files {
			if n := w.engine.times(job); finished[job] != (n == 0) || n > 1 {
				t.Errorf("killed at %s: %s was done %d times more; it was finished: %t", step, job, n, finished[job])
			}
		}
		if got := w.left(t, id); got != "a0.mp4 asset.json sheet0.jpg source v120p.mp4" {
			t.Errorf("killed at %s: %s", step, got)
		}
	}
	w.open(t)
}

// TestSourceGivenOnce: if the function has lost its /work, and several jobs find the source
// missing, one of them sends the source again and the rest use it: two writers would mix their
// pieces.
func TestSourceGivenOnce(t *testing.T) {
	const slots = 6
	w := newWorld(t, t.TempDir(), Config{Slots: slots})
	var mu sync.Mutex
	asked, giving := 0, 0
	lost := make(chan struct{})
	w.engine.meets(func(ctx context.Context, job string) error {
		if job == "PUT" {
			mu.Lock()
			if giving++; giving > 2 {
				t.Error("it was given more than once again")
			}
			mu.Unlock()
		}
		if !strings.HasPrefix(job, "/") || job == "/probe" {
			return nil
		}
		mu.Lock()
		if asked++; asked == slots {
			if err := os.RemoveAll(w.engine.sources); err != nil {
				t.Error(err)
			}
			if err := os.Mkdir(w.engine.sources, 0o700); err != nil {
				t.Error(err)
			}
			close(lost)
		}
		mu.Unlock()
		select {
		case <-lost:
		case <-ctx.Done():
		}
		return nil
	})
	if a := w.done(t, w.add(t, film(t, "in.mp4", "64x64", "80"))); a.State != asset.Ready || len(a.Warnings) > 0 {
		t.Errorf("%+v", a)
	}
}

// TestWholeTimeout: a job on a whole source may take a job's time for each hour of the source, and
// the template's event timeout allows this.
func TestWholeTimeout(t *testing.T) {
	var events time.Duration
	w := newWorld(t, t.TempDir(), Config{MostDuration: 12 * time.Hour, JobTimeout: 5 * time.Minute})
	for seconds, want := range map[float64]time.Duration{1: 5 * time.Minute, 3600: 5 * time.Minute, 3601: 10 * time.Minute, 12 * 3600: time.Hour, 0: time.Hour, 1e9: time.Hour} {
		if got := w.cfg.wholeTimeout(seconds); got != want {
			t.Errorf("%v seconds: %v, want %v", seconds, got, want)
		}
	}
	w.close(t)
	deployed := make(chan struct{})
	w.cfg.Template = func(_ string, timeout time.Duration) error {
		events = timeout
		close(deployed)
		return errors.New("no further")
	}
	w.open(t)
	<-deployed
	if events != 61*time.Minute {
		t.Errorf("events may take %v", events)
	}
}

// TestSoundTooLong: a source whose sound is too long is refused before any work.
func TestSoundTooLong(t *testing.T) {
	w := newWorld(t, t.TempDir(), Config{MostDuration: 40 * time.Hour})
	a := w.done(t, w.add(t, claim(t, film(t, "in.mkv", "64x64", "2"), 17*3600)))
	if a.State != asset.Failed || !strings.Contains(a.Error, "61200 seconds") || !strings.Contains(a.Error, "sound can be made of 57600 at most") {
		t.Errorf("%+v", a)
	}
	if w.engine.times("/chunk 0")+w.engine.times("/sound") > 0 {
		t.Error("it was worked on")
	}
	silent := clip(t, "silent.mkv", "-f lavfi -i testsrc2=size=64x64:rate=10:duration=2 -c:v libx264 -preset ultrafast")
	if a := w.done(t, w.add(t, claim(t, silent, 17*3600))); a.State != asset.Ready {
		t.Errorf("without sound: %+v", a)
	}
}
