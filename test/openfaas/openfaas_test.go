// Package openfaas_test runs the commands of the real faas-cli. FRE_FAAS_CLI is its path. CI cannot
// download faas-cli, so make test-openfaas is not part of make test; there test/system asks for the
// same routes with OpenFaaS's own types.
package openfaas_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// cli is faas-cli with a home and a working directory of its own.
type cli struct {
	t       *testing.T
	program string
	dir     string
	gateway string
}

func (c *cli) try(input string, args ...string) (string, error) {
	c.t.Helper()
	return c.tryFor(c.t.Context(), input, args...)
}

func (c *cli) tryFor(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Dir, cmd.Stdin = c.dir, strings.NewReader(input)
	cmd.Env = []string{"HOME=" + c.dir, "OPENFAAS_URL=" + c.gateway, "PATH=/usr/bin:/bin"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// says runs a command, requires success and requires each text of want in the output.
func (c *cli) says(input string, want []string, args ...string) string {
	c.t.Helper()
	out, err := c.try(input, args...)
	for _, w := range want {
		if !strings.Contains(out, w) {
			c.t.Errorf("faas-cli %s does not say %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
	if err != nil {
		c.t.Fatalf("faas-cli %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refuses runs a command and requires want in its output. Some failed commands of faas-cli end with
// status 0.
func (c *cli) refuses(want string, args ...string) {
	c.t.Helper()
	if out, _ := c.try("", args...); !strings.Contains(out, want) {
		c.t.Errorf("faas-cli %s does not say %q:\n%s", strings.Join(args, " "), want, out)
	}
}

func (c *cli) write(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return path
}

const builderSecret = "a secret of the builder's"

// The commands of faas-cli in docs/openfaas.md work.
func TestFaasCLI(t *testing.T) {
	program := os.Getenv("FRE_FAAS_CLI")
	if program == "" {
		t.Fatal("FRE_FAAS_CLI does not say where faas-cli is: docs/openfaas.md says how it is built")
	}
	fretest.RequireRoot(t)
	dir := daemontest.Dir(t)
	c := &cli{t: t, program: program, dir: dir}
	payload := c.write("payload.txt", builderSecret)
	config := c.write("fre.yaml", fmt.Sprintf("openfaas: {builders: [{secret_file: %s}]}\n", payload))
	d := daemontest.Start(t, testdaemon.Config{State: filepath.Join(dir, "state"), Args: []string{"--config", config}})
	t.Cleanup(func() { daemontest.Stop(t, d) })
	c.gateway = d.URL("")
	root := func(args ...string) string {
		t.Helper()
		out, err := d.CLI(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}

	c.says("", []string{"gateway is ready"}, "ready")
	c.refuses("Unauthorized", "list")
	if out, err := c.try("wrong", "login", "--username", "admin", "--password-stdin"); err == nil {
		t.Errorf("a wrong password logs in: %s", out)
	}
	c.says(root("token", "create", "op", "--all-tenants", "--scopes", "admin"), []string{"credentials saved"}, "login", "--username", "admin", "--password-stdin")
	c.says("", []string{"orchestration: fre"}, "version", "--warn-update=false")

	// A remote build of a directory with a fret.yaml; the language's template does not matter.
	c.write("template/any/template.yml", "language: any\n")
	c.write("echo/fret.yaml", "id: echo\nbase: native\nhandler: run.sh\nsecrets: [greeting]\n")
	if err := os.Chmod(c.write("echo/run.sh", "#!/bin/sh\necho \"$(cat /var/openfaas/secrets/greeting), $(cat)$MARK\"\necho said >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.write("stack.yaml", `version: 1.0
provider: {name: openfaas}
functions:
  echo:
    lang: any
    handler: ./echo
    image: registry.example/echo:1
    secrets: [greeting]
    environment: {MARK: "!"}
    labels: {team: a}
    annotations: {note: b}
    limits: {memory: 32Mi, cpu: 500m}
`)
	c.write("value", "hello")
	remote := []string{"--remote-builder", c.gateway, "--payload-secret", payload}
	c.says("", []string{"success"}, append([]string{"publish"}, remote...)...)
	c.refuses("secret greeting of tenant default does not exist", "deploy")
	c.says("", []string{"202"}, "secret", "create", "greeting", "--from-file", "value")
	c.says("", []string{"greeting"}, "secret", "list")
	c.says("", []string{"202 Accepted"}, append([]string{"up"}, remote...)...)
	c.says("", []string{"echo"}, "list", "--verbose")
	c.says("", []string{"Ready", "registry.example/echo:1", "team: a", "note: b", "MARK: !"}, "describe", "echo")
	c.says("", []string{"is ready"}, "ready", "echo")
	c.says("you", []string{"hello, you!"}, "invoke", "echo")
	c.says("", []string{"hello, !"}, "invoke", "echo", "--method", "GET")
	c.says("later", []string{"asynchronously"}, "invoke", "echo", "--async")
	soon, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	if err := testdaemon.Until(soon, func() error {
		if n := strings.Count(root("logs", "echo"), "said"); n != 3 {
			return fmt.Errorf("%d events have run, want 3", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	c.says("", []string{"said"}, "logs", "echo", "--tail=false")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // follows until the context ends
	defer cancel()
	if out, _ := c.tryFor(ctx, "", "logs", "echo"); !strings.Contains(out, "said") {
		t.Errorf("followed logs: %s", out)
	}
	c.says("", []string{"202"}, "secret", "update", "greeting", "--from-file", payload)
	c.says("you", []string{builderSecret + ", you!"}, "invoke", "echo")
	c.refuses("reads the secret", "secret", "remove", "greeting")

	c.says("", []string{"acme"}, "namespace", "create", "acme")
	c.says("", []string{"acme", "openfaas-fn"}, "namespace", "list")
	c.refuses("No such function", "describe", "echo", "--namespace", "acme")
	c.says("", []string{}, "namespace", "remove", "acme")

	if out, err := c.try("", "publish", "--remote-builder", c.gateway, "--payload-secret", c.write("other", "not the secret")); err == nil || !strings.Contains(out, "401") {
		t.Errorf("wrong signature: %v %s", err, out)
	}
	c.says("", []string{"Removing"}, "remove", "echo")
	c.refuses("No existing function", "remove", "echo")
	c.says("", []string{}, "secret", "remove", "greeting")
}
