package engine

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
)

// TestAnswerInFile: a function's answer in a file reaches the engine's caller read-only. The answer
// counts against the function until it is closed, and its event leaves the instance unchanged.
func TestAnswerInFile(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("g", nil)
	f, err := r.lookup("f")
	if err != nil {
		t.Fatal(err)
	}
	first := ""
	for _, tt := range []struct {
		function, path, query string
		length                int64
		file                  bool
	}{
		{"f", "/large", "1000", 1000, false},
		{"f", "/large", "262145", 256<<10 + 1, true},
		{"f", "/large", "1048576", 1 << 20, true},
		{"g", "/named", "", 100000, true},
	} {
		resp, err := r.Invoke(t.Context(), tt.function, &Request{Path: tt.path, Query: tt.query})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.File != nil; got != tt.file || resp.Size != tt.length {
			t.Errorf("%+v: in a file: %v, %d bytes", tt, got, resp.Size)
		}
		if resp.File != nil { // the test does not read the body itself
			b := make([]byte, resp.Size)
			if _, err := resp.File.ReadAt(b, resp.Offset); err != nil || strings.Trim(string(b), "x") != "" {
				t.Errorf("%+v: %v", tt, err)
			}
		}
		if short := strings.Repeat("x", int(tt.length)); !tt.file && string(resp.Bytes) != short { // here neither
			t.Errorf("%+v: %d bytes", tt, len(resp.Bytes))
		}
		if tt.file && tt.function == "f" && (f.held.count != 1 || f.held.sum < tt.length) {
			t.Errorf("%+v: %d answers, %d bytes are counted", tt, f.held.count, f.held.sum)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if tt.function != "f" {
			continue
		}
		r.idle("f")
		if first == "" {
			first = resp.Instance
		}
		if resp.Instance != first {
			t.Errorf("%+v: instance %s, want %s", tt, resp.Instance, first)
		}
		if f.held.count != 0 || f.held.sum != 0 {
			t.Errorf("%+v: %d answers, %d bytes are counted after the end", tt, f.held.count, f.held.sum)
		}
	}
	if n := f.failures.Load(); n != 0 {
		t.Errorf("%d failures", n)
	}
}

// TestHeldAnswers: a function's held answers are limited in bytes and in number. A file that
// several answers hold counts once.
func TestHeldAnswers(t *testing.T) {
	h := heldAnswers{bytes: 100}
	take := func(ino uint64, bytes int64) func() {
		t.Helper()
		release, err := h.hold(heldFile{Held: channel.Held{Dev: 1, Ino: ino, Bytes: bytes}})
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	refuse := func(ino uint64, bytes int64) {
		t.Helper()
		if _, err := h.hold(heldFile{Held: channel.Held{Dev: 1, Ino: ino, Bytes: bytes}}); !errors.Is(err, ErrOverloaded) {
			t.Errorf("file %d of %d bytes: got %v, want ErrOverloaded", ino, bytes, err)
		}
	}
	refuse(1, 101)
	first, again := take(1, 60), take(1, 60)
	second := take(2, 40)
	refuse(3, 1)
	onDisk := take(4, 0)
	first()
	refuse(3, 1)
	again()
	third := take(3, 60)
	refuse(5, 1)
	second()
	third()
	onDisk()
	if h.count != 0 || h.sum != 0 || len(h.files) != 0 {
		t.Errorf("%d answers, %d bytes, %d files are left", h.count, h.sum, len(h.files))
	}

	inTmp := channel.Held{Dev: 7, Ino: 5, Bytes: 10, Mount: 1000}
	for memory, want := range map[int64]int64{64: 64, 4096: 1000} {
		if got := lasting(inTmp, "a", memory); got != (heldFile{Held: channel.Held{Dev: 7, Bytes: want}}) {
			t.Errorf("with %d bytes of memory a file in /tmp keeps %+v, want %d bytes", memory, got, want)
		}
	}
	if memfd := (channel.Held{Dev: 1, Ino: 5, Bytes: 10}); lasting(memfd, "a", 64) != (heldFile{Held: memfd}) {
		t.Errorf("a memfd keeps %+v", lasting(memfd, "a", 64))
	}

	var all []func()
	for range maxHeldAnswers {
		all = append(all, take(1, 0))
	}
	refuse(1, 0)
	for _, release := range all {
		release()
	}
	take(1, 100)()
}

// TestHeldGrows: a memfd with room to grow counts as all the memory of the sandbox, once per
// sandbox. No further answer of this sandbox enters the place.
func TestHeldGrows(t *testing.T) {
	const memory = 1000
	f := &function{program: program{held: heldAnswers{bytes: 2 * memory}}}
	f.config.Resources.MemoryBytes = memory
	a, b, c := f.channelConfig("a", nil), f.channelConfig("b", nil), f.channelConfig("c", nil)
	hold := func(cfg channel.Config, ino uint64) func() {
		t.Helper()
		release, full, err := cfg.Hold(channel.Held{Dev: 1, Ino: ino, Mount: math.MaxInt64})
		if err != nil || !full {
			t.Fatalf("file %d: full %v, %v; want it held, and its place taken", ino, full, err)
		}
		return release
	}
	releases := []func(){hold(a, 1), hold(a, 2), hold(b, 3)}
	if f.held.sum != 2*memory {
		t.Errorf("two sandboxes' files count as %d bytes, want %d", f.held.sum, 2*memory)
	}
	if _, _, err := c.Hold(channel.Held{Dev: 1, Ino: 4, Mount: math.MaxInt64}); !errors.Is(err, ErrOverloaded) {
		t.Errorf("of a third sandbox: %v, want ErrOverloaded", err)
	}
	for _, release := range releases {
		release()
	}
	if f.held.count != 0 || f.held.sum != 0 {
		t.Errorf("%d answers, %d bytes are left", f.held.count, f.held.sum)
	}
}

// TestAnswersShareMemory: a function whose clients do not read their answers gets at most half of
// the answer memory. The engine refuses or breaks off its further answers; answers of another
// function are not affected.
func TestAnswersShareMemory(t *testing.T) {
	r := open(t)
	r.stop()
	reg := prometheus.NewRegistry()
	r.start(Config{BufferBytes: 8 << 20, Metrics: reg})
	many := func(cfg *image.Config) { cfg.Instances.Concurrency, cfg.Resources.Pids = 64, 128 }
	r.deploy("greedy", many)
	r.deploy("other", many)
	ask := func(name string) (*Response, error) {
		t.Helper()
		return r.Invoke(t.Context(), name, &Request{Path: "/morsels", Query: "300000"})
	}
	held := func() int64 { return r.buffers.Stats().Held }
	var untaken []*Response
	defer func() {
		for _, resp := range untaken {
			_ = resp.Body.Close()
		}
		eventually(t, "all memory to be given back", func() bool { return held() == 0 })
	}()
	for range 64 {
		resp, err := ask("greedy")
		if err != nil {
			if !errors.Is(err, ErrOverloaded) {
				t.Errorf("refused: %v", err)
			}
			continue
		}
		untaken = append(untaken, resp)
	}
	whole, broken := 0, 0
	eventually(t, "its answers to wait", func() bool { return held() > 3<<20 })
	if n := held(); n > 4<<20 {
		t.Errorf("its answers hold %d bytes of 8 MiB", n)
	}
	for range 3 {
		resp, err := ask("other")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != 300_000 || err != nil {
			t.Errorf("the other's answer: %d bytes, %v", n, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, resp := range untaken {
		switch n, err := io.Copy(io.Discard, resp.Body); {
		case err == nil && n == 300_000:
			whole++
		case errors.Is(err, ErrOverloaded):
			broken++
		default:
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, f := range families {
		if f.GetName() == "fre_admission_refused_total" {
			refused = int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	if refused != 64-whole {
		t.Errorf("%d are counted as refused, want %d", refused, 64-whole)
	}
	if whole < 8 || broken == 0 && len(untaken) == 64 {
		t.Errorf("of %d answers %d were whole, %d broken off", len(untaken), whole, broken)
	}
}
