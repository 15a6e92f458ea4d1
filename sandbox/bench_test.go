package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// The benchmarks measure from the call of Start to the first statement of a static Go program,
// which reads the nanosecond clock. os/exec of the same file is the comparison.

type starter func(tb testing.TB, stdout *os.File) error

// missed counts the starts of an unintended kind, because a pool was empty.
var missed atomic.Int64

// starters are the compared kinds of start, each with a host of its own, and os/exec.
func starters(b *testing.B) map[string]starter {
	b.Helper()
	fretest.RequireRoot(b)
	root := fretest.Rootfs(b)
	all := map[string]starter{
		"bare": func(tb testing.TB, stdout *os.File) error {
			tb.Helper()
			cmd := exec.Command(filepath.Join(root, "bin/prog"), "clock")
			cmd.Stdout = stdout
			if err := cmd.Start(); err != nil {
				return err
			}
			tb.Cleanup(func() { _ = cmd.Wait() })
			return nil
		},
	}
	for _, kind := range []StartKind{StartSpawner, StartBare, StartAttached} {
		cfg := Config{Dir: b.TempDir(), PoolSize: 256}
		if kind == StartSpawner {
			cfg.Parked = -1
		}
		h, err := Open(cfg) // no leak check: the check would take the pools of the other hosts for leaks
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = h.Close() })
		all[string(kind)] = func(tb testing.TB, stdout *os.File) error {
			tb.Helper()
			spec := prog(root, "clock")
			spec.Stdout, spec.Pin, spec.Repeats = stdout, true, kind == StartAttached
			s, err := h.Start(tb.Context(), spec)
			if err == nil {
				if s.Kind() != kind {
					missed.Add(1)
				}
				tb.Cleanup(func() { <-s.Done() })
			}
			return err
		}
	}
	return all
}

// startClock returns the time from now until the program's first instruction.
func startClock(tb testing.TB, start starter) time.Duration {
	tb.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		tb.Error(err)
		return 0
	}
	r, w := os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
	defer r.Close()
	began := time.Now()
	err := start(tb, w)
	_ = w.Close()
	if err != nil {
		tb.Error(err)
		return 0
	}
	buf := make([]byte, 64)
	n, _ := r.Read(buf)
	clock, err := strconv.ParseInt(string(bytes.TrimSpace(buf[:n])), 10, 64)
	if err != nil {
		tb.Errorf("clock: %v", err)
	}
	return time.Duration(clock - began.UnixNano())
}

func quantiles(b *testing.B, name string, times []time.Duration) {
	b.Helper()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), name+"-p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), name+"-p99-µs")
}

// BenchmarkStart starts sandboxes in sequence, in turn with bare processes.
func BenchmarkStart(b *testing.B) {
	all := starters(b)
	missed.Store(0)
	times := map[string][]time.Duration{}
	for b.Loop() {
		for name, start := range all {
			times[name] = append(times[name], startClock(b, start))
		}
	}
	for name := range all {
		quantiles(b, name, times[name])
	}
	b.ReportMetric(float64(missed.Load()), "missed")
}

// BenchmarkBurst starts many at once and reports the slowest.
func BenchmarkBurst(b *testing.B) {
	for _, count := range []int{64, 256} {
		b.Run(fmt.Sprintf("at-once=%d", count), func(b *testing.B) {
			all := starters(b)
			missed.Store(0)
			slowest := map[string][]time.Duration{}
			for b.Loop() {
				for name, start := range all {
					times := make([]time.Duration, count)
					var group sync.WaitGroup
					for i := range times {
						group.Go(func() { times[i] = startClock(b, start) })
					}
					group.Wait()
					slowest[name] = append(slowest[name], slices.Max(times))
					<-time.After(time.Second) // until the pools are full
				}
			}
			for name := range all {
				slices.Sort(slowest[name])
				b.ReportMetric(float64(slowest[name][len(slowest[name])/2].Microseconds())/1000, name+"-slowest-ms")
			}
			b.ReportMetric(float64(missed.Load()), "missed")
		})
	}
}

// BenchmarkDefences starts sandboxes in turn with and without a defence, to show the cost of the
// defence. The spawner starts all of them, because parked sandboxes always have all defences.
func BenchmarkDefences(b *testing.B) {
	h := openHost(b, func(c *Config) { c.Spawners, c.PoolSize, c.Parked = 1, 256, -1 })
	root := fretest.Rootfs(b)
	start := func(without Defence) starter {
		return func(tb testing.TB, stdout *os.File) error {
			tb.Helper()
			spec := prog(root, "clock")
			spec.Stdout, spec.Without = stdout, without
			s, err := h.Start(tb.Context(), spec)
			if err == nil {
				<-s.Done()
			}
			return err
		}
	}
	all := map[string]starter{
		"all":              start(DefenceNoSuid), // a mount attribute, free of cost
		"without-seccomp":  start(DefenceNoSuid | DefenceSeccomp),
		"without-landlock": start(DefenceNoSuid | DefenceLandlock),
	}
	times := map[string][]time.Duration{}
	for b.Loop() {
		for name, start := range all {
			times[name] = append(times[name], startClock(b, start))
		}
	}
	for name := range all {
		quantiles(b, name, times[name])
	}
}
