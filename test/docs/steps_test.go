package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// steps is scripts/steps.sh in a directory with a copy of scripts/ and its own Makefile.
func steps(t *testing.T, makefile string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS("../../scripts")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(makefile), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "scripts/steps.sh"), args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") }) // variables of the make that runs this test
	return cmd
}

// scripts/steps.sh starts no step after a failure. At the end it prints the failed tests with their
// last 40 lines, the command to run them again, and the seconds of each step.
func TestSteps(t *testing.T) {
	log := "ok  \tgithub.com/fre-engine/fre/access\t1.2s\nnoise\n" +
		"--- FAIL: TestA (0.10s)\n    a_test.go:5: got 1\n    --- FAIL: TestA/sub (0.00s)\n        a_test.go:9: got 2\n" +
		"--- FAIL: TestB (0.10s)\n" + strings.Repeat("    b_test.go:5: early\n", 50) + strings.Repeat("    b_test.go:6: late\n", 38) + "FAIL\nFAIL\tgithub.com/fre-engine/fre/engine\t3.4s\n" +
		"?   \tgithub.com/fre-engine/fre/api\t[no test files]\n" +
		"panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestC (9m50s)\n\ngoroutine 1 [running]:\nFAIL\tgithub.com/fre-engine/fre/cluster\t600.1s\nFAIL\n"
	for _, tt := range []struct{ name, log, want string }{
		{
			"tests", log,
			"\ngithub.com/fre-engine/fre/engine\n\n--- FAIL: TestA (0.10s)\n    a_test.go:5: got 1\n    --- FAIL: TestA/sub (0.00s)\n        a_test.go:9: got 2\n\n" +
				strings.Repeat("    b_test.go:6: late\n", 38) + "FAIL\nFAIL\tgithub.com/fre-engine/fre/engine\t3.4s\n" +
				"\nagain: FRE_TEST_ROOT=1 go test -count=1 -race -run '^(TestA|TestB)$' ./engine\n" +
				"\ngithub.com/fre-engine/fre/cluster\n\npanic: test timed out after 10m0s\n\trunning tests:\n\t\tTestC (9m50s)\n\ngoroutine 1 [running]:\nFAIL\tgithub.com/fre-engine/fre/cluster\t600.1s\n" +
				"\nagain: FRE_TEST_ROOT=1 go test -count=1 -race -run '^(TestC)$' ./cluster\n",
		},
		{
			"build", "# github.com/fre-engine/fre/x\nx.go:1: syntax\nFAIL\tgithub.com/fre-engine/fre/x [build failed]\n",
			"\ngithub.com/fre-engine/fre/x\n# github.com/fre-engine/fre/x\nx.go:1: syntax\nFAIL\tgithub.com/fre-engine/fre/x [build failed]\n\nagain: FRE_TEST_ROOT=1 go test -count=1 -race ./x\n",
		},
		{"no test", strings.Repeat("early\n", 9) + strings.Repeat("late\n", 39), strings.Repeat("late\n", 39)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := steps(t, "good:\n\t@echo fine\nrace:\n\t@cat log\n\t@exit 1\nlater:\n\t@echo never\n", "good", "race", "later")
			if err := os.WriteFile(filepath.Join(cmd.Dir, "log"), []byte(tt.log), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.Output()
			if err == nil {
				t.Error("a failed step ends with status 0")
			}
			_, said, ok := strings.Cut(string(out), "=== race failed\n")
			summary, times, timed := strings.Cut(said, "\n seconds  step\n")
			if !ok || !timed || strings.Contains(said, "never") || !strings.Contains(times, "  good\n") || !strings.Contains(times, "  race FAILED\n") {
				t.Errorf("said %s", out)
			}
			lines := strings.SplitAfter(summary, "\n")
			for i, l := range lines { // make's own lines, which differ between versions
				if strings.HasPrefix(l, "make: ") || strings.HasPrefix(l, "make[") {
					lines[i] = ""
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(lines, "")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Two steps of scripts/steps.sh run at the same time, and both outputs are printed whole although
// the first step fails.
func TestStepsBeside(t *testing.T) {
	const meet = "\t@echo $@ one; touch $@.began; until [ -e $(OTHER).began ]; do sleep 0.01; done; echo $@ two\n"
	cmd := steps(t, "before:\n\t@echo alone\na: OTHER := b\na:\n"+meet+"\t@exit 1\nb: OTHER := a\nb:\n"+meet, "before", "-j", "2", "a", "b")
	out, err := cmd.Output()
	if err == nil {
		t.Error("a failed step ends with status 0")
	}
	for _, want := range []string{"=== before\nalone\n", "=== a\na one\na two\n", "=== b\nb one\nb two\n", "=== a failed\n", "  before\n", "  a FAILED\n", "  b\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Logf("the output is %s", out)
	}
}

// SIGINT to scripts/steps.sh during two steps ends the processes of both, and the script ends by
// the signal.
func TestStepsInterrupted(t *testing.T) {
	cmd := steps(t, "a b:\n\t@echo $$$$ >$@.tmp; mv $@.tmp $@.pid; exec sleep 1000\n", "-j", "2", "a", "b")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sleeps := map[string]int{"a.pid": 0, "b.pid": 0}
	for name := range sleeps {
		err := testdaemon.Until(t.Context(), func() error {
			raw, err := os.ReadFile(filepath.Join(cmd.Dir, name))
			if err != nil {
				return err
			}
			sleeps[name], err = strconv.Atoi(strings.TrimSpace(string(raw)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("the script ended with %v", err)
	}
	for name, pid := range sleeps {
		err := testdaemon.Until(t.Context(), func() error {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("%s: process %d has not ended: %w", name, pid, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
