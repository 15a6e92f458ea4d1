// Package syscount counts the system calls of this process with the kernel's trace events
// (Documentation/trace/events.rst): call [Start], run the code to measure, then call
// [Counter.Stop].
//
// Counting needs root and a kernel built with CONFIG_FTRACE_SYSCALLS, as in distributions. Start
// mounts a private tracefs, attached to no directory. While a Counter runs, every system call on
// the host takes slightly longer. The counts cover all threads of the process, including the
// calls for the request to stop.
package syscount

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
)

// ErrUnsupported means that the kernel has no trace events of system calls, or denies them to
// this process.
var ErrUnsupported = failure.New(failure.Unsupported, "the kernel has no trace events of system calls",
	"run the engine in the host's pid namespace on a kernel built with CONFIG_FTRACE_SYSCALLS, or count with strace -f -c -p PID")

// ErrOverrun means that the kernel's buffers could not hold all calls.
var ErrOverrun = failure.New(failure.Overloaded, "more system calls than the kernel's buffer holds", "count for a shorter time")

// Count is the number of times that the process made one system call.
type Count struct {
	Name  string // as in section 2 of the manual
	Calls int64
}

// bufferKB is the size of the kernel's buffer per CPU, in KiB; a call takes about sixty bytes.
const bufferKB = 8192

// Counter counts from Start to Stop. A Counter is not safe for concurrent use.
type Counter struct {
	tracefs  *os.Root
	name     string // name of the trace instance, relative to the root of tracefs
	instance *os.Root
}

// counters numbers the trace instances of this process.
var counters atomic.Int64

// Start begins to count. The caller must call Stop.
func Start() (c *Counter, err error) {
	const initial = "pid:[4026531836]" // PROC_PID_INIT_INO
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil {
		return nil, err
	} else if ns != initial {
		return nil, fmt.Errorf("%w: the engine is not in the host's pid namespace", ErrUnsupported)
	}
	c = &Counter{name: fmt.Sprintf("instances/fre-%d-%d", os.Getpid(), counters.Add(1))}
	if c.tracefs, err = mount(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if _, err := c.tracefs.Stat("events/syscalls"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err := c.tracefs.Mkdir(c.name, 0o700); err != nil {
		return nil, err
	}
	if c.instance, err = c.tracefs.OpenRoot(c.name); err != nil {
		return nil, err
	}
	for _, w := range [][2]string{
		{"tracing_on", "0"},
		{"buffer_size_kb", strconv.Itoa(bufferKB)},
		{"options/event-fork", "1"}, // also trace future threads
	} {
		if err := c.write(w[0], w[1]); err != nil {
			return nil, err
		}
	}
	if err := c.addThreads(); err != nil {
		return nil, err
	}
	events, err := fs.Glob(c.instance.FS(), "events/syscalls/sys_enter_*")
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if err := c.write(path.Join(e, "enable"), "1"); err != nil {
			return nil, err
		}
	}
	return c, c.write("tracing_on", "1")
}

// mount returns the root of a private tracefs, which the kernel unmounts when the root is
// closed.
func mount() (*os.Root, error) {
	f, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen tracefs: %w", err)
	}
	defer unix.Close(f)
	if err := unix.FsconfigCreate(f); err != nil {
		return nil, fmt.Errorf("create tracefs: %w", err)
	}
	fd, err := unix.Fsmount(f, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("fsmount tracefs: %w", err)
	}
	defer unix.Close(fd)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d/.", fd))
}

// addThreads adds all threads to the trace, and repeats until no new thread appears. Threads
// created by traced threads are traced automatically.
func (c *Counter) addThreads() error {
	for known := 0; ; {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		if len(tasks) == known {
			return nil
		}
		known = len(tasks)
		var ids strings.Builder
		for _, t := range tasks {
			fmt.Fprintf(&ids, "%s ", t.Name())
		}
		if err := c.write("set_event_pid", ids.String()); err != nil {
			return err
		}
	}
}

func (c *Counter) write(name, value string) error {
	f, err := c.instance.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// Stop ends the count and returns the counted calls, most frequent first. If the kernel lost
// calls, the error is [ErrOverrun].
func (c *Counter) Stop() (counts []Count, err error) {
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.write("tracing_on", "0"); err != nil {
		return nil, err
	}
	lost, err := c.lost()
	if err != nil {
		return nil, err
	}
	if lost > 0 {
		return nil, fmt.Errorf("%w: %d were lost", ErrOverrun, lost)
	}
	f, err := c.instance.Open("trace")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(f)
}

// lost returns the number of events that did not fit into the buffers.
func (c *Counter) lost() (lost int64, err error) {
	stats, err := fs.Glob(c.instance.FS(), "per_cpu/cpu*/stats")
	if err != nil {
		return 0, err
	}
	for _, s := range stats {
		b, err := c.instance.ReadFile(s)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if name != "overrun" && name != "dropped events" {
				continue
			}
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("trace: %s: %w", s, err)
			}
			lost += n
		}
	}
	return lost, nil
}

// close removes the trace instance with its events.
func (c *Counter) close() (err error) {
	if c.instance != nil {
		err = errors.Join(c.instance.Close(), c.tracefs.Remove(c.name))
	}
	return errors.Join(err, c.tracefs.Close())
}

// parse counts the events in the text of a trace file, and ignores other lines:
//
//	# tracer: nop
//	             fre-20655   [001] .....  1294.452451: sys_dup2(oldfd: 0xb, newfd: 1)
func parse(r io.Reader) ([]Count, error) {
	calls := map[string]int64{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadSlice('\n')
		if name := callIn(line); name != "" {
			calls[name]++
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the beginning of a line suffices
			_, err = lines.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	counts := make([]Count, 0, len(calls))
	for name, n := range calls {
		counts = append(counts, Count{Name: name, Calls: n})
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Name, b.Name))
	})
	return counts, nil
}

// callIn returns the name of the system call in a line, or "".
func callIn(line []byte) string {
	if bytes.HasPrefix(line, []byte("#")) {
		return ""
	}
	_, call, ok := bytes.Cut(line, []byte(": sys_"))
	if !ok {
		return ""
	}
	name, _, ok := bytes.Cut(call, []byte("("))
	if !ok || len(name) == 0 || bytes.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_'
	}) {
		return ""
	}
	return string(name)
}
