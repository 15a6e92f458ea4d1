package system_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// Containers survive crashes of the engine. The test imports an ordinary image and kills the engine
// while containers start, run and end. After a restart each acknowledged container exists, the
// running ones have exited, and each container keeps its files.
func TestContainers(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	chance := fretest.Rand(t)
	w := newWorld(t)
	w.prepared, w.state = false, filepath.Join(w.dir, "state")
	w.restart(t)
	t.Cleanup(func() { w.stop(t) })
	w.cli(t, "image", "import", "-q", "-c", `ENTRYPOINT ["/bin/prog"]`, "-c", "ENV FROM=image", archive(t, w.dir), "ordinary")

	if got := w.cli(t, "run", "ordinary", "--", "ids"); got != "0 0 0 0 1\n" {
		t.Errorf("one command of it: %q", got)
	}
	// A run with limits, a user or a name is a container, removed at its end.
	if got := w.cli(t, "run", "-u", "1000", "-w", "/home/user", "-m", "64MiB", "--cpus", "0.5", "--pids", "50", "ordinary", "--", "cwd"); got != "/home/user\n" {
		t.Errorf("a command with limits: %q", got)
	}
	cmd := exec.CommandContext(t.Context(), w.bin, "--socket", w.d.Socket(), "run", "--name", "short", "--entrypoint", "", "ordinary", "--", "/bin/prog", "echo")
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("hello\n"), &stdout, &stderr
	if err := cmd.Run(); err != nil || stdout.String() != "hello\n" || stderr.String() != "hello\n" {
		t.Errorf("a run with a name says %q and %q, %v", stdout.String(), stderr.String(), err)
	}
	for status, args := range map[int][]string{
		7:   {"run", "--read-only", "ordinary", "--", "exit", "7"},
		127: {"run", "--entrypoint", "nothing", "ordinary"},
	} {
		var failed *testdaemon.CommandError
		if _, err := w.d.CLI(t.Context(), args...); !errors.As(err, &failed) || failed.Code != status {
			t.Errorf("%q: %v, want exit status %d", args, err, status)
		}
	}
	until(t, func() error {
		if left := w.cli(t, "ps", "-a", "--format", "{{.Name}}"); strings.TrimSpace(left) != "" {
			return fmt.Errorf("runs have left %q", left)
		}
		return nil
	})
	// The container's user appends to a file in the scratch layer; each run adds a line.
	w.cli(t, "create", "--name", "counter", "-u", "1000", "-w", "/home/user", "ordinary", "--", "again", "runs")
	for _, want := range []string{".\n", ".\n..\n"} {
		w.runToEnd(t, "counter")
		if got := w.cli(t, "logs", "counter"); got != want {
			t.Errorf("log of the counter: %q, want %q", got, want)
		}
	}
	w.cli(t, "create", "--name", "weak", "--cap-drop", "ALL", "--cap-add", "KILL", "--group-add", "7", "ordinary", "--", "cat", "/proc/self/status")
	w.runToEnd(t, "weak")
	if got := w.cli(t, "logs", "weak"); !strings.Contains(got, "CapEff:\t0000000000000020\n") || !strings.Contains(got, "Groups:\t7 \n") {
		t.Errorf("with one capability and one group more: %s", got)
	}
	w.cli(t, "rm", "weak")
	w.refused(t, []string{"cap_add", "none but CHOWN"}, "create", "--cap-add", "SYS_ADMIN", "ordinary")
	w.refused(t, []string{"another container is named"}, "create", "--name", "counter", "ordinary")
	w.refused(t, []string{"in use by container"}, "image", "rm", "ordinary")

	w.cli(t, "create", "--name", "once", "ordinary", "--", "sleep")
	w.cli(t, "rename", "once", "sleeper")
	w.cli(t, "start", "sleeper")
	if got := w.cli(t, "top", "sleeper", "--format", "{{.Command}}"); !strings.Contains(got, "prog sleep\n") {
		t.Errorf("top of a container that sleeps: %q", got)
	}
	if got := w.cli(t, "stats", "--interval", "1ms", "sleeper", "--format", "{{.Stats.Processes}}"); !regexp.MustCompile(`^[1-9]\d*\n$`).MatchString(got) {
		t.Errorf("processes of a container that sleeps: %q", got)
	}
	w.cli(t, "kill", "sleeper")
	w.refused(t, []string{`container "sleeper"`, "not running", "fre start"}, "kill", "-s", "HUP", "sleeper")
	w.cli(t, "create", "--name", "trapper", "ordinary", "--", "trap")
	w.cli(t, "start", "trapper")
	until(t, func() error {
		if got := w.cli(t, "logs", "trapper"); got != "ready\n" {
			return fmt.Errorf("the log says %q", got)
		}
		return nil
	})
	w.cli(t, "kill", "-s", "INT", "trapper")
	if got := w.cli(t, "wait", "trapper"); got != "0\n" {
		t.Errorf("one that handles the signal ended with %q", got)
	}
	if got := w.cli(t, "logs", "trapper"); got != "ready\nterminated\n" {
		t.Errorf("one that handles the signal says %q", got)
	}
	if got := w.cli(t, "wait", "sleeper"); got != "137\n" {
		t.Errorf("killed, it ended with %q", got)
	}
	if got := w.cli(t, "container", "prune", "--until", "2020-01-01"); !strings.HasPrefix(got, "freed 0B: 0 containers") {
		t.Errorf("pruning what is older than everything: %q", got)
	}
	if got := w.cli(t, "image", "history", "ordinary", "--format", "{{.CreatedBy}}"); got != "fre: import\n" {
		t.Errorf("history of the image: %q", got)
	}

	t.Run("attach", func(t *testing.T) { w.attach(t) })
	for round := range 2 {
		t.Run(fmt.Sprint("crash ", round), func(t *testing.T) { w.crashContainers(t, chance, round) })
	}
	w.runToEnd(t, "counter")
	if got := w.cli(t, "logs", "-n", "1", "counter"); got != "...\n" {
		t.Errorf("after the crashes the counter says %q, want its third run", got)
	}
	if running := strings.Fields(w.cli(t, "ps", "-q")); len(running) > 0 {
		w.cli(t, append([]string{"kill"}, running...)...)
	}
	w.cli(t, "container", "prune")
	if left, err := os.ReadDir(filepath.Join(w.state, "containers")); err != nil || len(left) > 0 {
		t.Errorf("once all are removed there is left: %v, %v", left, err)
	}
	w.cli(t, "image", "rm", "ordinary")
}

// archive packs the root file system of testprog with a home directory for a user.
func archive(t *testing.T, dir string) string {
	t.Helper()
	root := fretest.Rootfs(t)
	home := filepath.Join(root, "home/user")
	if err := errors.Join(os.MkdirAll(home, 0o755), os.Chown(home, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "ordinary.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(f)
	if err := errors.Join(tw.AddFS(os.DirFS(root)), tw.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// runToEnd starts a container and waits for exit code 0.
func (w *world) runToEnd(t *testing.T, name string) {
	t.Helper()
	w.cli(t, "start", name)
	if got := w.cli(t, "wait", name); got != "0\n" {
		t.Errorf("%s ended with %q", name, got)
	}
}

// attach sends input to containers and reads their answers, then leaves a container that continues
// to run.
func (w *world) attach(t *testing.T) {
	t.Helper()
	for _, in := range []string{"hello\n", ""} {
		w.cli(t, "create", "--name", "talker", "-i", "ordinary", "--", "echo")
		w.cli(t, "start", "talker")
		cmd := exec.CommandContext(t.Context(), w.bin, "--socket", w.d.Socket(), "attach", "talker")
		var stdout, stderr strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &stdout, &stderr
		if err := cmd.Run(); err != nil || stdout.String() != in || stderr.String() != in {
			t.Errorf("told %q it says %q and %q, %v", in, stdout.String(), stderr.String(), err)
		}
		w.cli(t, "rm", "talker")
	}

	w.cli(t, "create", "--name", "dozer", "ordinary", "--", "sleep")
	w.cli(t, "start", "dozer")
	cl := client.New(w.d.Socket())
	defer cl.Close()
	leave := errors.New("leave")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if _, err := cl.Containers().Attach(ctx, "dozer", client.RunIO{Stdout: io.Discard, Stderr: io.Discard, Stdin: onRead(func() { cancel(leave) })}, client.AttachOptions{}); !errors.Is(err, leave) {
		t.Errorf("an attachment that was left: %v", err)
	}
	exit, err := cl.Containers().Attach(t.Context(), "dozer", client.RunIO{Stdout: io.Discard, Stderr: io.Discard, Stdin: onRead(func() {
		if out, err := w.d.CLI(t.Context(), "kill", "dozer"); err != nil {
			t.Errorf("%s, %v", out, err)
		}
	})}, client.AttachOptions{})
	if err != nil || exit.Signal != int(unix.SIGKILL) {
		t.Errorf("killed, it ended with %+v, %v", exit, err)
	}
	w.cli(t, "rm", "dozer")
}

// onRead is an empty input that calls a function at the first read, after the client has joined.
type onRead func()

func (f onRead) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func (w *world) crashContainers(t *testing.T, chance *rand.Rand, round int) {
	t.Helper()
	var mu sync.Mutex
	states := map[string]string{} // the last acknowledged step of each container
	set := func(name, state string) {
		mu.Lock()
		defer mu.Unlock()
		states[name] = state
	}
	var workers sync.WaitGroup
	for worker := range 3 {
		workers.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("c%d-%d-%d", round, worker, i)
				for _, step := range [][]string{
					{"create", "--name", name, "ordinary", "--", "sleep"},
					{"start", name},
					{"rm", "-f", name},
				} {
					if step[0] == "rm" && i%2 == 0 { // each second container stays
						break
					}
					set(name, "before "+step[0])
					if _, err := w.d.CLI(t.Context(), step...); err != nil {
						return // the engine is dead
					}
					set(name, step[0])
				}
			}
		})
	}
	pause(time.Duration(300+chance.IntN(1500)) * time.Millisecond)
	family := append(testdaemon.Descendants(w.d.PID()), w.sandboxed(t)...)
	w.d.Kill()
	workers.Wait()
	until(t, func() error { return allDead(append(family, w.sandboxed(t)...)) })
	w.restart(t)
	now := map[string]string{}
	for line := range strings.Lines(w.cli(t, "ps", "-a", "--format", "{{.Name}} {{.State}}")) {
		name, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		now[name] = state
	}
	for name, step := range states {
		want := map[string][]string{
			"before create": {"", "created"},
			"create":        {"created"},
			"before start":  {"created", "exited"},
			"start":         {"exited"},
			"before rm":     {"", "exited"},
			"rm":            {""},
		}[step]
		if !slices.Contains(want, now[name]) {
			t.Errorf("%s was left at %q and is %q, want one of %q", name, step, now[name], want)
		}
	}
	if now["counter"] != "exited" {
		t.Errorf("the counter is %q", now["counter"])
	}
}
