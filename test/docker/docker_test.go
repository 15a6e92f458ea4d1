package docker_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// The client gets version, information, networks, volumes and disk usage of the engine.
func TestSystem(t *testing.T) { each(t, nil, (*world).testSystem) }

func (w *world) testSystem(t *testing.T) {
	t.Helper()
	w.run(t, []line{
		{words("version --format {{.Server.Os}}/{{.Server.MinAPIVersion}}"), 0, `^linux/1\.41\n$`, ``},
		{[]string{"version", "--format", "{{range .Server.Components}}{{.Name}} {{.Details.Experimental}}{{end}}"}, 0, `^Engine false\n$`, ``},
		{words("info --format {{.Driver}}/{{.Swarm.LocalNodeState}}/{{.Images}}/{{.Containers}}"), 0, `^fre/inactive/0/0\n$`, ``},
		{words("info"), 0, `Storage Driver: fre\n`, `^(WARNING: No oom kill disable support\n)?$`},
		{words("images"), 0, `^REPOSITORY +TAG +IMAGE ID +CREATED +SIZE\n$`, ``},
		{words("ps -a -s"), 0, `^CONTAINER ID .* SIZE\n$`, ``},
		{words("network ls --format {{.Name}}"), 0, `^bridge\nhost\nnone\n$`, ``},
		{words("network inspect none --format {{.Driver}}"), 0, `^null\n$`, ``},
		{words("network ls --filter driver=host -q"), 0, `^[0-9a-f]{12}\n$`, ``},
		{words("network inspect nothing"), 1, `^\[\]\n$`, `(?i)(no such network: nothing|network nothing not found)`},
		{words("volume ls -q"), 0, `^fre-work\n$`, ``},
		{words("volume inspect fre-work --format {{.Mountpoint}}"), 0, `^/work\n$`, ``},
		{words("volume inspect other"), 1, `^\[\]\n$`, `(?i)no such volume`},
		{words("network prune -f"), 0, ``, ``},
		{words("network prune -f --filter bad=1"), 1, ``, `invalid filter 'bad'`},
		{words("volume prune -f --filter bad=1"), 1, ``, `invalid filter 'bad'`},
		{words("volume prune -f"), 0, `Total reclaimed space: 0B`, ``},
		{words("system df --format {{.Type}}:{{.TotalCount}}"), 0, `^Images:0\nContainers:0\nLocal Volumes:[01]\nBuild Cache:0\n$`, ``},
		{words("image prune -f"), 0, `Total reclaimed space: 0B`, ``},
	})
}

// Images have names and digests, and the client lists, filters, tags and removes them.
func TestImages(t *testing.T) { each(t, []string{"hello"}, (*world).testImages) }

func (w *world) testImages(t *testing.T) {
	t.Helper()
	id := w.ok(t, "images", "-q", "--no-trunc")
	short := strings.TrimPrefix(id, "sha256:")[:12]
	w.run(t, []line{
		{words("images --format {{.Repository}}:{{.Tag}}"), 0, `^hello:1\n$`, ``},
		{words("tag hello:1 localhost:5000/team/hello:1.2"), 0, ``, ``},
		{words("tag " + short + " docker.io/library/alias"), 0, ``, ``},
		{words("images -q"), 0, `^(` + short + `\n){3}$`, ``},
		{words("images --format {{.Repository}}:{{.Tag}}"), 0, `(?m)^hello:1$`, ``},
		{words("images --format {{.Repository}}:{{.Tag}}"), 0, `(?m)^alias:latest$`, ``},
		{words("images --format {{.Repository}}:{{.Tag}}"), 0, `(?m)^localhost:5000/team/hello:1.2$`, ``},
		{words("images -q localhost:5000/team/hello"), 0, `^` + short + `\n$`, ``},
		{words("images -q --filter reference=ali*"), 0, `^` + short + `\n$`, ``},
		{words("images -q --filter reference=nothing"), 0, ``, ``},
		{words("images -q --filter dangling=true"), 0, ``, ``},
		{words("images -q --filter before=hello:1"), 0, ``, ``},
		{words("images -q --filter label=nothing"), 0, ``, ``},
		{words("images -q --filter label!=nothing --filter dangling=false hello"), 0, `^` + short + `\n$`, ``},
		{words("images -q --filter since=hello:1"), 0, ``, ``},
		{words("images --digests --format {{.Digest}} alias"), 0, `^<none>\n$`, ``},
		{[]string{"inspect", "--format", "{{.Id}} {{index .RepoTags 1}} {{.Os}} {{json .Config.Cmd}}", "alias"}, 0, `^` + id + ` alias:latest linux \["/function/program","function"\]\n$`, ``},
		{words("inspect --type image " + id + " --format {{.RootFS.Type}}"), 0, `^layers\n$`, ``},
		{words("history -q --no-trunc hello:1"), 0, `^` + id + `\n$`, ``},
		{words("history hello:1 --format {{.CreatedBy}}"), 0, `code hello\n$`, ``},

		{[]string{"system", "df", "--format", "{{.Type}}:{{.TotalCount}}:{{.Active}}:{{.Size}}"}, 0, `^Images:1:1:[0-9.]+MB\n`, ``},
		{[]string{"system", "df", "--format", "{{.Type}}:{{.Reclaimable}}"}, 0, `^Images:0B \(0%\)\n`, ``},
		{words("system df -v"), 0, `(?m)^hello +1 +` + short, ``},
		{words("rmi alias"), 0, `^Untagged: alias:latest\n$`, ``},
		{words("rmi " + short), 1, ``, `several names: hello:1, localhost:5000/team/hello:1.2 \(must be forced\)`},
		{words("rmi -f " + short), 1, ``, `conflict: .*in use`},
		{words("rmi localhost:5000/team/hello:1.2"), 0, `^Untagged: localhost:5000/team/hello:1.2\n$`, ``},
		{words("rmi hello:1"), 1, ``, `conflict: .*in use`},
		{words("rmi hello"), 1, ``, `No such image: hello`},
		{words("rmi nothing"), 1, ``, `No such image: nothing`},
		{words("rmi -f nothing"), 0, ``, `No such image: nothing`},
		{words("image inspect nothing"), 1, `^\[\]\n$`, `(?i)no such image: nothing`},
		{words("tag nothing other"), 1, ``, `No such image: nothing:latest`},
		{words("tag hello:1 Other"), 1, ``, `(?i)(repository name must be lowercase|invalid reference format)`},
		{words("images --filter bad=1"), 1, ``, `invalid filter 'bad'`},
		{words("images --filter dangling=maybe"), 1, ``, `(?i)invalid filter 'dangling=maybe'`},
		{words("images --filter since=nothing"), 1, ``, `No such image: nothing:latest`},
		{words("images --filter reference=["), 1, ``, `invalid filter 'reference=\['`},
	})
	if _, err := w.CLI(t.Context(), "function", "rm", "hello"); err != nil {
		t.Fatal(err)
	}
	w.run(t, []line{
		{words("image prune -f"), 0, `Total reclaimed space: 0B`, ``},
		{words("rmi hello:1"), 0, `^Untagged: hello:1\nDeleted: ` + id + `\n$`, ``},
		{words("images -q"), 0, ``, ``},
	})
}

// The instances of functions appear as containers.
func TestInstances(t *testing.T) { each(t, []string{"hello", "other"}, (*world).testInstances) }

func (w *world) testInstances(t *testing.T) {
	t.Helper()
	w.invoke(t, "hello", "/say", "first")
	w.invoke(t, "other", "/say", "else")
	w.invoke(t, "hello", "/say", "second")
	id := w.ok(t, "ps", "-q", "--filter", "label=fre.function=hello")
	other := w.ok(t, "ps", "-q", "--filter", "name=other-")
	name := "hello-" + id
	w.run(t, []line{
		{words("ps --format {{.Names}}"), 0, `^other-` + other + `\n` + name + `\n$`, ``},
		{words("ps -l -q"), 0, `^` + other + `\n$`, ``},
		{words("ps -n 1 -q"), 0, `^` + other + `\n$`, ``},
		{[]string{"ps", "-s", "--format", "{{.Image}} {{.State}} {{.Status}} {{.Size}}", "--filter", "id=" + id}, 0, `^hello:1 running Up .* [0-9.]+k?B \(virtual [0-9.]+MB\)\n$`, ``},
		{words("ps -q --filter ancestor=hello:1"), 0, `^` + id + `\n$`, ``},
		{words("ps -q --filter before=" + other), 0, `^` + id + `\n$`, ``},
		{words("ps -q --filter since=" + name), 0, `^` + other + `\n$`, ``},
		{words("ps -q --filter network=none --filter label=fre.tenant=default --filter name=^/hello"), 0, `^` + id + `\n$`, ``},
		{words("ps -q --filter volume=/work --filter status=running --filter health=none --filter is-task=false --filter name=hello"), 0, `^` + id + `\n$`, ``},
		{words("ps -q --filter status=exited"), 0, ``, ``},
		{words("ps -q --filter publish=80"), 0, ``, ``},
		{words("ps -q --filter ancestor=nothing"), 0, ``, ``},
		{words("ps --filter status=bad"), 1, ``, `invalid filter 'status=bad'`},
		{words("ps --filter exited=bad"), 1, ``, `invalid filter 'exited=bad'`},
		{words("ps --filter since=nothing"), 1, ``, `No such container: nothing`},
		{words("ps --filter bad=1"), 1, ``, `invalid filter 'bad'`},
		{[]string{"inspect", "--format", "{{.State.Status}} {{.Path}} {{.HostConfig.NetworkMode}} {{.Config.Image}} {{.Name}}", id}, 0, `^running /function/program none hello:1 /` + name + `\n$`, ``},
		{words("inspect --size --type container --format {{.SizeRw}} " + name), 0, `^[0-9]+\n$`, ``},
		{words("inspect nothing"), 1, `^\[\]\n$`, `(?i)no such object: nothing`},

		{words("logs " + id), 0, `^out first\nout second\n$`, `^err first\nerr second\n$`},
		{words("logs -t " + id), 0, `^2[0-9-]{9}T[0-9:.]{18}Z out first\n`, `Z err first\n`},
		{words("logs --since 1h --until 30m " + id), 0, ``, ``},
		{words("logs --until 2000-01-01 " + id), 0, ``, ``},
		{words("logs --since 2000-01-01T00:00:00Z " + id), 0, `^out first\n`, `^err first\n`},
		{words("logs nothing"), 1, ``, `No such container: nothing`},

		{words("top " + id), 0, `CMD\n.*/function/program function\s*\n$`, ``},
		{words("top " + id + " aux"), 1, ``, `FRE has no ps aux`},
		{[]string{"stats", "--no-stream", "--format", "{{.Name}} {{.PIDs}} {{.MemUsage}}", id}, 0, `^` + name + ` [1-9][0-9]* [0-9.]+[KM]iB / 128MiB\n$`, ``},
		{words("stats --no-stream nothing"), 1, ``, `No such container: nothing`},

		{words("kill -s NOSUCH " + id), 1, ``, `(?i)invalid signal: NOSUCH`},
		{words("kill " + id), 0, `^` + id + `\n$`, ``},
		{words("wait " + id), 0, `^137\n$`, ``},
		{words("kill " + id), 1, ``, `is not running`},
		{words("stop " + id), 0, `^` + id + `\n$`, ``},
		{words("top " + id), 1, ``, `is not running`},
		{[]string{"ps", "-a", "--filter", "exited=137", "--format", "{{.ID}} {{.Status}}"}, 0, `^` + id + ` Exited \(137\) .* ago\n$`, ``},
		{words("logs " + id), 0, `^out first\nout second\n$`, `^err first`},
		{words("stop " + other), 0, `^` + other + `\n$`, ``},
		{words("ps -q"), 0, ``, ``},
	})
}

// docker logs -n prints the last lines of both streams together.
func TestLogTail(t *testing.T) { each(t, []string{"hello"}, (*world).testLogTail) }

func (w *world) testLogTail(t *testing.T) {
	t.Helper()
	w.invoke(t, "hello", "/say", "first")
	w.invoke(t, "hello", "/say", "second")
	id := w.ok(t, "ps", "-q")
	lines := func(n string) (int, result) {
		t.Helper()
		r := w.docker(t, "logs", "-n", n, id)
		return strings.Count(r.stdout+r.stderr, "\n"), r
	}
	if err := testdaemon.Until(t.Context(), func() error { // a function's output may arrive after its answer
		if got, r := lines("all"); got != 4 {
			return fmt.Errorf("docker logs: %d lines, want 4: %q %q", got, r.stdout, r.stderr)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[string]int{"0": 0, "1": 1, "3": 3, "all": 4} {
		if got, r := lines(n); r.code != 0 || got != want {
			t.Errorf("docker logs -n %s: exit status %d, %d lines, want %d: %q %q", n, r.code, got, want, r.stdout, r.stderr)
		}
	}
}

// Followed logs and events continue until the container's end.
func TestFollow(t *testing.T) { each(t, []string{"hello"}, (*world).testFollow) }

func (w *world) testFollow(t *testing.T) {
	t.Helper()
	w.invoke(t, "hello", "/say", "first")
	id := w.ok(t, "ps", "-q")
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	logs := w.command(ctx, "logs", "-f", id)
	out, err := logs.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := logs.Start(); err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
			t.Fatalf("docker logs -f prints %q, %v, want %q", got, err, want)
		}
	}
	expect("out first\n")
	w.invoke(t, "hello", "/say", "second")
	expect("out second\n")
	since := fmt.Sprint(time.Now().Unix() - 3600)
	w.ok(t, "stop", id)
	if rest, err := io.ReadAll(out); err != nil || len(rest) != 0 {
		t.Errorf("docker logs -f ends with %q, %v", rest, err)
	}
	if err := logs.Wait(); err != nil {
		t.Errorf("docker logs -f ends with %v", err)
	}

	until := fmt.Sprint(time.Now().Unix() + 1)
	format := "{{.Type}} {{.Action}} {{.Actor.Attributes.name}}"
	w.run(t, []line{
		{[]string{"events", "--since", since, "--until", until, "--filter", "type=container", "--format", format}, 0, `^container start hello-` + id + `\ncontainer die hello-` + id + `\ncontainer stop hello-` + id + `\n$`, ``},
		{[]string{"events", "--since", since, "--until", until, "--filter", "container=" + id, "--filter", "event=die", "--format", "{{.Actor.Attributes.exitCode}}"}, 0, `^[0-9]+\n$`, ``},
		{[]string{"events", "--since", since, "--until", until, "--filter", "type=network"}, 0, ``, ``},
		{[]string{"events", "--until", until, "--filter", "type=container", "--format", format}, 0, `^container start hello-` + id + `\ncontainer die hello-` + id + `\ncontainer stop hello-` + id + `\n$`, ``},
		{[]string{"events", "--since", "bad"}, 1, ``, `(?i)(is not a time|failed to parse value)`},
		{[]string{"events", "--filter", "bad=1"}, 1, ``, `invalid filter 'bad'`},
	})
}

// An unsupported command fails with the feature's name and an alternative.
func TestLeftOut(t *testing.T) { each(t, []string{"hello"}, (*world).testLeftOut) }

func (w *world) testLeftOut(t *testing.T) {
	t.Helper()
	w.invoke(t, "hello", "/", "")
	id := w.ok(t, "ps", "-q")
	w.run(t, []line{
		{words("exec " + id + " ls"), 1, ``, `FRE has no exec .*another container`},
		{words("pause " + id), 1, ``, `FRE has no pause: stop and start the container`},
		{words("cp " + id + ":/etc/hosts -"), 1, ``, `FRE has no cp .*/work`},
		{words("commit " + id), 1, ``, `FRE has no commit .*fre build`},
		{words("diff " + id), 1, ``, `FRE has no diff .*docker ps -s`},
		{words("export " + id), 1, ``, `FRE has no export .*docker save`},
		{words("network create x"), 1, ``, `FRE has no custom networks: use --network`},
		{words("volume create x"), 1, ``, `FRE has no custom volumes: .*-v /work`},
		{words("swarm init"), 1, ``, `FRE has no swarm: `},
		{words("service ls"), 1, ``, `FRE has no swarm services: .*fre deploy`},
		{words("plugin install x"), 1, ``, `FRE has no plugins: `},
		{words("search x"), 1, ``, `FRE has no search `},
	})
	r := w.dockerWith(t, "FROM scratch\n", "build", "-")
	if r.code != 1 || !strings.Contains(r.stderr, "fre build") {
		t.Errorf("docker build: exit status %d, want 1 and fre build named: %s", r.code, r.stderr)
	}
}
