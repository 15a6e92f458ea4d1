package system_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// testReadme runs the README's commands unchanged, except for the state directory, the socket and
// the port.
func (w *world) testReadme(t *testing.T) {
	w.needsNetwork(t)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(readme), "\n## Five commands\n")
	_, section, ok2 := strings.Cut(section, "\n```\n")
	block, _, ok3 := strings.Cut(section, "\n```\n")
	if !ok || !ok2 || !ok3 {
		t.Fatal("README.md has no block of commands below \"Five commands\"")
	}
	addr, err := testdaemon.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.dir, "readme")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "trap 'kill %1; wait %1' EXIT\n" + block + "\n"
	for _, r := range []struct{ is, here string }{
		{"fre serve", "fre serve --state \"$PWD/state\" --socket \"$FRE_SOCKET\" --listen " + addr},
		{"127.0.0.1:8080", addr},
	} {
		if !strings.Contains(script, r.is) {
			t.Errorf("README.md's commands do not hold %q", r.is)
		}
		script = strings.ReplaceAll(script, r.is, r.here)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-u", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1", "FRE_SOCKET="+filepath.Join(dir, "sock"),
		"PATH="+filepath.Dir(w.bin)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the script's trap stops the engine
	cmd.WaitDelay = patience
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	for _, want := range []string{
		`deployed hello from hello:`, `"hello"`, `"world"`, // the answer
		"called with",              // fre logs
		"user namespaces: at most", // fre doctor
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("want %q in the output:\n%s\n%s", want, stdout.String(), stderr.String())
		}
	}
}

// testScaffolds: a template from `fre new` passes its test and is deployed by the printed command.
func (w *world) testScaffolds(t *testing.T) {
	w.needsNetwork(t)
	path := filepath.Dir(w.bin) + string(os.PathListSeparator) + os.Getenv("PATH")
	kinds, err := os.ReadDir("../../cmd/fre/scaffold")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range kinds {
		kind := e.Name()
		if kind == "common" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			name := "new-" + kind
			dir := filepath.Join(t.TempDir(), name)
			_, next, ok := strings.Cut(w.cli(t, "new", kind, dir), "next: ")
			if !ok {
				t.Fatal("fre new prints no next command")
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", next)
			cmd.Env = append(os.Environ(), "PATH="+path, "FRE_SOCKET="+w.d.Socket())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "1 passed, 0 failed") {
				t.Fatalf("%s: %v\n%s", next, err, out)
			}
			w.cli(t, "test", dir, "--function", name)
			w.cli(t, "function", "rm", name)
		})
	}
}

// needsNetwork skips a test that builds if the state was prepared for machines without a network.
func (w *world) needsNetwork(t *testing.T) {
	t.Helper()
	if w.prepared {
		t.Skip("needs the network: FRE_SYSTEM_STATE says there is none")
	}
}

// running is a fre command under way.
type running struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	stdout *bufio.Reader
}

// begin starts a fre command and kills the command when t ends.
func (w *world) begin(t testing.TB, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	r := &running{cmd: exec.CommandContext(ctx, w.bin, append([]string{"--socket", w.d.Socket()}, args...)...)}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.stdout = bufio.NewReader(stdout)
	r.cmd.Stderr = &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// say waits until a line of standard output holds text.
func (r *running) say(t testing.TB, text string) {
	t.Helper()
	for {
		line, err := r.stdout.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			_ = r.cmd.Wait() // read all of stderr
			t.Fatalf("%v ended (%v) before it said %q: %s", r.cmd.Args, err, text, r.stderr.String())
		}
	}
}

// end waits until the command ends and returns the exit status.
func (r *running) end(t testing.TB) int {
	t.Helper()
	if _, err := io.Copy(io.Discard, r.stdout); err != nil {
		t.Error(err)
	}
	var failed *exec.ExitError
	if err := r.cmd.Wait(); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *running) interrupt(t testing.TB) {
	t.Helper()
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// noRuns reports whether no sandbox runs outside functions: no `fre run`, no step of a build.
func (w *world) noRuns(t testing.TB) func() error {
	t.Helper()
	return func() error {
		if left := w.ps(t, ""); len(left) > 0 {
			return fmt.Errorf("still running: %+v", left)
		}
		return nil
	}
}

func (w *world) testInterrupt(t *testing.T) {
	t.Run("run", func(t *testing.T) {
		r := w.begin(t, "run", "shell:1.0.0", "--", "/bin/sh", "-c", "trap '' INT TERM; echo up; while :; do :; done")
		r.say(t, "up")
		r.interrupt(t)
		if code := r.end(t); code != 128+int(syscall.SIGKILL) {
			t.Errorf("exit status %d, want %d: %s", code, 128+int(syscall.SIGKILL), r.stderr.String())
		}
		until(t, w.noRuns(t))
	})
	for _, command := range []string{"build", "deploy"} {
		t.Run(command, func(t *testing.T) {
			w.needsNetwork(t)
			dir := t.TempDir()
			// The packages take long enough to resolve for the interrupt to come first.
			writeFile(t, filepath.Join(dir, "fret.yaml"), "id: interrupted\nversion: "+command+"\nbase: python\npackages: {pip: [jupyterlab, scikit-learn]}\n")
			writeFile(t, filepath.Join(dir, "main.py"), "def handle(event, context): pass\n")
			r := w.begin(t, command, "--progress", "json", dir)
			r.say(t, `"packages"`)
			until(t, func() error { // the resolver runs in a sandbox
				if len(w.ps(t, "")) == 0 {
					return errors.New("no step of the build runs")
				}
				return nil
			})
			r.interrupt(t)
			if code := r.end(t); code != 130 {
				t.Errorf("exit status %d, want 130: %s", code, r.stderr.String())
			}
			until(t, w.noRuns(t))
			if names := w.cli(t, "images", "--format", "{{.Name}}"); strings.Contains(names, "interrupted") {
				t.Errorf("an interrupted build left its image:\n%s", names)
			}
			if a, err := w.call(t.Context(), "interrupted", "", ""); err != nil || a.Status != http.StatusNotFound {
				t.Errorf("an interrupted deployment: got %+v, error %v, want 404", a, err)
			}
			until(t, w.nothingStaged)
		})
	}
	t.Run("test", func(t *testing.T) { // a killed client cannot tell the engine
		w.needsNetwork(t)
		dir := t.TempDir()
		for name, text := range map[string]string{
			"fret.yaml": "id: hangs\nbase: native\nhandler: hang.sh\n", "event.json": "{}", "expect.json": `{"body": ""}`,
			"hang.sh": "#!/bin/sh\nwhile :; do :; done\n",
		} {
			if filepath.Ext(name) == ".json" {
				name = filepath.Join("test", name)
			}
			if err := os.MkdirAll(filepath.Join(dir, "test"), 0o755); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(dir, name), text)
		}
		if err := os.Chmod(filepath.Join(dir, "hang.sh"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
			hangs := func() error {
				if !strings.Contains(w.cli(t, "functions", "--format", "{{.ImageRef}} {{.Busy}}"), "hangs:latest 1") {
					return errors.New("no temporary function is busy")
				}
				return nil
			}
			r := w.begin(t, "test", dir)
			until(t, hangs)
			if err := r.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if code := r.end(t); signal == syscall.SIGINT && code != 130 {
				t.Errorf("exit status %d, want 130: %s", code, r.stderr.String())
			}
			until(t, func() error {
				if hangs() == nil || strings.Contains(w.cli(t, "functions", "-q"), "test-") {
					return errors.New("the temporary function is still there")
				}
				return nil
			})
		}
		until(t, func() error { // the image is in use until the last sandbox has ended
			_, err := w.d.CLI(t.Context(), "image", "rm", "hangs")
			return err
		})
	})
	w.healthy(t)
}

// nothingStaged reports whether the store's tmp is empty.
func (w *world) nothingStaged() error {
	left, err := os.ReadDir(filepath.Join(w.state, "store", "tmp"))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("in the store's tmp: %q", left)
	}
	return err
}

// testFollow: `fre logs -f` shows new lines, and ends when the function is removed.
func (w *world) testFollow(t *testing.T) {
	w.again(t, "followed")
	r := w.begin(t, "logs", "-f", "followed")
	w.ok(t, "followed", "/log", "first")
	r.say(t, "to the logger first")
	w.ok(t, "followed", "/log", "second")
	r.say(t, "to the logger second")
	w.cli(t, "function", "rm", "followed")
	if code := r.end(t); code != 0 {
		t.Errorf("fre logs -f of a function that was removed: exit status %d: %s", code, r.stderr.String())
	}
	w.untilGone(t, "followed")

	w.again(t, "followed")
	defer w.cli(t, "function", "rm", "followed")
	r = w.begin(t, "logs", "-f", "followed")
	w.ok(t, "followed", "/log", "third")
	r.say(t, "to the logger third")
	r.interrupt(t)
	if code := r.end(t); code != 130 {
		t.Errorf("fre logs -f, interrupted: exit status %d, want 130: %s", code, r.stderr.String())
	}
}

// again deploys the probe under another name.
func (w *world) again(t testing.TB, name string) {
	t.Helper()
	w.cli(t, "deploy", "--image", "probe:1.0.0", "--name", name)
}

// details is the row of one sandbox in `fre ps -a -s --stats`.
type details struct {
	ID, State string
	Exit      *struct {
		Code, Signal int
		CPU          int64 `json:"cpu_ns"`
	}
	Size  *struct{ Bytes, Files int64 }
	Stats *struct {
		Memory int64 `json:"memory_bytes"`
	}
}

func (w *world) details(t testing.TB, id string) details {
	t.Helper()
	for line := range strings.Lines(w.cli(t, "ps", "-a", "-s", "--stats", "--format", "{{json .}}")) {
		var d details
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if d.ID == id {
			return d
		}
	}
	t.Fatalf("fre ps -a shows no %s", id)
	panic("unreachable")
}

// testSandboxes: `fre ps -a -s` shows sizes and exits; `fre stop` and `fre kill` end a sandbox.
func (w *world) testSandboxes(t *testing.T) {
	w.again(t, "doomed")
	defer w.cli(t, "function", "rm", "doomed")
	for _, c := range []struct {
		command      string
		code, signal int
	}{{"stop", 0, 0}, {"kill", -1, int(syscall.SIGKILL)}} {
		t.Run(c.command, func(t *testing.T) {
			w.ok(t, "doomed", "/echo", "")
			boxes := w.ps(t, "doomed")
			if len(boxes) != 1 {
				t.Fatalf("fre ps: got %+v, want one sandbox of doomed", boxes)
			}
			id := boxes[0].ID
			if d := w.details(t, id); d.Size == nil || d.Stats == nil || d.Stats.Memory < 1<<20 || d.Exit != nil {
				t.Errorf("fre ps -s --stats of a live sandbox: got %+v, want the megabytes it uses", d)
			}
			if table := w.cli(t, "ps", "--stats"); !regexp.MustCompile(`(?m)^` + id[:12] + ` .*\d+(\.\d+)?[MG]B `).MatchString(table) {
				t.Errorf("fre ps --stats shows no memory of %s:\n%s", id, table)
			}
			w.cli(t, c.command, id)
			if left := w.ps(t, "doomed"); len(left) != 0 {
				t.Errorf("after fre %s: %+v", c.command, left)
			}
			until(t, func() error {
				if d := w.details(t, id); d.State != "exited" || d.Exit == nil || d.Exit.Code != c.code || d.Exit.Signal != c.signal {
					return fmt.Errorf("fre ps -a: got %+v, want exit code %d, signal %d", d, c.code, c.signal)
				}
				return nil
			})
			w.refused(t, []string{id}, c.command, id) // the sandbox is gone
		})
	}
	w.ok(t, "doomed", "/echo", "") // a new sandbox starts
}

// testImages: `fre image inspect` and `fre image rm` work, and lists hide the images of the
// builder's tools.
func (w *world) testImages(t *testing.T) {
	var found []struct {
		Name  string
		Parts []struct{ Kind, Name string }
	}
	if err := json.Unmarshal([]byte(w.cli(t, "image", "inspect", "probe:1.0.0")), &found); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].Name != "probe" {
		t.Fatalf("fre image inspect: got %+v, want the image probe", found)
	}
	var kinds []string
	for _, p := range found[0].Parts {
		kinds = append(kinds, p.Kind)
	}
	for _, kind := range []string{"base", "bootstrap", "code"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("fre image inspect: no part of kind %s in %q", kind, kinds)
		}
	}
	w.refused(t, []string{"no-such-image"}, "image", "inspect", "no-such-image")

	shown, all := w.cli(t, "images", "--format", "{{.Name}} {{.Kind}}"), w.cli(t, "images", "-a", "--format", "{{.Name}} {{.Kind}}")
	if strings.Contains(shown, "tools") || !strings.Contains(all, " tools\n") {
		t.Errorf("the images the builder keeps its tools in: want none in\n%s\nand some in\n%s", shown, all)
	}

	if w.prepared {
		return
	}
	dir := function{"removed", "shell", "base: native\nhandler: shell.sh\n"}.write(t, t.TempDir())
	w.cli(t, "deploy", dir)
	w.refused(t, []string{"removed", "in use"}, "image", "rm", "removed:1.0.0")
	w.cli(t, "function", "rm", "removed")
	w.cli(t, "image", "rm", "removed:1.0.0")
	w.refused(t, []string{"removed"}, "image", "inspect", "removed:1.0.0")
	w.refused(t, []string{"removed"}, "deploy", "--image", "removed:1.0.0")
	w.healthy(t) // shares files with the removed image
}

// testMetrics: the metrics for operators exist and count.
func (w *world) testMetrics(t *testing.T) {
	w.again(t, "counted")
	defer w.cli(t, "function", "rm", "counted")
	for range 3 {
		w.ok(t, "counted", "/echo", "")
	}
	if a, err := w.call(t.Context(), "counted", "/fail", ""); err != nil || a.Status != 500 {
		t.Fatalf("counted/fail: got %+v, error %v", a, err)
	}
	until(t, func() error { // the engine counts an event after the answer
		resp, err := w.client.Get(w.d.URL("/metrics"))
		if err != nil {
			return err
		}
		text := readAll(t, resp)
		for _, want := range []string{
			`(?m)^fre_invocation_seconds_count\{.*function="counted".*\} 3$`,
			`(?m)^fre_invocation_seconds_count\{.*function="counted".*\} 1$`,
			`(?m)^fre_instance_start_seconds_count(\{.*\})? [1-9]`,
			`(?m)^fre_functions [1-9]`,
			`(?m)^fre_sandboxes [1-9]`,
			`(?m)^fre_parked_sandboxes\{kind="bare"\} [0-9]+$`,
			`(?m)^fre_parked_sandboxes\{kind="attached"\} [0-9]+$`,
			`(?m)^fre_parked_sandboxes_died_total [0-9]+$`,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				var ours []string
				for line := range strings.Lines(text) {
					if strings.HasPrefix(line, "fre_") && !strings.Contains(line, "_bucket") {
						ours = append(ours, line)
					}
				}
				return fmt.Errorf("GET /metrics: no %s in:\n%s", want, strings.Join(ours, ""))
			}
		}
		return nil
	})
}

// testDoctor: `fre doctor` accepts this host, and names what a host without user namespaces lacks.
// The test makes such a host by a user namespace that allows no nested namespace; mounts of the
// host are refused there as well.
func (w *world) testDoctor(t *testing.T) {
	out, err := w.d.CLI(t.Context(), "doctor")
	for line := range strings.Lines(out) {
		// Sandboxes can run without Landlock, which the kernel of Debian 12 lacks.
		if strings.HasPrefix(line, "LACK") && !strings.Contains(line, "Landlock: ") {
			t.Errorf("fre doctor beside an engine that works: %v\n%s", err, out)
		}
	}
	if strings.Contains(out, "was not measured") || !strings.Contains(out, "cost: a hard link") {
		t.Errorf("fre doctor beside an engine that works lacks costs: %v\n%s", err, out)
	}
	lacking := func(args string) (string, int) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/bin/sh", "-e", "-c", `echo 0 >/proc/sys/user/max_user_namespaces; exec "$0" `+args, w.bin)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	var code int
	out, code = lacking("doctor --costs=false --socket /nonexistent.sock")
	for _, want := range []string{"LACK  user namespaces: at most 0\n", "no sandbox can be started", "max_user_namespaces"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("fre doctor without user namespaces: exit status %d, want 1 and %q in:\n%s", code, want, out)
		}
	}
	config := filepath.Join(w.dir, "require.yaml")
	for require, want := range map[string]string{"userns": "user namespaces: at most 0", "none-such": "known checks: root, kernel"} {
		if err := os.WriteFile(config, []byte("require: ["+require+"]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := lacking("serve --state " + filepath.Join(w.dir, "lacking") + " --config " + config); code != 1 || !strings.Contains(out, want) {
			t.Errorf("fre serve with require: [%s]: exit status %d, want 1 and %q in:\n%s", require, code, want, out)
		}
	}
	out, code = lacking("serve --state " + filepath.Join(w.dir, "lacking") + " --socket " + filepath.Join(w.dir, "lacking.sock") + " --listen 127.0.0.1:0")
	if code != 1 || !strings.Contains(out, "fre doctor") {
		t.Errorf("fre serve without user namespaces: exit status %d, want 1 and the way to fre doctor:\n%s", code, out)
	}
}

// testVersion: `fre version` works with and without an engine.
func (w *world) testVersion(t *testing.T) {
	if out := w.cli(t, "version"); !strings.Contains(out, "client") || strings.Contains(out, "not reachable") {
		t.Errorf("fre version: got\n%s", out)
	}
	out, err := testdaemon.Command(t.Context(), w.bin, "--socket", filepath.Join(w.dir, "no.sock"), "version")
	if err != nil || !strings.Contains(out, "client") || !strings.Contains(out, "not reachable") {
		t.Errorf("fre version without an engine: got error %v and\n%s", err, out)
	}
}
