// Package memory says what processes and the machine hold: the proportional
// set size of processes, as the kernel counts it, what the kernel holds itself,
// and what is available.
package memory

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// PSS is the sum of the processes' proportional set sizes, in bytes: of a page
// that n address spaces map, each counts an nth (proc_pid_smaps(5)). An address
// space that several of the processes have in common, as FRE's parked shells
// have with their spawner, counts once. Processes that have ended count nothing.
func PSS(pids []int) (int64, error) {
	var sum int64
	var counted []int
	for _, pid := range pids {
		known, err := sharesMemory(pid, counted)
		if err != nil {
			return 0, err
		}
		if known {
			continue
		}
		n, err := kibibytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
		if err != nil && !gone(err) {
			return 0, err
		}
		sum += n
		counted = append(counted, pid)
	}
	return sum, nil
}

func sharesMemory(pid int, others []int) (bool, error) {
	for _, other := range others {
		same, err := linux.SameMemory(pid, other)
		if err != nil && !gone(err) {
			return false, err
		}
		if same {
			return true, nil
		}
	}
	return false, nil
}

// Available is what the kernel estimates new programs can have without swapping
// (MemAvailable of proc_meminfo(5)), in bytes. Cached files count as available,
// mapped or not: of what processes hold it shows what is theirs alone, the
// kernel's memory included.
func Available() (int64, error) { return kibibytes("/proc/meminfo", "MemAvailable:") }

// Kernel is what the kernel holds for itself, in bytes: its objects, stacks of
// threads, page tables and what it has once per CPU (proc_meminfo(5)). Single
// pages and what vmalloc gives are not counted: without the stacks they were 2 %
// of what a thousand sandboxes held.
func Kernel() (int64, error) {
	const path = "/proc/meminfo"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range []string{"Slab:", "KernelStack:", "PageTables:", "SecPageTables:", "Percpu:"} {
		n, err := find(text, name)
		// Linux has had the last two since 6.0 and 4.20.
		if err != nil && (!errors.Is(err, errNoField) || name == "Slab:") {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += n << 10
	}
	return sum, nil
}

// DropObjects frees the kernel's objects that nothing uses and that are only kept
// because they may be asked for again: names and inodes (proc_sys_vm(5)).
func DropObjects() error { return os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) }

// DropFiles empties the page cache of what is clean, which is everything after
// a sync (proc_sys_vm(5)), so that what is read next is cached alike.
func DropFiles() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0)
}

// Cached is what the page cache holds of the files below the directories, each file
// once, in bytes (cachestat(2), which Linux has since 6.5).
func Cached(dirs ...string) (int64, error) {
	seen := map[uint64]bool{} // inodes: the directories are on one file system
	var sum int64
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil || seen[st.Ino] {
				return err
			}
			seen[st.Ino] = true
			var held unix.Cachestat_t
			if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &held, 0); err != nil {
				return fmt.Errorf("cachestat %s: %w", path, err)
			}
			sum += int64(held.Cache) * int64(os.Getpagesize())
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// Beside returns the processes in the same pid namespace as pid: where that is
// a container's first process, all of its own.
func Beside(pid int) ([]int, error) {
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, err
	}
	all, err := processes()
	return slices.DeleteFunc(all, func(p int) bool {
		got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p))
		return err != nil || got != want
	}), err
}

// Tree returns pid and all its descendants.
func Tree(pid int) ([]int, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, p := range all {
		parent, err := field(fmt.Sprintf("/proc/%d/status", p), "PPid:")
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		children[int(parent)] = append(children[int(parent)], p)
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

func processes() ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	pids := make([]int, len(dirs))
	for i, dir := range dirs {
		if pids[i], err = strconv.Atoi(filepath.Base(dir)); err != nil {
			return nil, err
		}
	}
	return pids, nil
}

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// kibibytes reads a line "NAME: 123 kB" of a file in /proc and returns bytes.
func kibibytes(path, name string) (int64, error) {
	n, err := field(path, name)
	return n << 10, err
}

// field reads the number in a line "NAME: 123" of a file in /proc.
func field(path, name string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := find(text, name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

var errNoField = errors.New("no such field")

func find(text []byte, name string) (int64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 1 && f[0] == name {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s %w", name, errNoField)
}
