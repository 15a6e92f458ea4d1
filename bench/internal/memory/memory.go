// Package memory measures memory: the proportional set size of processes, the kernel's own memory,
// the available memory and the page cache.
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

// PSS returns the sum of the processes' proportional set sizes, in bytes: a page mapped by n
// address spaces counts 1/n in each (proc_pid_smaps(5)). An address space shared by several of the
// processes counts once; FRE's parked sandboxes share the spawner's. Ended processes count zero.
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

// Available returns the kernel's estimate of the memory for new programs without swapping, in bytes
// (MemAvailable of proc_meminfo(5)). Cached files count as available, mapped or not. The difference
// that processes make is therefore their private memory, including the kernel's memory for them.
func Available() (int64, error) { return kibibytes("/proc/meminfo", "MemAvailable:") }

// Kernel returns the kernel's own memory in bytes: objects, thread stacks, page tables and per-CPU
// data (proc_meminfo(5)). Single pages and vmalloc areas are not counted: without the stacks, they
// were 2 % of the memory of a thousand sandboxes.
func Kernel() (int64, error) {
	const path = "/proc/meminfo"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range []string{"Slab:", "KernelStack:", "PageTables:", "SecPageTables:", "Percpu:"} {
		n, err := find(text, name)
		// The last two fields exist since Linux 6.0 and 4.20.
		if err != nil && (!errors.Is(err, errNoField) || name == "Slab:") {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += n << 10
	}
	return sum, nil
}

// DropObjects frees unused kernel objects kept for reuse: names and inodes (proc_sys_vm(5)).
func DropObjects() error { return os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) }

// DropFiles syncs and then drops all clean pages of the page cache (proc_sys_vm(5)), to give every
// measurement the same cache.
func DropFiles() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0)
}

// Cached returns the size in bytes of the page cache for the files below the directories, each file
// once (cachestat(2), since Linux 6.5).
func Cached(dirs ...string) (int64, error) {
	seen := map[uint64]bool{} // inodes are unique because all directories are on one file system
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

// Beside returns the processes in the pid namespace of pid. For a container's first process, the
// result is all processes of the container.
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
