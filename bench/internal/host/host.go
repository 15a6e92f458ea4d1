// Package host describes the machine on which a benchmark ran.
package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Info describes the machine and the programs compared.
type Info struct {
	Time     time.Time         `json:"time"`
	Kernel   string            `json:"kernel"`
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	Cgroup   string            `json:"cgroup"` // "v1", "v2", "hybrid"
	Go       string            `json:"go"`
	Programs map[string]string `json:"programs"` // name → first line of the version
}

// color matches the escape sequences that Maven prints even into a pipe.
var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Describe asks the kernel and the programs. programs maps a name to the command line that prints
// the version; missing programs are left out.
func Describe(ctx context.Context, programs map[string][]string) (Info, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Info{}, fmt.Errorf("uname: %w", err)
	}
	cpu, err := cpuModel()
	if err != nil {
		return Info{}, err
	}
	cgroup, err := cgroupVersion()
	if err != nil {
		return Info{}, err
	}
	info := Info{
		Time: time.Now().UTC().Truncate(time.Second), Kernel: unix.ByteSliceToString(u.Release[:]),
		CPU: cpu, CPUs: runtime.NumCPU(), Cgroup: cgroup, Go: runtime.Version(), Programs: map[string]string{},
	}
	for name, argv := range programs {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Info{}, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
		}
		first, _, _ := strings.Cut(string(out), "\n")
		info.Programs[name] = strings.TrimSpace(color.ReplaceAllString(first, ""))
	}
	return info, nil
}

func cpuModel() (string, error) {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value), nil
		}
	}
	return runtime.GOARCH, lines.Err() // arm64 has no model name
}

// cgroupVersion returns the cgroup layout by the mounted file systems: "v1", "v2", "hybrid" if both
// are mounted, or "none".
func cgroupVersion() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	v1, v2 := false, false
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 {
			v1 = v1 || f[2] == "cgroup"
			v2 = v2 || f[2] == "cgroup2"
		}
	}
	switch {
	case v1 && v2:
		return "hybrid", nil
	case v2:
		return "v2", nil
	case v1:
		return "v1", nil
	}
	return "none", nil
}

// Markdown returns one paragraph about the machine.
func (i Info) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; kernel %s, cgroup %s; %d × %s; %s", i.Time.Format("2006-01-02 15:04 MST"), i.Kernel, i.Cgroup, i.CPUs, i.CPU, i.Go)
	for _, name := range slices.Sorted(maps.Keys(i.Programs)) {
		fmt.Fprintf(&b, "; %s: %s", name, i.Programs[name])
	}
	b.WriteString(".")
	return b.String()
}
