package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSteps runs scripts/steps.sh in a tree with a Makefile of its own: it stops at the step
// that fails, and prints of its log the failed tests with their last 40 lines, the command
// that runs them again, and the seconds of each step.
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
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS("../../scripts")); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{
				"log": tt.log, "Makefile": "good:\n\t@echo fine\nrace:\n\t@cat log\n\t@exit 1\nlater:\n\t@echo never\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "scripts/steps.sh", "good", "race", "later")
			cmd.Path, cmd.Dir = filepath.Join(dir, "scripts/steps.sh"), dir
			cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") }) // of the make that runs this test
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
			for i, l := range lines { // make's own, whose words differ
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
