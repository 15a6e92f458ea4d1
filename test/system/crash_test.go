package system_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// testCrash kills the engine and the spawner at random moments under load. Afterwards no sandbox
// lives, each acknowledged function answers, and no function is half deployed.
func (w *world) testCrash(t *testing.T) {
	rounds := 3
	if s := os.Getenv("FRE_CRASH_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("FRE_CRASH_ROUNDS=%q: %v", s, err)
		}
		rounds = n
	}
	chance := fretest.Rand(t)

	w.start(t)
	acknowledged := map[string]bool{}
	for name := range strings.FieldsSeq(w.cli(t, "functions", "-q")) {
		acknowledged[name] = true
	}
	for _, f := range functions {
		if !acknowledged[f.qualified()] {
			t.Errorf("%s is not there after the engine was stopped and started", f.name)
		}
	}
	for round := range rounds {
		t.Run(fmt.Sprintf("engine %d", round), func(t *testing.T) { w.crashEngine(t, chance, acknowledged) })
		t.Run(fmt.Sprintf("spawner %d", round), func(t *testing.T) { w.crashSpawner(t, chance) })
	}
	w.stop(t)
}

// load calls and deploys functions until stop is called. Errors are expected, because the engine
// dies meanwhile. stop returns the names of the acknowledged functions.
func (w *world) load(t *testing.T, deploy bool) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, c := range [][2]string{{"probe", "/echo"}, {"probe", "/slow"}, {"chaos", "/well"}, {"shell", "/well"}, {"crowd", "/meet"}} {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := w.call(ctx, c[0], c[1], "1"); err != nil {
					return
				}
			}
		})
	}
	var mu sync.Mutex
	var names []string
	if deploy {
		dir := t.TempDir()
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("crash-%d-%d", time.Now().UnixNano(), i)
				f := function{name, "shell", "base: native\nhandler: shell.sh\nenv: {ROUND: \"" + name + "\"}\n"}
				path := filepath.Join(dir, name)
				args := []string{"deploy", path, "--name", name}
				if err := f.writeTo(path); err != nil {
					t.Error(err)
					return
				}
				if _, err := w.d.CLI(ctx, args...); err != nil {
					return
				}
				mu.Lock()
				names = append(names, name)
				mu.Unlock()
			}
		})
	}
	return func() []string {
		cancel()
		wg.Wait()
		w.client.CloseIdleConnections()
		return names
	}
}

func (w *world) crashEngine(t *testing.T, chance *rand.Rand, acknowledged map[string]bool) {
	t.Helper()
	// A prepared state may have no base environment, so the load builds no function.
	stop := w.load(t, !w.prepared)
	pause(time.Duration(50+chance.IntN(1500)) * time.Millisecond)
	family := append(testdaemon.Descendants(w.d.PID()), w.sandboxed(t)...)
	if len(family) == 0 {
		t.Error("under load the engine has no children: there is nothing to crash")
	}
	w.d.Kill()
	for _, name := range stop() {
		acknowledged[name] = true
	}
	until(t, func() error { return allDead(append(family, w.sandboxed(t)...)) })

	w.d = nil
	w.restart(t)
	if left, err := os.ReadDir(filepath.Join(w.state, "store", "tmp")); err != nil || len(left) > 0 {
		t.Errorf("in the store's tmp after a restart: %q, error %v, want nothing", left, err)
	}
	now := strings.Fields(w.cli(t, "functions", "-q"))
	for name := range acknowledged {
		if !slices.Contains(now, name) {
			t.Errorf("function %s was acknowledged and is gone", name)
		}
	}
	for _, name := range now {
		// A function may exist although its deployment was not acknowledged; then the function is
		// complete.
		if strings.HasPrefix(name, "crash-") || name == "shell" {
			if got := string(w.ok(t, name, "/well", "").Body); got != "well\n" {
				t.Errorf("%s/well: got %q", name, got)
			}
			acknowledged[name] = true
		}
	}
	w.healthy(t)
}

// crashSpawner kills a child of the engine. The sandboxes of the child end. The engine continues,
// or ends and is started again.
func (w *world) crashSpawner(t *testing.T, chance *rand.Rand) {
	t.Helper()
	stop := w.load(t, false)
	pause(time.Duration(50+chance.IntN(1000)) * time.Millisecond)
	children := spawners(w.d.PID())
	if len(children) == 0 {
		stop()
		t.Fatal("the engine has no child called fre-spawner")
	}
	victim := children[chance.IntN(len(children))]
	family := testdaemon.Descendants(victim.PID)
	err := syscall.Kill(victim.PID, syscall.SIGKILL)
	stop()
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	until(t, func() error { return allDead(append(family, victim)) })
	until(t, func() error {
		select {
		case <-w.d.Done():
			w.d = nil
			w.restart(t)
		default:
		}
		for _, c := range [][2]string{{"probe", "/echo"}, {"shell", "/well"}, {"chaos", "/well"}} {
			a, err := w.call(context.Background(), c[0], c[1], "")
			if err != nil {
				return err
			}
			if a.Status/100 != 2 {
				return fmt.Errorf("%s%s: status %d: %s", c[0], c[1], a.Status, a.Body)
			}
		}
		return nil
	})
}

// spawners returns the direct children of the engine that run the C program.
func spawners(engine int) []testdaemon.Process {
	var found []testdaemon.Process
	for _, p := range testdaemon.Descendants(engine) {
		// Not by comm: the program is a memfd and has no name in comm.
		argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // empty if it has ended
		if strings.HasPrefix(string(argv), "fre-spawner\x00") && parent(p.PID) == engine {
			found = append(found, p)
		}
	}
	return found
}

// parent returns field 4 of /proc/PID/stat, or 0 without the process.
func parent(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), ") ")
	if fields := strings.Fields(after); len(fields) > 1 {
		n, _ := strconv.Atoi(fields[1]) // always a number
		return n
	}
	return 0
}

func allDead(family []testdaemon.Process) error {
	for _, p := range family {
		if p.Alive() {
			return fmt.Errorf("process %v survived", p)
		}
	}
	return nil
}

// pause lets a load run for a while: the length is an input of the test.
func pause(d time.Duration) { <-time.After(d) }
