package system

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/adapters/lambda"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// boto3Version is the release that TestLambdaAPI runs.
const boto3Version = "1.44.8"

// pipInstall installs distributions from PyPI into a directory, and returns the Python of this
// machine that can load them.
func pipInstall(t *testing.T, dir string, requirements ...string) (python string) {
	t.Helper()
	python = "/usr/bin/python3" // scripts/deps.sh installs pip for this Python
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", dir}, requirements...)...)
	cmd.Env = append(os.Environ(), "PIP_ROOT_USER_ACTION=ignore", "PIP_DISABLE_PIP_VERSION_CHECK=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pip install %q: %v\n%s", requirements, err, out)
	}
	return python
}

// keysOf creates a token with an access key and returns AWS's variables for the key, with another
// prefix.
func keysOf(t *testing.T, d *testdaemon.Daemon, prefix, tenant, scopes string) []string {
	t.Helper()
	out, err := d.CLI(t.Context(), "token", "create", prefix, "--tenant", tenant, "--scopes", scopes, "--access-key")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "AWS_ACCESS_KEY_ID=FREA") || !strings.HasPrefix(lines[2], "AWS_SECRET_ACCESS_KEY=") {
		t.Fatalf("fre token create --access-key printed %d lines: %q", len(lines), out)
	}
	for i, l := range lines {
		lines[i] = prefix + strings.TrimPrefix(l, "AWS")
	}
	return lines[1:]
}

// An unmodified boto3 from PyPI creates, changes, calls and removes functions. The audit log
// records each action and never holds a secret key.
func TestLambdaAPI(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	dir := daemontest.Dir(t)
	python := pipInstall(t, filepath.Join(dir, "boto3"), "boto3=="+boto3Version)
	bootstrap := filepath.Join(dir, "bootstrap")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bootstrap, ".")
	build.Dir, build.Env = "testdata/lambda/go", append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off") // a module of its own
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	address := freeAddress(t)
	config := filepath.Join(dir, "fre.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "lambda: {listen: %s, region: eu-central-1}\n", address), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	d := daemontest.Start(t, testdaemon.Config{State: filepath.Join(dir, "state"), Log: &log, Args: []string{"--config", config}})
	t.Cleanup(func() {
		daemontest.Stop(t, d)
		if t.Failed() {
			t.Logf("engine's log:\n%s", log.String())
		}
	})
	cmd := exec.CommandContext(t.Context(), python, "testdata/lambda/client.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "boto3"), "PYTHONDONTWRITEBYTECODE=1", "LAMBDA_ENDPOINT=http://"+address, "LAMBDA_BOOTSTRAP="+bootstrap, "LAMBDA_ACCOUNT="+lambda.Account("acme"))
	cmd.Env = append(cmd.Env, keysOf(t, d, "AWS", "acme", "deploy,invoke")...)
	cmd.Env = append(cmd.Env, keysOf(t, d, "OTHER", "other", "deploy,invoke")...)
	cmd.Env = append(cmd.Env, keysOf(t, d, "CALLER", "acme", "invoke")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("boto3: %v\n%s", err, out)
	}

	// The audit log names the user and the action, and holds no secret.
	audit, err := os.ReadFile(filepath.Join(d.State(), "access", "audit.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"action":"lambda CreateFunction","on":"greet.acme","result":"done","status":201`, `"action":"lambda DeleteFunction","on":"greet","result":"refused"`, "the signature does not match"} {
		if !bytes.Contains(audit, []byte(want)) {
			t.Errorf("audit log: no %s in:\n%s", want, audit)
		}
	}
	for _, v := range cmd.Env {
		if _, secret, ok := strings.Cut(v, "_SECRET_ACCESS_KEY="); ok && (bytes.Contains(audit, []byte(secret)) || bytes.Contains(log.Bytes(), []byte(secret))) {
			t.Error("a secret access key is in a log")
		}
	}
}
