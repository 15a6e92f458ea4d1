package system

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// agentRig is an engine for tests of agents' sandboxes.
type agentRig struct {
	*tenantsRig
	c *client.Client
}

func startAgents(t *testing.T) *agentRig {
	t.Helper()
	fretest.RequireRoot(t)
	r := &agentRig{tenantsRig: startTenants(t, "")}
	r.c = client.New(r.Socket())
	t.Cleanup(r.c.Close)
	return r
}

func (r *agentRig) create(req api.AgentRequest) string {
	r.t.Helper()
	req.Image = "native"
	a, err := r.c.Agents().Create(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.ID
}

// sh runs a shell line in a sandbox.
func (r *agentRig) sh(ctx context.Context, id, line string, timeout time.Duration) (string, api.AgentExit, error) {
	var out bytes.Buffer
	exit, err := r.c.Agents().Exec(ctx, id, api.AgentExec{Shell: line, TimeoutMS: timeout.Milliseconds()}, nil, func(o api.AgentOutput) error {
		if out.Len() < 1<<20 {
			out.WriteString(o.Stdout + string(o.StdoutBase64) + o.Stderr + string(o.StderrBase64))
		}
		return nil
	})
	return out.String(), exit, err
}

func (r *agentRig) want(id, line, want string) {
	r.t.Helper()
	if out, exit, err := r.sh(r.t.Context(), id, line, 0); err != nil || exit.Code != 0 || strings.TrimSpace(out) != want {
		r.t.Errorf("%s: %q %+v %v, want %q", line, out, exit, err, want)
	}
}

// nothingOf waits until a removed sandbox leaves no trace: no directory, no entry in the list.
func (r *agentRig) nothingOf(id string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), deliveriesWithin)
	defer cancel()
	err := testdaemon.Until(ctx, func() error {
		if _, err := os.Stat(filepath.Join(r.State(), "tenants", "_temporary", id)); err == nil {
			return fmt.Errorf("the directory of %s is there", id)
		}
		all, err := r.c.Agents().List(ctx)
		if err == nil && strings.Contains(fmt.Sprint(all), id) {
			err = fmt.Errorf("%s is listed", id)
		}
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
}

// An agent's sandbox contains hostile commands, keeps snapshots apart and ends with the engine.
// Fork bombs, full disks and endless output stay inside the sandbox's limits; paths lead to no file
// of the host.
func TestAgents(t *testing.T) {
	r := startAgents(t)
	defer func() { daemontest.Stop(t, r.Daemon) }()
	ctx := t.Context()

	t.Run("hostile", func(t *testing.T) {
		id := r.create(api.AgentRequest{Work: "16MiB", Memory: "128MiB"})
		if _, text := r.curl("/metrics"); !strings.Contains(text, `fre_invocation_seconds_count{function="`+id+`",outcome="ok",revision="1"} 0`) {
			t.Error("to make one counts as an event of it")
		}
		if _, exit, err := r.sh(ctx, id, "sleep 600 & sleep 600", time.Second); err != nil || !exit.TimedOut {
			t.Errorf("a command without end: %+v %v", exit, err)
		}
		// exec: a shell that cannot fork ends by itself, and the agent leaves its children alone.
		if out, exit, err := r.sh(ctx, id, `f() { f | f & }; f 2>/dev/null & exec sleep 600`, 2*time.Second); err != nil || !exit.TimedOut {
			t.Errorf("a fork bomb: %s %+v %v", out, exit, err)
		}
		r.want(id, "echo alive", "alive")
		if out, exit, err := r.sh(ctx, id, "a=x; while :; do a=$a$a; done", time.Minute); err == nil && exit.Code == 0 {
			t.Errorf("all memory: %s %+v %v", out, exit, err)
		}
		r.want(id, "echo alive", "alive")
		if out, exit, err := r.sh(ctx, id, "cat /dev/zero > full", time.Minute); err != nil || exit.Code == 0 || !strings.Contains(out, "No space") && !strings.Contains(out, "quota") {
			t.Errorf("a full /work: %s %+v %v", out, exit, err)
		}
		if err := r.c.Agents().WriteFile(ctx, id, "more", "", bytes.NewReader(make([]byte, 1<<20))); err == nil || !strings.Contains(fmt.Sprint(err), "space") && !strings.Contains(fmt.Sprint(err), "quota") {
			t.Errorf("a file too many: %v", err)
		}
		if err := r.c.Agents().RemoveFile(ctx, id, "full", false); err != nil {
			t.Error(err)
		}
		if _, exit, err := r.sh(ctx, id, "head -c 64M /dev/zero", 0); err != nil || exit.Code != 0 {
			t.Errorf("much output: %+v %v", exit, err)
		}
		// Paths stay inside the sandbox, so /etc/passwd is the image's file.
		r.want(id, "ln -s / root; ln -s /etc/passwd link; ln -s "+r.State()+" state", "")
		for _, path := range []string{"link", "root/etc/passwd", "../etc/passwd", "../../../../etc/passwd", "/proc/1/root/etc/passwd"} {
			body, err := r.c.Agents().ReadFile(ctx, id, path, client.AgentRange{})
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			text, _ := io.ReadAll(body)
			_ = body.Close()
			if own, _ := os.ReadFile("/etc/passwd"); bytes.Equal(text, own) || !bytes.Contains(text, []byte("fre:")) {
				t.Errorf("%s is not the image's: %s", path, text)
			}
		}
		for _, path := range []string{"state/store/fre.db", "/etc/shadow", r.State(), "root" + r.State()} {
			if body, err := r.c.Agents().ReadFile(ctx, id, path, client.AgentRange{}); err == nil {
				_ = body.Close()
				t.Errorf("%s can be read", path)
			}
		}
		for _, path := range []string{"/etc/x", "/opt/fre/http", "/x"} {
			if err := r.c.Agents().WriteFile(ctx, id, path, "", strings.NewReader("x")); err == nil {
				t.Errorf("%s can be written", path)
			}
		}
		// No event reaches the sandbox by name: not through the gateway, not through the API of
		// functions.
		if status, _ := r.curl("/function/"+id+"/exec", "-d", `{"shell":"id"}`); status != "404" {
			t.Errorf("through the gateway: %s, want 404", status)
		}
		if resp, err := r.c.Functions().Invoke(ctx, id, client.Event{Path: "/exec"}); err == nil {
			_ = resp.Body.Close()
			t.Error("it can be invoked as a function")
		}
		// The engine kills the command of a client that leaves.
		leave, cancel := context.WithCancel(ctx)
		_, err := r.c.Agents().Exec(leave, id, api.AgentExec{Shell: "echo $$ > pid; echo begun; exec sleep 600"}, nil, func(api.AgentOutput) error { cancel(); return nil })
		if err == nil {
			t.Error("a command whose client has left ended well")
		}
		r.want(id, "while kill -0 $(cat pid) 2>/dev/null; do :; done; echo gone", "gone")
		_, err = r.c.Agents().Exec(ctx, id, api.AgentExec{Shell: "echo begun; exec sleep 600"}, nil, func(api.AgentOutput) error { return r.c.Agents().Remove(ctx, id) })
		if err == nil {
			t.Error("a command whose sandbox was removed ended well")
		}
		r.nothingOf(id)
		if err := testdaemon.Until(ctx, func() error {
			if _, text := r.curl("/metrics"); strings.Contains(text, id) {
				return fmt.Errorf("the metrics have %s", id)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})

	t.Run("snapshot", func(t *testing.T) {
		id := r.create(api.AgentRequest{})
		r.want(id, "mkdir -p d/e; echo one > d/e/f; ln -s e d/l; mkfifo p; echo '#!/bin/sh' > run; chmod 700 run", "")
		s, err := r.c.Agents().Snapshot(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.c.Agents().Snapshot(ctx, id); err != nil || again.Digest != s.Digest {
			t.Errorf("the same again: %+v %v, want %s", again, err, s.Digest)
		}
		r.want(id, "rm -r d p; i=0; while [ $i -lt 120 ]; do mkdir d; cd d; i=$((i+1)); done", "")
		if _, err := r.c.Agents().Snapshot(ctx, id); err == nil || !strings.Contains(err.Error(), "exceeds the limit of a snapshot") {
			t.Errorf("a deep tree: %v", err)
		}
		other := r.create(api.AgentRequest{Snapshot: s.Name})
		r.want(other, "cat d/l/f; readlink d/l; ls -l run | cut -c1-10; find . | sort | tr '\\n' ' '; echo more >> d/e/f", "one\ne\n-rwx------\n. ./d ./d/e ./d/e/f ./d/l ./run")
		third := r.create(api.AgentRequest{Snapshot: s.Digest})
		r.want(third, "cat d/e/f", "one") // the snapshot has no writes of other sandboxes
		if _, err := r.c.Agents().Create(ctx, api.AgentRequest{Image: "native", Snapshot: s.Name, Tenant: "other"}); err == nil {
			t.Error("another tenant can have the snapshot")
		}
		if err := r.c.Agents().RemoveSnapshot(ctx, s.Name); err != nil {
			t.Error(err)
		}
		if all, err := r.c.Agents().Snapshots(ctx); err != nil || len(all) != 0 {
			t.Errorf("snapshots: %v %v", all, err)
		}
	})

	t.Run("time", func(t *testing.T) {
		idle, old := r.create(api.AgentRequest{IdleSeconds: 1}), r.create(api.AgentRequest{AgeSeconds: 1})
		r.nothingOf(idle)
		r.nothingOf(old)
		if _, _, err := r.sh(ctx, idle, "true", 0); err == nil || !strings.Contains(fmt.Sprint(err), "no such agent's sandbox") {
			t.Errorf("one that has expired: %v", err)
		}
		for _, bad := range []api.AgentRequest{{IdleSeconds: -1}, {AgeSeconds: 1 << 30}, {Memory: "1MiB"}, {Network: "host"}, {Network: "egress", Allow: []string{"a b"}}, {Tenant: "A"}, {Image: "nothing"}, {Snapshot: "native"}} {
			if a, err := r.c.Agents().Create(ctx, bad); err == nil {
				t.Errorf("%+v made %+v", bad, a)
			}
		}
	})

	t.Run("tenants", r.testAgentTenants)
	t.Run("mcp", r.testMCP)

	// After a crash of the engine no process of a sandbox is left.
	left := r.create(api.AgentRequest{Work: "16MiB"})
	r.want(left, "echo kept > x; sleep 600 >/dev/null 2>&1 &", "")
	family := testdaemon.Descendants(r.PID())
	r.Kill()
	for _, p := range family {
		if err := testdaemon.Until(ctx, func() error {
			if p.Alive() {
				return fmt.Errorf("%s is alive", p)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	r.Daemon = daemontest.Start(t, testdaemon.Config{State: r.State(), Log: &r.log})
	r.c = client.New(r.Socket())
	t.Cleanup(r.c.Close)
	r.nothingOf(left)
}

// testAgentTenants: a token works on the sandboxes of its own tenant only, within its scopes and
// quotas.
func (r *agentRig) testAgentTenants(t *testing.T) {
	r.root("tenant", "create", "agents", "--instances", "1", "--work", "64MiB")
	token := func(tenant, scopes string) string {
		return r.root("token", "create", tenant+"-"+strings.ReplaceAll(scopes, ",", "-"), "--tenant", tenant, "--scopes", scopes)
	}
	all, reader, other := token("agents", "deploy,invoke,read"), token("agents", "read"), token("others", "admin")
	id := r.mustAs(all, "", "agent", "create", "--image", "native")
	if out := r.mustAs(all, "", "agent", "exec", id, "--", "sh", "-c", "echo $((6*7)); exit 0"); out != "42" {
		t.Errorf("exec: %q", out)
	}
	if out := r.mustAs(all, "in", "agent", "exec", "-i", id, "--", "cat"); out != "in" {
		t.Errorf("stdin: %q", out)
	}
	_, err := r.as(all, "", "agent", "exec", id, "--", "sh", "-c", "exit 7")
	r.refused("the exit code", "exit status 7", err)
	_, err = r.as(all, "", "agent", "exec", "--timeout", "1s", id, "--", "sleep", "600")
	r.refused("the time limit", "exit status 124", err)
	_, err = r.as(all, "", "agent", "exec", id, "--", "nothing")
	r.refused("a program that is not there", "exit status 127", err)
	_, err = r.as(all, "", "agent", "create", "--image", "native")
	r.refused("beyond the quota of instances", "quota of instances (1)", err)
	_, err = r.as(all, "", "agent", "create", "--image", "native", "--work", "60MiB")
	r.refused("beyond the quota of bytes", "bytes in /work of agents' sandboxes", err)
	_, err = r.as(all, "", "agent", "create", "--tenant", "others")
	r.refused("for another tenant", "exit status 1", err)
	_, err = r.as(other, "", "agent", "create", "--image", "tools/agent")
	r.refused("of another sandbox's image, which may be of that tenant's files", "image tools/agent: ", err)
	r.mustAs(all, "text", "agent", "cp", "-", id+":d/x")
	if out := r.mustAs(all, "", "agent", "cp", id+":d/x", "-"); out != "text" {
		t.Errorf("cp: %q", out)
	}
	for _, args := range [][]string{{"agent", "exec", id, "true"}, {"agent", "cp", id + ":d/x", "-"}, {"agent", "rm", id}, {"agent", "snapshot", id}, {"agent", "create"}} {
		_, err := r.as(reader, "", args...)
		r.refused(strings.Join(args, " ")+" with the scope read", "scope", err)
		if args[1] == "create" {
			continue
		}
		_, err = r.as(other, "", args...)
		r.refused(strings.Join(args, " ")+" of another tenant", "exit status", err)
	}
	if out := r.mustAs(reader, "", "agent", "ls", "-q"); out != id {
		t.Errorf("its list: %q", out)
	}
	if out := r.mustAs(other, "", "agent", "ls", "-q"); out != "" {
		t.Errorf("another's list: %q", out)
	}
	r.mustAs(all, "", "agent", "rm", id)
	r.nothingOf(id)
	audit, err := os.ReadFile(filepath.Join(r.State(), "access", "audit.ndjson"))
	if err != nil || !strings.Contains(string(audit), `"POST /v1/agents/{id}/exec"`) || strings.Contains(string(audit), "6*7") {
		t.Errorf("the audit log: %v", err)
	}
}

// testMCP runs the public MCP client for Python against `fre mcp`.
func (r *agentRig) testMCP(t *testing.T) {
	dir := daemontest.Dir(t)
	python := "/usr/bin/python3"
	install := exec.CommandContext(t.Context(), python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", dir, "mcp==1.12.4", "pydantic==2.11.7")
	install.Env = append(os.Environ(), "PIP_ROOT_USER_ACTION=ignore")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("pip: %v\n%s", err, out)
	}
	before, err := r.c.Agents().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/agentclient.py", daemontest.Bin(t), "mcp", "--image", "native")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "FRE_SOCKET="+r.Socket())
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
	// The end of the session removes its sandboxes. The client does not wait for the removal.
	ctx, cancel := context.WithTimeout(t.Context(), deliveriesWithin)
	defer cancel()
	if err := testdaemon.Until(ctx, func() error {
		after, err := r.c.Agents().List(ctx)
		if err == nil && len(after) != len(before) {
			err = fmt.Errorf("sandboxes after the session: %d, want the %d of before", len(after), len(before))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
