package memory_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/memory"
)

// child is a process that runs during the test.
func child(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return cmd.Process.Pid
}

func TestTree(t *testing.T) {
	pid := child(t)
	tree, err := memory.Tree(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(tree, os.Getpid()) || !slices.Contains(tree, pid) || slices.Contains(tree, os.Getppid()) {
		t.Errorf("got %v, want %d and its child %d without its parent %d", tree, os.Getpid(), pid, os.Getppid())
	}
}

func TestBeside(t *testing.T) {
	pid := child(t)
	all, err := memory.Beside(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(all, pid) || !slices.Contains(all, os.Getpid()) {
		t.Errorf("got %v, want %d and %d in it", all, pid, os.Getpid())
	}
}

// The PSS of a process includes newly used memory.
func TestPSS(t *testing.T) {
	before, err := memory.PSS([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	const held = 64 << 20
	block := make([]byte, held)
	for i := 0; i < held; i += os.Getpagesize() {
		block[i] = 1
	}
	after, err := memory.PSS([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	if block[0] != 1 || after-before < held*9/10 {
		t.Errorf("%d bytes more after %d were touched", after-before, held)
	}
	if twice, err := memory.PSS([]int{os.Getpid(), os.Getpid()}); err != nil || twice > after+held/2 {
		t.Errorf("the same memory twice: got %d, error %v, want about %d", twice, err, after)
	}
	if _, err := memory.PSS([]int{1 << 30}); err != nil {
		t.Errorf("a process that is gone: %v", err)
	}
}

func TestAvailable(t *testing.T) {
	if n, err := memory.Available(); err != nil || n <= 0 {
		t.Errorf("got %d, error %v", n, err)
	}
}

// The kernel's memory includes new page tables. The measure covers the whole machine, and other
// processes free memory at the same time, so the test repeats until the growth shows.
func TestKernel(t *testing.T) {
	const (
		area  = 32 << 30
		table = 2 << 20 // the area of a page of a table
		held  = area / table * 4096
	)
	grown := func() int64 {
		t.Helper()
		before, err := memory.Kernel()
		if err != nil {
			t.Fatal(err)
		}
		block, err := unix.Mmap(-1, 0, area, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Munmap(block); err != nil {
				t.Error(err)
			}
		}()
		if err := unix.Madvise(block, unix.MADV_NOHUGEPAGE); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < area; i += table { // reads the page of zeros
			if block[i] != 0 {
				t.Fatal("the page of zeros has another byte")
			}
		}
		after, err := memory.Kernel()
		if err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	most := int64(0)
	for range 20 {
		if most = max(most, grown()); most >= held*3/4 {
			return
		}
	}
	t.Errorf("%d bytes more at most, want about %d", most, held)
}

func TestCached(t *testing.T) {
	dir := t.TempDir()
	page := int64(os.Getpagesize())
	name := filepath.Join(dir, "a")
	if err := errors.Join(os.WriteFile(name, make([]byte, 3*page+1), 0o644), os.Link(name, filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	if got, err := memory.Cached(dir, dir); err != nil || got != 4*page {
		t.Errorf("just written: got %d, error %v; want four pages", got, err)
	}
}
