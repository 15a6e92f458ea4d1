package docker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

func TestRun(t *testing.T) { each(t, nil, (*world).testRun) }

// testRun: containers run to their end.
func (w *world) testRun(t *testing.T) {
	t.Helper()
	w.app(t)
	run := func(args string) []string { return words("run --rm --network none " + args) }
	w.run(t, []line{
		{run("app"), 0, `^by\|default\n$`, ``},
		{words("run --rm app args x"), 0, `^x\n$`, `^(WARNING: the container has no network: .*\n)?$`},
		{run("-t app args x"), 0, `^x\r\n$`, ``},
		{run("app args a b"), 0, `^a\|b\n$`, ``},
		{run("app exit 7"), 7, ``, ``},
		{run("--entrypoint /bin/prog app args x"), 0, `^x\n$`, ``},
		{run("-e OWN=1 -e FROM=run app env"), 0, `\|FROM=run\|OWN=1\|`, ``},
		{run("-e FROM app env"), 0, `^PATH=[^|]*\|HOSTNAME=[0-9a-f]*\|HOME=/root\|FRE_CPUS=`, ``}, // docker run -e FROM removes the variable
		{run("-w /data app cwd"), 0, `^/data\n$`, ``},
		{run("-w /made/for/it app cwd"), 0, `^/made/for/it\n$`, ``},
		{run("--user worker -w /locked app cwd"), 126, ``, `dir: permission denied: .*-w`},
		{run("-h name app host"), 0, `^name\n$`, ``},
		{run("--label a=b --stop-signal RTMIN+3 --cpu-quota 50000 --ulimit nofile=64 -a stdout app args x"), 0, `^x\n$`, ``},
		{run("--storage-opt size=2m app fill /big 100"), 100, `^[0-9]+\n$`, `no space left on device`},
		{run("--tmpfs /tmp:size=1m app fill /tmp/big 100"), 100, `^[0-9]+\n$`, `no space left on device`},
		{run("--security-opt no-new-privileges --mount type=volume,source=fre-work,target=/work,readonly app args x"), 0, `^x\n$`, ``},
		{run("library/app args x"), 0, `^x\n$`, ``},
		{run("docker.io/library/app:latest args x"), 0, `^x\n$`, ``},
		{run("app ids"), 0, `^0 0 0 0 `, ``},
		{run("--user worker app ids"), 0, `^12 12 34 34 `, ``},
		{run("--user 5:6 app ids"), 0, `^5 5 6 6 `, ``},
		{run("--user nobody app ids"), 125, ``, `no user "nobody"`},
		{run("app cat /data/file"), 0, `^from the image`, ``},
		{run("app append /data/file more"), 0, ``, ``},
		{run("app cat /data/file"), 0, `^from the image\n?$`, ``}, // a new container
		{run("--read-only app append /data/file more"), 100, ``, `read-only file system`},
		{run("-v fre-work:/work app write /work/kept kept"), 0, ``, ``},
		{run("-v /work app cat /work/kept"), 0, `^kept`, ``},
		{run("-v fre-work:/work:ro app write /work/kept other"), 100, ``, `read-only file system`},
		{run("app cat /work/kept"), 100, ``, `no such file`},
		{run("--entrypoint /nothing app"), 127, ``, `no such file or directory`},
		{run("--entrypoint /etc/passwd app"), 126, ``, `permission denied`},
		{words("run --rm --privileged app"), 125, ``, `FRE has no privileged containers`},
		{words("run --rm -v /etc:/work app"), 125, ``, `FRE has no mounts of the host's /etc`},
		{words("run --rm --device /dev/null app"), 125, ``, `FRE has no host devices`},
		{run("--cap-drop ALL app chown 5 /data"), 100, ``, `operation not permitted`},
		{run("--cap-drop ALL --cap-add CHOWN app chown 5 /data"), 0, ``, ``},
		{run("--cap-drop NOTHING app"), 125, ``, `NOTHING" is no capability`},
		{run("--user 5:6 --group-add root --group-add 7 app groups"), 0, `^\[0 7\]\n$`, ``},
		{run("--group-add nobody app"), 125, ``, `no group "nobody"`},
		{words("run --rm --cap-add SYS_ADMIN app"), 125, ``, `FRE has no further capabilities: root has CHOWN`},
		{words("run --rm --restart always app"), 125, ``, `(?i)(restart policies|conflicting options)`},
		{words("run -d --restart always app"), 125, ``, `FRE has no restart policies`},
		{words("run --rm -p 80:80 app"), 125, ``, `FRE has no published ports`},
		{words("run --rm --network mine app"), 125, ``, `network mine not found`},
		{words("run --rm -m 1m app"), 125, ``, `6MB`},
		{run("--pids-limit -1 app"), 125, ``, `FRE has no containers of any number of processes`},
		{run("--memory-swappiness 50 app"), 125, ``, `FRE has no swappiness`},
		{run("--security-opt systempaths=unconfined app"), 125, ``, `FRE has no custom paths`},
		{run("--mount type=tmpfs,target=/tmp,tmpfs-mode=0700 app"), 125, ``, `FRE has no tmpfs options but the size`},
		{words("run --rm --platform linux/s390x app"), 125, ``, `the engine runs linux/|was found but does not match`},
		{words("ps -a -q"), 0, ``, ``},
	})
	for _, args := range []string{"-i app echo", "-i --user worker app echo"} {
		if r := w.dockerWith(t, "input\n", run(args)...); r.code != 0 || r.stdout != "input\n" || r.stderr != "input\n" {
			t.Errorf("docker run %s: exit status %d, %q, %q", args, r.code, r.stdout, r.stderr)
		}
	}
	// Long input, to its end.
	input := strings.Repeat("0123456789abcdef", 1<<16)
	if r := w.dockerWith(t, input, run("-i app copy")...); r.code != 0 || r.stdout != input {
		t.Errorf("docker run -i of %d bytes: exit status %d, %d bytes come back: %s", len(input), r.code, len(r.stdout), r.stderr)
	}
}

func TestContainers(t *testing.T) { each(t, nil, (*world).testContainers) }

// testContainers: containers are created, started, stopped and started again.
func (w *world) testContainers(t *testing.T) {
	t.Helper()
	w.app(t)
	id := w.ok(t, words("create --network none --name box --label a=b -m 64m --cpus 0.5 --pids-limit 20 -i app orders")...)
	short := id[:12]
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(id) {
		t.Fatalf("docker create prints %q", id)
	}
	w.run(t, []line{
		{words("create --network none --name box app"), 1, ``, `already`},
		{words("ps -q"), 0, ``, ``},
		{words("ps -a --format {{.ID}}/{{.State}}/{{.Status}}/{{.Names}}"), 0, `^` + short + `/created/Created/box\n$`, ``},
		{[]string{"inspect", "--format", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}} {{.Config.OpenStdin}} {{.State.Status}} {{.Config.Labels.a}}", "box"}, 0, `^67108864 500000000 20 true created b\n$`, ``},
		{words("start box"), 0, `^box\n$`, ``},
		{words("start box"), 0, `^box\n$`, ``},
		{words("ps -q --filter label=a=b --filter status=running --filter ancestor=app"), 0, `^` + short + `\n$`, ``},
		{words("ps -q --filter label=kind=app"), 0, `^` + short + `\n$`, ``}, // the image's label
		{words("rm box"), 1, ``, `container is running`},
		{words("rmi app"), 1, ``, `in use`},
		{words("rename box other"), 0, ``, ``},
		{words("rename other b@d"), 1, ``, `not a container's name`},
		{words("top other"), 0, `/bin/prog orders`, ``},
		{words("stats --no-stream --format {{.Name}}/{{.MemUsage}} other"), 0, `^other/[0-9.]+[KM]iB / 64MiB\n$`, ``},
		{words("stats --no-stream --format {{.Name}}"), 0, `^other\n$`, ``},
		{words("stop -t 0 other"), 0, `^other\n$`, ``},
		{[]string{"ps", "-a", "--format", "{{.Status}}"}, 0, `^Exited \((2|137)\) .* ago\n$`, ``}, // Go programs end by SIGTERM with 2 if time allows
		{words("wait other"), 0, `^(2|137)\n$`, ``},
		{words("logs other"), 0, `^> ready\n$`, ``},
		{words("start other"), 0, `^other\n$`, ``},
		{words("restart -t 0 other"), 0, `^other\n$`, ``},
		{words("kill other"), 0, `^other\n$`, ``},
		{words("wait other"), 0, `^137\n$`, ``},
		{words("kill other"), 1, ``, `is not running`},
		{words("rm other"), 0, `^other\n$`, ``},
		{words("rm other"), 1, ``, `No such container: other`},
		{words("ps -a -q"), 0, ``, ``},
	})
	w.testKeeps(t)
	w.testUnended(t)
	w.testWatch(t)
	w.testAttach(t)
	w.testTerminal(t)

	w.ok(t, words("create --network none --name left app")...)
	w.run(t, []line{
		{words("container prune -f --filter label=none"), 0, `^Total reclaimed space: 0B\n$`, ``},
		{words("container prune -f"), 0, `(?s)^Deleted Containers:\n[0-9a-f]{64}\n.*Total`, ``},
		{words("ps -a -q"), 0, ``, ``},
		{words("rmi app"), 0, `^Untagged: app:latest\nDeleted: `, ``},
	})
}

// testKeeps: files that a container wrote to its root are there at the next start.
func (w *world) testKeeps(t *testing.T) {
	t.Helper()
	w.ok(t, words("run -d --network none --name keeps app append /data/file more")...)
	w.run(t, []line{
		{words("wait keeps"), 0, `^0\n$`, ``},
		{words("start -a keeps"), 0, ``, ``},
		{words("inspect --size --format {{.SizeRw}} keeps"), 0, `^[1-9][0-9]*\n$`, ``},
		{words("ps -a -s --format {{.Size}} --filter name=keeps"), 0, `^[0-9.]+k?M?B \(virtual [0-9.]+MB\)\n$`, ``},
		{words("rm -f keeps"), 0, `^keeps\n$`, ``},
	})
}

// testTerminal: a terminal passes on its size, Ctrl-C and the detach keys, and a new client can
// type on.
func (w *world) testTerminal(t *testing.T) {
	t.Helper()
	sitDown := func(args ...string) *daemontest.Terminal {
		return daemontest.RunAtTerminal(t, w.command(t.Context(), args...), 30, 100)
	}
	u := sitDown(words("run -it --rm --network none --name screen app orders")...)
	u.Sees("> ready\r\n")
	for u.Types("winsize\r"); !u.Saw("30 100\r\n"); u.Types("winsize\r") { // the client sends the size after the start of the container
		u.Sees("> ok\r\n")
	}
	u.Types("trap\r")
	u.Sees("ready\r\n")
	u.Types("\x03")
	u.Sees("terminated\r\n> ok\r\n")
	u.Types("\x10\x11")
	u.Leaves(0)
	u = sitDown("attach", "screen")
	u.Types("args back\r")
	u.Sees("back\r\n> ok\r\n")
	u.Types("exit 3\r")
	u.Leaves(3)
}

// testUnended: a log ends as the program's output did, in the middle of a line.
func (w *world) testUnended(t *testing.T) {
	t.Helper()
	w.ok(t, words("create --network none --name unended app cat /data/file")...)
	w.run(t, []line{
		{words("start -a unended"), 0, `^from the image$`, ``},
		{words("logs unended"), 0, `^from the image$`, ``},
		{words("logs -f --tail 1 unended"), 0, `^from the image$`, ``},
		{words("logs -t --since 1h unended"), 0, `^2[^ ]*Z from the image$`, ``},
		{words("start -a unended"), 0, `^from the image$`, ``},
		{words("logs unended"), 0, `^from the imagefrom the image$`, ``},
		{words("rm unended"), 0, `^unended\n$`, ``},
	})
}

// testWatch: docker events prints events as they happen.
func (w *world) testWatch(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	events := w.command(ctx, "events", "--since", "1s", "--filter", "container=watched", "--filter", "event=create", "--filter", "event=start", "--filter", "event=die", "--filter", "event=destroy", "--format", "{{.Action}}")
	out, err := events.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, step := range []struct{ command, event string }{
		{"create --network none --name watched app sleep", "create"}, {"start watched", "start"}, {"kill watched", "die"}, {"rm watched", "destroy"},
	} {
		w.ok(t, words(step.command)...)
		if !lines.Scan() || lines.Text() != step.event {
			t.Fatalf("after docker %s the event is %q, want %q", step.command, lines.Text(), step.event)
		}
	}
	cancel()
	_ = events.Wait() // killed
}

// testAttach: clients can attach to streams and resize a terminal.
func (w *world) testAttach(t *testing.T) {
	t.Helper()
	w.ok(t, words("run -d -i --network none --name talks app orders")...)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := w.command(ctx, "attach", "talks")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "args one\n"); err != nil {
		t.Fatal(err)
	}
	want, got := "one\n> ok\n", ""
	for buf := make([]byte, 64); !strings.HasSuffix(got, want); {
		n, err := out.Read(buf)
		if got += string(buf[:n]); err != nil {
			t.Fatalf("docker attach prints %q, %v, want %q", got, err, want)
		}
	}
	if _, err := io.WriteString(in, "exit 3\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(out)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("docker attach: exit status %d, want the container's, 3", code)
	}
	w.ok(t, "rm", "talks")

	// A terminal has one raw stream, and a size.
	client := w.http()
	post := func(path, body string, status int) map[string]any {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://docker/v1.41"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer map[string]any
		text, err := io.ReadAll(resp.Body)
		if err == nil && len(text) > 0 && resp.Header.Get("Content-Type") == "application/json" {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil || resp.StatusCode != status {
			t.Fatalf("POST %s: %s, %v, want status %d: %s", path, resp.Status, err, status, text)
		}
		return answer
	}
	made := post("/containers/create?name=term", `{"Image":"app","Cmd":["orders"],"Tty":true,"OpenStdin":true,"HostConfig":{"NetworkMode":"none","Annotations":{"a":"b"}}}`, http.StatusCreated)
	w.run(t, []line{{[]string{"inspect", "--format", "{{json .HostConfig.Annotations}}", "term"}, 0, `^{"a":"b"}\n$`, ``}})
	if diff := cmp.Diff([]any{}, made["Warnings"]); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	post("/containers/term/start", "", http.StatusNoContent)
	post("/containers/term/resize?h=40&w=100", "", http.StatusOK)
	post("/containers/term/resize?h=x&w=100", "", http.StatusBadRequest)
	if err := testdaemon.Until(ctx, func() error {
		if got := w.ok(t, "logs", "term"); !strings.Contains(got, "> ready") {
			return fmt.Errorf("docker logs prints %q", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	post("/containers/term/kill", "", http.StatusNoContent)
	post("/containers/create?name=plain", `{"Image":"app","Cmd":["orders"],"OpenStdin":true,"HostConfig":{"NetworkMode":"none"}}`, http.StatusCreated)
	post("/containers/plain/resize?h=40&w=100", "", http.StatusConflict)
	w.ok(t, "rm", "plain")
	w.run(t, []line{{words("logs term"), 0, `^> ready\r?\n$`, ``}, {words("rm term"), 0, `^term\n$`, ``}})
}

// Watching clients do not keep an engine from a stop.
func TestStop(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	d := daemontest.Start(t, testdaemon.Config{State: filepath.Join(daemontest.Dir(t), "state"), Args: []string{"--drain", "24h"}, Log: t.Output()})
	stop := sync.OnceFunc(func() { daemontest.Stop(t, d) })
	t.Cleanup(stop)
	w := &world{Daemon: d, client: clients(t)[0], config: t.TempDir()}
	w.app(t)
	w.ok(t, words("run -d --network none --name watched app sleep")...)
	ctx, cancel := context.WithCancel(t.Context()) // the clients watch for longer than a stop may take
	defer cancel()
	for _, args := range []string{"stats --format {{.Name}} watched", "logs -f watched", "events --since 1h", "attach --no-stdin watched"} {
		cmd := w.command(ctx, words(args)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Wait() }() // killed
		defer cancel()
		if strings.HasPrefix(args, "attach") {
			continue // prints nothing
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatalf("docker %s: %v", args, err)
		}
	}
	stop()
}
