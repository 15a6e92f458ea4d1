package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// within only ends a hanging test. With a slow disk TestUnwatched takes minutes: each of its
// directories is a write of the record.
const within = 10 * time.Minute

// box is an inbox and the files it offered.
type box struct {
	t      *testing.T
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	asked int // number of offers, with refused ones
	found []*File
	fails error
	holds chan struct{} // if not nil, offers wait until it is closed
}

func open(t *testing.T, pattern string) *box {
	t.Helper()
	b := &box{t: t, cfg: Config{Dir: t.TempDir(), Pattern: pattern, Record: filepath.Join(t.TempDir(), "r", "record"), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Owner: "red", Instances: NewInstances(0, 8)}}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *box) start() {
	ctx, cancel := context.WithCancel(b.t.Context())
	b.cancel, b.done = cancel, make(chan struct{})
	go func() {
		defer close(b.done)
		if err := Watch(ctx, b.cfg, b.offer); err != nil {
			b.t.Error(err)
		}
	}()
}

func (b *box) stop() {
	b.cancel()
	<-b.done
}

func (b *box) offer(ctx context.Context, f *File) error {
	b.mu.Lock()
	b.asked++
	holds := b.holds
	b.mu.Unlock()
	if holds != nil {
		select {
		case <-holds:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails == nil {
		b.found = append(b.found, f)
	}
	return b.fails
}

func (b *box) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = err
}

func (b *box) paths() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, f := range b.found {
		all = append(all, f.Path)
	}
	return all
}

// wants waits until exactly these files were offered.
func (b *box) wants(paths ...string) {
	b.t.Helper()
	b.until(func() error {
		missing := map[string]int{}
		for _, p := range paths {
			missing[p]++
		}
		for _, p := range b.paths() {
			missing[p]--
		}
		maps.DeleteFunc(missing, func(_ string, n int) bool { return n == 0 })
		if len(missing) > 0 {
			return fmt.Errorf("offers missing, or superfluous if negative: %v", missing)
		}
		return nil
	})
}

func (b *box) until(what func() error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), within)
	defer cancel()
	if err := testdaemon.Until(ctx, what); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) offers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// untilAsked waits for the first offer.
func (b *box) untilAsked() {
	b.t.Helper()
	b.until(func() error {
		if b.offers() == 0 {
			return errors.New("nothing was offered")
		}
		return nil
	})
}

func (b *box) path(name string) string { return filepath.Join(b.cfg.Dir, name) }

func (b *box) mkdir(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(b.path(name), 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *box) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) rename(from, to string) {
	b.t.Helper()
	if err := os.Rename(b.path(from), b.path(to)); err != nil {
		b.t.Fatal(err)
	}
}

// The inbox offers a file once it is complete: written and closed, renamed or linked into place, or
// moved in with its directory. A changed file is offered again, a file moved away and back is not.
func TestComplete(t *testing.T) {
	b := open(t, "inbox/*.csv")
	b.mkdir("inbox")
	f, err := os.Create(b.path("inbox/a.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("half"); err != nil {
		t.Fatal(err)
	}
	b.write("inbox/b.csv", "whole")
	b.write("inbox/c.txt", "another kind")
	b.wants("inbox/b.csv") // but not the older a.csv, which is still open
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b.wants("inbox/a.csv", "inbox/b.csv")
	b.write("c.part", "renamed")
	b.rename("c.part", "inbox/c.csv")
	b.wants("inbox/a.csv", "inbox/b.csv", "inbox/c.csv")
	b.write("d.part", "linked")
	if err := os.Link(b.path("d.part"), b.path("inbox/d.csv")); err != nil {
		t.Fatal(err)
	}
	b.wants("inbox/a.csv", "inbox/b.csv", "inbox/c.csv", "inbox/d.csv")
	b.rename("inbox/d.csv", "d.away")
	b.rename("d.away", "inbox/d.csv")
	b.write("inbox/a.csv", "changed")
	b.wants("inbox/a.csv", "inbox/a.csv", "inbox/b.csv", "inbox/c.csv", "inbox/d.csv")
	for _, f := range b.found {
		if f.Path == "inbox/c.csv" && (f.Size != 7 || time.Since(f.Modified) > time.Hour) {
			t.Errorf("file %+v", f)
		}
	}
}

// A lease on another user's file takes CAP_LEASE: without the capability, the log says so.
func TestNoLease(t *testing.T) {
	cfg := Config{Dir: "/etc", Pattern: "passwd", Record: filepath.Join(t.TempDir(), "record"), Instances: NewInstances(0, 1)} // owned by root
	if os.Getuid() == 0 {
		cfg.Dir = t.TempDir()
		file := filepath.Join(cfg.Dir, cfg.Pattern)
		if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Chown(file, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		runtime.LockOSThread() // the thread ends with the test
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&h, &caps[0]); err != nil {
			t.Fatal(err)
		}
		caps[0].Effective &^= 1 << unix.CAP_LEASE
		if err := unix.Capset(&h, &caps[0]); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var said strings.Builder
	cfg.Log = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		defer cancel()
		return said.Write(p)
	}), nil))
	err := Watch(ctx, cfg, func(_ context.Context, f *File) error {
		t.Errorf("offered %q", f.Path)
		return nil
	})
	if err != nil || !strings.Contains(said.String(), "lease: "+unix.EACCES.Error()) {
		t.Errorf("the log says %q, %v", said.String(), err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// After a restart the inbox offers each new file once, and no file that it offered before.
func TestRestart(t *testing.T) {
	b := open(t, "**/x")
	b.mkdir("a/b")
	b.write("x", "1")
	b.write("a/b/x", "2")
	b.wants("a/b/x", "x")
	b.stop()
	b.mkdir("c")
	b.write("c/x", "3")
	record, err := os.OpenFile(b.cfg.Record, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := record.WriteString("torn by a cra"); err != nil {
		t.Fatal(err)
	}
	if err := record.Close(); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.wants("a/b/x", "c/x", "x")
}

// The inbox offers a refused file again.
func TestRefused(t *testing.T) {
	b := open(t, "*")
	b.fail(errors.New("full"))
	for i := range 100 {
		b.write(fmt.Sprint(i), "x")
	}
	b.untilAsked()
	b.fail(nil)
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprint(i))
	}
	b.wants(all...)
}

// Constant writes in the directory make the inbox neither repeat a refused offer nor scan before
// the time is due.
func TestDue(t *testing.T) {
	b := open(t, "*/x")
	b.mkdir("a", "moves")
	b.fail(errors.New("full"))
	began := time.Now()
	b.write("a/x", "x")
	b.untilAsked()
	for range 2000 {
		b.write("a/y", "x")
		b.rename("moves", "moved")
		b.rename("moved", "moves")
	}
	offers := b.offers()
	if most := int(time.Since(began)/later) + 4; offers > most { // a/x itself causes two or three
		t.Errorf("offered %d times in %v, want at most %d", offers, time.Since(began), most)
	}
	b.fail(nil)
	b.wants("a/x")
}

// The inbox follows no link out of the directory and offers regular files only. File names may hold
// any bytes.
func TestHostile(t *testing.T) {
	b := open(t, "**")
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.mkdir("real", "moved")
	for from, to := range map[string]string{"link": filepath.Join(outside, "secret"), "dirlink": outside, "inside": "real", "up": "..", "self": "."} {
		if err := os.Symlink(to, b.path(from)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(b.path("fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.write("real/line\nbreak", "x")
	b.write("real/\xff\xfe", "x")
	b.wants("real/line\nbreak", "real/\xff\xfe")
	// A link takes the place of a watched directory.
	b.rename("moved", "moved2")
	if err := os.Symlink(outside, b.path("moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "later"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.write("moved2/y", "x")
	b.wants("moved2/y", "real/line\nbreak", "real/\xff\xfe")
	// Directories come and go quickly under a name that then gets a file.
	for range 200 {
		b.mkdir("quick/deep")
		if err := os.RemoveAll(b.path("quick")); err != nil {
			t.Fatal(err)
		}
	}
	b.mkdir("quick/deep")
	b.write("quick/deep/z", "x")
	b.wants("moved2/y", "quick/deep/z", "real/line\nbreak", "real/\xff\xfe")
}

// The inbox offers each of thousands of files once, with more directories than it can watch.
func TestMany(t *testing.T) {
	t.Parallel()
	b := open(t, "**/*")
	var want []string
	for i := range 5000 {
		want = append(want, fmt.Sprintf("f%d", i))
		b.write(want[i], "x")
	}
	for i := range maxDirs + 100 {
		dir := fmt.Sprintf("d%d", i)
		b.mkdir(dir)
		if i%20 == 0 {
			want = append(want, dir+"/f")
			b.write(dir+"/f", "x")
		}
	}
	b.wants(want...)
}

// With more directories than it can watch, the inbox scans all of them, even if watched directories
// are busy.
func TestUnwatched(t *testing.T) {
	t.Parallel()
	b := open(t, "**/x")
	var want []string
	for i := range maxDirs + 100 {
		dir := fmt.Sprintf("d%d", i)
		b.mkdir(dir)
		want = append(want, dir+"/x")
	}
	b.write(want[0], "x")
	b.wants(want[0])
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	busy.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			if err := os.WriteFile(b.path(fmt.Sprintf("busy%d", i%2)), nil, 0o644); err != nil {
				t.Error(err)
			}
			<-tick.C
		}
	})
	for _, p := range want[1:] {
		b.write(p, "x")
	}
	b.wants(want...)
}

// A file whose event arrives when the file is due for another look is offered once.
func TestOfferedOnce(t *testing.T) {
	b := &box{t: t, cfg: Config{Dir: t.TempDir(), Pattern: "*", Record: filepath.Join(t.TempDir(), "record"), Log: slog.New(slog.DiscardHandler), Owner: "red", Instances: NewInstances(0, 1)}}
	b.write("a", "x")
	w, err := newWatcher(b.cfg, b.offer)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	w.fresh["a"], w.later["a"] = true, true
	if err := w.turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wants("a")
}

// After an overflow, of the kernel's queue or of the inbox's own, the inbox scans the whole
// directory.
func TestOverflow(t *testing.T) {
	b := open(t, "*.csv")
	holds := make(chan struct{})
	b.mu.Lock()
	b.holds = holds
	b.mu.Unlock()
	b.write("first.csv", "x")
	b.untilAsked() // so the queue has no reader now
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range most + 1 {
		b.write(fmt.Sprint(i%2), "") // two equal events in a row would be one
	}
	b.write("last.csv", "x")
	close(holds)
	b.wants("first.csv", "last.csv")

	w := &watcher{fresh: map[string]bool{}, dirs: map[int]string{1: "a"}, known: map[string]int{"a": 1}}
	for i := range maxPaths + 1 {
		w.events(encode(1, unix.IN_CLOSE_WRITE, fmt.Sprint(i)))
	}
	if !w.whole || len(w.fresh) != maxPaths {
		t.Errorf("%d paths to look at, whole %v", len(w.fresh), w.whole)
	}
}

func encode(watch int32, mask uint32, name string) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(watch))
	b = binary.NativeEndian.AppendUint32(b, mask)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	return append(b, name...)
}

// TestReaches: A directory is watched only if the pattern can match below it.
func TestReaches(t *testing.T) {
	for _, c := range []struct {
		pattern, dir string
		want         bool
	}{
		{"inbox/*.csv", "", true},
		{"inbox/*.csv", "inbox", true},
		{"inbox/*.csv", "outbox", false},
		{"inbox/*.csv", "inbox/a", false},
		{"a/*/c", "a/b", true},
		{"a/*/c", "a/b/c", false},
		{"**/x", "a/b/c", true},
		{"a/**/x", "a/b/c", true},
		{"a/**/x", "b", false},
		{"**", strings.Repeat("d/", maxDepth) + "d", false},
	} {
		w := &watcher{pattern: strings.Split(c.pattern, "/")}
		if got := w.reaches(c.dir); got != c.want {
			t.Errorf("%s reaches %q: %v", c.pattern, c.dir, got)
		}
	}
}

// FuzzEvents: The parser of inotify events reads no byte beyond the buffer.
func FuzzEvents(f *testing.F) {
	f.Add(encode(1, unix.IN_CLOSE_WRITE, "a\x00\x00\x00"))
	f.Add(append(encode(-1, unix.IN_Q_OVERFLOW, ""), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for _, e := range parseEvents(b) {
			n += unix.SizeofInotifyEvent + len(e.name)
			if strings.ContainsRune(e.name, 0) {
				t.Errorf("name %q", e.name)
			}
		}
		if n > len(b) {
			t.Errorf("%d bytes of events in %d", n, len(b))
		}
	})
}
