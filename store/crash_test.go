package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is the child of the crash tests when FRE_STORE_CRASH names a store.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FRE_STORE_CRASH"); dir != "" {
		child := crashChild
		if os.Getenv("FRE_STORE_REPAIR") != "" {
			child = repairChild
		}
		if err := child(dir, os.Getenv("FRE_STORE_FAILPOINT")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// crashChild puts and removes images until the parent kills it, or until it kills itself at the
// failpoint "name/count". It prints each removal before the call, and each other step once the
// store has acknowledged it.
func crashChild(dir, failpoint string) error {
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.disk.failAt = killAt(failpoint)
	ctx := context.Background()
	run, err := strconv.Atoi(os.Getenv("FRE_STORE_RUN"))
	if err != nil {
		return err
	}
	for i := run * 1000; ; i++ { // keys never repeat: untagged names stay untagged
		key := strconv.Itoa(i)
		w, err := s.Create()
		if err != nil {
			return err
		}
		for n := range 20 {
			content := fmt.Sprintf("file %d of %d", n, i%3*n)
			if err := w.File(fmt.Sprintf("d%d/f%d", n%3, n), 0o644, testTime, strings.NewReader(content)); err != nil {
				return err
			}
		}
		if err := w.File("own", 0o644, testTime, strings.NewReader(key)); err != nil {
			return err
		}
		release := s.Hold()
		d, err := w.Commit(ctx)
		if err != nil {
			return err
		}
		if err := s.PutPart(ctx, key, Part{Kind: "pip", Name: key, Tree: d}); err != nil {
			return err
		}
		img, err := s.PutImage(ctx, testManifest("image", key, d))
		if err != nil {
			return err
		}
		release()
		fmt.Println("put", img.Digest)
		fmt.Println("generation", s.Changes().Generation())
		// One name moves from image to image; the other is removed and stays away.
		if _, err := s.Tag(ctx, img.Digest, "moving"); err != nil {
			return err
		}
		fmt.Println("tag", img.Digest)
		if _, err := s.Tag(ctx, img.Digest, "passing:"+key); err != nil {
			return err
		}
		if err := s.Untag(ctx, "passing:"+key); err != nil {
			return err
		}
		fmt.Println("untag", "passing:"+key)
		if err := s.PutFunction(ctx, Function{Name: "f", Image: img.Digest}); err != nil {
			return err
		}
		fmt.Println("function", img.Digest)
		if i%3 == 0 {
			continue
		}
		for _, old := range s.Images() {
			if old.Digest != img.Digest {
				fmt.Println("removing", old.Digest)
				if err := s.RemoveImage(ctx, old.Digest); err != nil {
					return err
				}
				break
			}
		}
	}
}

// killAt kills the process at the failpoint "name/count".
func killAt(failpoint string) func(point string) error {
	name, count, _ := strings.Cut(failpoint, "/")
	left, _ := strconv.Atoi(count)
	return func(point string) error {
		if point == name {
			if left--; left <= 0 {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL) // the parent checks for the signal
				select {}                                // until the signal arrives
			}
		}
		return nil
	}
}

// repairChild repairs the store in dir until it kills itself at the failpoint.
func repairChild(dir, failpoint string) error {
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.disk.failAt = killAt(failpoint)
	_, err = s.Check(context.Background(), CheckOptions{Repair: true})
	return errors.Join(err, s.Close())
}

// copyFile copies a file with its mode and time.
func copyFile(t *testing.T, to, from string) {
	t.Helper()
	st, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.WriteFile(to, b, 0o600), os.Chmod(to, st.Mode()), os.Chtimes(to, st.ModTime(), st.ModTime())} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashInRepair: The next repair completes a repair that was killed half way.
func TestCrashInRepair(t *testing.T) {
	for _, failpoint := range []string{
		"before repair/1", "before repair/2", "before repair/3", "repaired/1", "repaired/2", "repaired/3", "object half repaired/1",
		"image row removed/1", "parts swept/1", "before commit/1", "after commit/1",
	} {
		t.Run(failpoint, func(t *testing.T) {
			t.Parallel()
			s, img := damagedStore(t, func(s *Store, img *Image, object func(string) string) {
				own := filepath.Join(s.Rootfs(img.Digest), "own/file")
				copyFile(t, object("own")+".1", object("own")) // a sound copy, so that the repair writes the object
				for _, err := range []error{
					os.Truncate(object("own"), 1), os.Remove(own), os.RemoveAll(filepath.Join(s.Rootfs(img.Digest), "usr")),
				} {
					if err != nil {
						t.Fatal(err)
					}
				}
				flip(t, object("shared"))
			})
			dir := s.disk.dir
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "FRE_STORE_CRASH="+dir, "FRE_STORE_REPAIR=1", "FRE_STORE_FAILPOINT="+failpoint)
			out, err := cmd.CombinedOutput()
			if state, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !state.Signaled() {
				t.Fatalf("child ended by itself: %v\n%s", err, out)
			}
			s = openStore(t, dir)
			checkAll(t, s, CheckOptions{Repair: true})
			if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
				t.Errorf("after the repair: %q", found)
			}
			// The content "shared" is lost, and both images with it.
			if _, err := s.Image(string(img.Digest)); !errors.Is(err, fs.ErrNotExist) || len(s.Images()) > 0 {
				t.Errorf("%d images, %v", len(s.Images()), err)
			}
			if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
				t.Error(err)
			}
			checkNothingLoose(t, s)
		})
	}
}

// crash runs a child and returns once the child is dead. After each line of the child, run asks
// kill, if not nil, whether to kill the child now. crash records the images that must exist and the
// images that may be gone.
type crash struct {
	have     map[Digest]bool
	removing Digest
	function Digest // last acknowledged
	tagged   Digest // the image last acknowledged under the name moving
	untagged string // the last removed name
	lines    int    // printed by the last child
	runs     int    // number of earlier children

	generation uint64 // the last generation given out
}

func (c *crash) run(t *testing.T, dir, failpoint string, kill func(line int) bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "FRE_STORE_CRASH="+dir, "FRE_STORE_FAILPOINT="+failpoint, "FRE_STORE_RUN="+strconv.Itoa(c.runs))
	c.runs++
	stderr := new(strings.Builder)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.removing, c.lines = "", 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		what, d, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "put":
			c.have[Digest(d)] = true
		case "tag":
			c.tagged = Digest(d)
		case "untag":
			c.untagged = d
		case "function":
			c.function = Digest(d)
		case "generation":
			if g, err := strconv.ParseUint(d, 10, 64); err != nil || g <= c.generation {
				t.Errorf("generation %s after %d: %v", d, c.generation, err)
			} else {
				c.generation = g
			}
		case "removing":
			c.removing = Digest(d)
			delete(c.have, Digest(d))
		}
		if c.lines++; kill != nil && kill(c.lines) {
			_ = cmd.Process.Kill()
		}
	}
	err = cmd.Wait()
	if state, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !state.Signaled() {
		t.Fatalf("child ended by itself: %v\n%s", err, stderr)
	}
}

// check opens the store and compares it with the records.
func (c *crash) check(t *testing.T, dir string) {
	t.Helper()
	s, err := Open(dir, testLog(t))
	if err != nil {
		t.Fatalf("Open after a crash: %v", err)
	}
	defer func() { _ = s.Close() }()
	checkStore(t, s)
	if g := s.Changes().Generation(); g < c.generation {
		t.Errorf("generation %d after a crash, %d was given out", g, c.generation)
	}
	there := make(map[Digest]bool)
	for _, img := range s.Images() {
		there[img.Digest] = true
	}
	for d := range c.have {
		if !there[d] {
			t.Errorf("image %s was acknowledged and is lost", d)
		}
	}
	c.have = there
	c.checkMoving(t, s)
	if _, err := s.Image(c.untagged); c.untagged != "" && err == nil {
		t.Errorf("the name %s was taken away and is there", c.untagged)
	}
	if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
		t.Errorf("Check: %q", found)
	}
	f, err := s.Function("f")
	if c.function != "" && err != nil {
		t.Errorf("function was acknowledged and is lost: %v", err)
	}
	if err == nil && !there[f.Image] {
		t.Errorf("function's image %s is lost", f.Image)
	}
	// The store still works: a sweep leaves exactly the files of its images.
	if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
		t.Errorf("Sweep: %v", err)
	}
	checkStore(t, s)
	checkNothingLoose(t, s)

	// A rebuilt database shows the same images.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, dbName)); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir, testLog(t)); err != nil {
		t.Fatalf("Open after a crash and without the database: %v", err)
	}
	for _, img := range s.Images() {
		if !there[img.Digest] {
			t.Errorf("image %s is there only without the database", img.Digest)
		}
		delete(there, img.Digest)
	}
	c.have = make(map[Digest]bool)
	for _, img := range s.Images() {
		c.have[img.Digest] = true
	}
	if len(there) > 0 {
		t.Errorf("without the database are lost: %v", there)
	}
	c.checkMoving(t, s)
	if _, err := s.Function("f"); c.function != "" && err != nil {
		t.Errorf("without the database a function is lost: %v", err)
	}
}

// checkMoving checks the image of the name moving: the acknowledged one, or the newest, because a
// later Tag may have taken effect without an acknowledgement. This image is the new promise: the
// next child may die before its Tag.
func (c *crash) checkMoving(t *testing.T, s *Store) {
	t.Helper()
	if c.tagged == "" {
		return
	}
	img, err := s.Image("moving")
	if err != nil || img.Digest != c.tagged && img != s.Images()[0] {
		t.Errorf("the name moving was acknowledged for %s and means %v, %v", c.tagged, img, err)
		return
	}
	c.tagged = img.Digest
}

// TestCrashAtFailpoints: After a crash at each step of a change an image is whole or absent, and
// all acknowledged changes are present.
func TestCrashAtFailpoints(t *testing.T) {
	for _, point := range []string{
		"tree synced", "objects linked", "tree renamed", "image synced", "image renamed", "before commit", "after commit",
		"image row removed", "parts swept", "trees swept", "objects swept",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := crash{have: make(map[Digest]bool)}
			for _, count := range []string{"1", "2", "7"} {
				c.run(t, dir, point+"/"+count, nil)
				c.check(t, dir)
			}
		})
	}
}

// TestCrashAnywhere: After a crash at any moment an image is whole or absent, and all acknowledged
// changes are present.
func TestCrashAnywhere(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	c := crash{have: make(map[Digest]bool)}
	for range 12 {
		// The test chooses the line; the scheduler decides at which point of the following work the
		// signal arrives.
		at := 1 + r.IntN(25)
		c.run(t, dir, "", func(line int) bool {
			if line != at {
				return false
			}
			for range r.IntN(2000) {
				unix.Getppid()
			}
			return true
		})
		c.check(t, dir)
	}
}
