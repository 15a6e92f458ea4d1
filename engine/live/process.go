package live

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// Process is one process of a sandbox.
type Process struct {
	PID     int // on the host
	Parent  int // on the host; the first process has the spawner for parent
	UID     int // on the host
	Started time.Time
	CPU     time.Duration // user and system time so far
	Command string        // with arguments, up to 4 KiB; "[name]" without arguments
}

// ticks is the number of units in /proc/PID/stat per second: USER_HZ is 100 on all architectures
// that FRE runs on (time(7)).
const ticks = 100

// maxCommand is how many bytes of a process's arguments are read: thousands of forks may share
// megabytes of arguments at little cost to their sandbox.
const maxCommand = 4 << 10

// readProcess reads /proc/PID (proc_pid_stat(5), proc_pid_cmdline(5)). Blanks replace control
// characters in the name and arguments, which the process chooses.
func readProcess(pid int, booted time.Time) (Process, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return Process{}, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Process{}, err
	}
	p, name, err := parseStat(string(text), booted)
	if err != nil {
		return Process{}, fmt.Errorf("%s/stat: %w", dir, err)
	}
	p.PID, p.UID = pid, int(st.Uid)
	args, err := readSome(dir+"/cmdline", maxCommand)
	if err != nil {
		return Process{}, err
	}
	p.Command = strings.TrimSpace(strings.Map(printable, string(args)))
	if p.Command == "" {
		p.Command = "[" + strings.Map(printable, name) + "]"
	}
	return p, nil
}

// readSome reads the first limit bytes of a file.
func readSome(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// parseStat parses "PID (NAME) STATE PPID …"; NAME may contain any character.
func parseStat(text string, booted time.Time) (p Process, name string, err error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Process{}, "", errors.New("no name in parentheses")
	}
	fields := strings.Fields(text[end+1:]) // from field 3, the state, on
	number := func(n int) int64 {
		if n-3 >= len(fields) {
			err = errors.Join(err, fmt.Errorf("no field %d", n))
			return 0
		}
		v, e := strconv.ParseInt(fields[n-3], 10, 64)
		err = errors.Join(err, e)
		return v
	}
	p.Parent = int(number(4))
	p.CPU = time.Duration(number(14)+number(15)) * (time.Second / ticks)
	p.Started = booted.Add(time.Duration(number(22)) * (time.Second / ticks))
	return p, text[open+1 : end], err
}

// processesOf describes processes, without the ended ones.
func processesOf(ids []int) ([]Process, error) {
	booted := time.Now().Add(-linux.Boottime())
	out := make([]Process, 0, len(ids))
	for _, pid := range ids {
		p, err := readProcess(pid, booted)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
