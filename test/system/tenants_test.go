package system

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// shellTemplate is the template of a function that runs its event as a script and answers with the
// output.
const shellTemplate = "id: %s\nbase: native\ntenant: %s\nhandler: run.sh\ncode: {path: src}\nresources: {memory: 16MiB, timeout: 5s}\n%s"

// tenantsRig is an engine with TLS, a remote control API and a configuration.
type tenantsRig struct {
	*testdaemon.Daemon
	t         *testing.T
	dir, cert string
	api       string
	log       bytes.Buffer
}

func startTenants(t *testing.T, config string) *tenantsRig {
	t.Helper()
	r := &tenantsRig{t: t, dir: daemontest.Dir(t)}
	r.cert = filepath.Join(r.dir, "cert.pem")
	pool := r.certificate(filepath.Join(r.dir, "key.pem"))
	r.api = freeAddress(t)
	configFile := filepath.Join(r.dir, "fre.yaml")
	if err := os.WriteFile(configFile, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Daemon = daemontest.Start(t, testdaemon.Config{
		State: filepath.Join(r.dir, "state"), TLS: &tls.Config{RootCAs: pool}, Log: &r.log,
		Args: []string{"--tls-cert", r.cert, "--tls-key", filepath.Join(r.dir, "key.pem"), "--api-listen", r.api, "--config", configFile},
	})
	return r
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := testdaemon.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// certificate makes a self-signed certificate for 127.0.0.1.
func (r *tenantsRig) certificate(keyFile string) *x509.CertPool {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fre"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		r.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		r.t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(r.cert, cert, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		r.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

// root runs fre over the socket.
func (r *tenantsRig) root(args ...string) string {
	r.t.Helper()
	out, err := r.CLI(r.t.Context(), args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// as runs fre over the network with a token and standard input.
func (r *tenantsRig) as(token, stdin string, args ...string) (string, error) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), daemontest.Bin(r.t), args...)
	cmd.Env = append(os.Environ(), "FRE_HOST=https://"+r.api, "FRE_TOKEN="+token, "SSL_CERT_FILE="+r.cert)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("fre %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (r *tenantsRig) mustAs(token, stdin string, args ...string) string {
	r.t.Helper()
	out, err := r.as(token, stdin, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *tenantsRig) refused(what, want string, err error) {
	r.t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		r.t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// template makes a directory with a function that runs its input as a shell script.
func (r *tenantsRig) template(name, tenant, more string) string {
	r.t.Helper()
	dir := filepath.Join(r.t.TempDir(), name)
	if err := os.MkdirAll(filepath.Join(dir, "src"), 0o755); err != nil {
		r.t.Fatal(err)
	}
	for file, content := range map[string]string{"fret.yaml": fmt.Sprintf(shellTemplate, name, tenant, more), "src/run.sh": "#!/bin/sh\nexec 2>&1\neval \"$(cat)\"\ntrue\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	return dir
}

// curl asks the gateway and returns the status and the answer with its headers.
func (r *tenantsRig) curl(path string, args ...string) (status, answer string) {
	r.t.Helper()
	out, err := exec.CommandContext(r.t.Context(), "curl", append([]string{"-s", "-i", "--cacert", r.cert, "-w", "\n%{http_code}", r.URL(path)}, args...)...).Output()
	if err != nil {
		r.t.Fatalf("curl %s %q: %v\n%s", path, args, err, out)
	}
	i := strings.LastIndexByte(string(out), '\n')
	return string(out[i+1:]), string(out[:i])
}

// Two tenants on one engine stay apart. Their users work with tokens over TLS, their callers with
// curl; secrets, functions, images, metrics and lists of a tenant stay invisible to the other
// tenant.
func TestTenants(t *testing.T) {
	r := startTenants(t, "access:\n  invoke: token\n")
	const value = "sk_live_0123456789"
	r.root("tenant", "create", "acme", "--events", "50", "--instances", "4")
	acme := r.root("token", "create", "ci", "--tenant", "acme", "--scopes", "deploy,invoke")
	other := r.root("token", "create", "other's", "--tenant", "other", "--scopes", "admin")

	// A missing secret refuses the deployment and names the next step.
	dir := r.template("pay", "acme", "secrets: [stripe-key]\n")
	_, err := r.as(acme, "", "deploy", dir)
	r.refused("without the secret", "fre secret create stripe-key --tenant acme", err)
	r.mustAs(acme, value, "secret", "create", "stripe-key", "--tenant", "acme")
	r.mustAs(acme, "", "deploy", dir)
	call := func(token, name, script string) (string, string) {
		args := []string{"--data-binary", script}
		if token != "" {
			args = append(args, "-H", "Authorization: Bearer "+token)
		}
		return r.curl("/function/"+name, args...)
	}
	if status, answer := call(acme, "pay.acme", "cat /run/secrets/stripe-key; env"); status != "200" || strings.Count(answer, value) != 1 || strings.Contains(answer, acme) {
		t.Errorf("the function: %s %s, want the secret once, and not the token", status, answer)
	}
	if out := r.mustAs(acme, "", "invoke", "pay.acme", "-d", "echo by the API"); out != "by the API" {
		t.Errorf("fre invoke from elsewhere: %q", out)
	}
	r.mustAs(acme, "sk_new", "secret", "update", "stripe-key", "--tenant", "acme")
	if _, answer := call(acme, "pay.acme", "cat /run/secrets/stripe-key"); !strings.HasSuffix(answer, "sk_new") {
		t.Errorf("after the update: %s", answer)
	}
	_, err = r.as(acme, "", "secret", "rm", "stripe-key", "--tenant", "acme")
	r.refused("a secret in use", "the function pay.acme reads the secret", err)

	// Only the function can read the secret's value.
	for _, args := range [][]string{{"function", "inspect", "pay.acme"}, {"image", "inspect", "pay"}, {"logs", "pay.acme"}, {"inspect", "pay"}, {"secret", "ls", "--tenant", "acme"}} {
		if out, err := r.CLI(t.Context(), args...); err == nil && (strings.Contains(out, value) || strings.Contains(out, "sk_new")) {
			t.Errorf("fre %s shows the secret:\n%s", strings.Join(args, " "), out)
		}
	}
	for _, secret := range []string{value, "sk_new", acme} {
		if out, err := exec.CommandContext(t.Context(), "grep", "-r", "-l", "-F", secret, r.State()).Output(); err == nil {
			t.Errorf("on disk is %.12s… in %s", secret, out)
		}
	}

	// The other tenant sees nothing of the first.
	r.mustAs(other, "", "deploy", r.template("spy", "other", ""))
	for script, want := range map[string]string{
		"ls /run/secrets":                       "No such file",
		"cat /work/of-acme":                     "No such file",
		"grep -l stripe /proc/*/environ; true":  "",
		"cat /proc/1/root/run/secrets/*":        "No such file",
		"ls -a /run; cat /run/../run/secrets/*": "No such file",
	} {
		if _, answer := call(acme, "pay.acme", "echo kept > /work/of-acme"); strings.Contains(answer, "rror") {
			t.Fatal(answer)
		}
		status, answer := call(other, "spy.other", script)
		if status == "404" || strings.Contains(answer, "sk_new") || strings.Contains(answer, "kept") || !strings.Contains(answer, want) {
			t.Errorf("%s: %s %s, want %q", script, status, answer, want)
		}
	}
	for _, name := range []string{"pay.acme", "pay.acme@1", "pay.acme@latest", "pay.acme%40latest"} {
		if status, _ := call(other, name, "true"); status != "404" {
			t.Errorf("another tenant's function %s: %s, want 404", name, status)
		}
		if status, _ := call("", name, "true"); status != "401" {
			t.Errorf("%s without a token: %s, want 401", name, status)
		}
		if status, _ := call(acme, name, "true"); status != "200" {
			t.Errorf("its own function %s: %s, want 200", name, status)
		}
	}
	for _, args := range [][]string{{"logs", "pay.acme"}, {"function", "inspect", "pay.acme"}, {"function", "rm", "pay.acme"}, {"image", "rm", "pay"}, {"secret", "ls", "--tenant", "acme"}} {
		_, err := r.as(other, "", args...)
		r.refused(strings.Join(args, " "), "exit status 4", err)
	}
	for _, args := range [][]string{{"functions", "-q"}, {"images", "-q"}, {"tenant", "ls", "-q"}, {"ps", "-a", "--format", "{{.Tenant}}"}} {
		if out := r.mustAs(other, "", args...); strings.Contains(out, "pay") || strings.Contains(out, "acme") {
			t.Errorf("fre %s as another tenant:\n%s", strings.Join(args, " "), out)
		}
	}
	if _, metrics := r.curl("/metrics", "-H", "Authorization: Bearer "+other); !strings.Contains(metrics, `function="spy.other"`) || strings.Contains(metrics, `function="pay.acme"`) {
		t.Errorf("the other's metrics:\n%s", metrics)
	}

	// Calls without a token, with a made-up token, or with too few scopes are refused.
	for name, c := range map[string]struct{ token, status, challenge string }{
		"none":    {"", "401", `Bearer realm="fre"`},
		"made up": {"fre_0000000000000000_" + strings.Repeat("A", 43), "401", "invalid_token"},
		"to read": {r.root("token", "create", "x", "--tenant", "acme", "--scopes", "read"), "403", `scope="invoke"`},
	} {
		if status, answer := call(c.token, "pay.acme", "true"); status != c.status || !strings.Contains(strings.ToLower(answer), "www-authenticate") || !strings.Contains(answer, c.challenge) {
			t.Errorf("%s: %s %s, want %s, %s", name, status, answer, c.status, c.challenge)
		}
	}
	_, err = r.as("", "", "functions")
	r.refused("fre without a token", "a token is needed", err)

	// After a rotation without grace the old token is refused.
	id := strings.Split(acme, "_")[1]
	next := r.root("token", "rotate", id, "--grace", "0s")
	_, err = r.as(acme, "", "functions")
	r.refused("the old token", "expired", err)
	if out := r.mustAs(next, "", "functions", "-q"); out != "pay.acme" {
		t.Errorf("the new token lists %q", out)
	}

	// With a quota of one instance, one event at a time runs.
	r.root("tenant", "quota", "other", "--instances", "1")
	if status, _ := call(other, "spy.other", "true"); status != "200" {
		t.Errorf("within the quota: %s", status)
	}
	r.root("tenant", "quota", "acme", "--events", "1")
	ctx, cancel := context.WithTimeout(t.Context(), deliveriesWithin)
	defer cancel()
	if err := testdaemon.Until(ctx, func() error { // eight events arrive within a second, unless the machine is busy
		var limited atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if status, answer := call(next, "pay.acme", "true"); status == "429" && strings.Contains(strings.ToLower(answer), "retry-after: ") {
					limited.Add(1)
				}
			})
		}
		all.Wait()
		if n := limited.Load(); n < 4 {
			return fmt.Errorf("%d of 8 events beyond the quota were refused", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}

	// The audit log has each action and survives the engine.
	audit, err := os.ReadFile(filepath.Join(r.State(), "access", "audit.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"who":"root"`, `"action":"POST /v1/tokens"`, `"on":"stripe-key"`, `"result":"refused"`, `"action":"authenticate"`, `"who":"token ci (` + id} {
		if !strings.Contains(string(audit), want) {
			t.Errorf("the audit log has no %s", want)
		}
	}
	r.Kill()
	again := daemontest.Start(t, testdaemon.Config{State: r.State(), Args: []string{"--api-listen", r.api}})
	defer daemontest.Stop(t, again)
	if out, err := again.CLI(t.Context(), "token", "ls", "-q"); err != nil || !strings.Contains(out, strings.Split(next, "_")[1]) {
		t.Errorf("after kill -9: tokens %q, %v", out, err)
	}
	if out, err := again.CLI(t.Context(), "invoke", "pay.acme", "-d", "cat /run/secrets/stripe-key"); err != nil || out != "sk_new" {
		t.Errorf("after kill -9: the secret is %q, %v", out, err)
	}
}

// Outside loopback the engine and the client both refuse to send tokens in the clear.
func TestAPIListenInTheClear(t *testing.T) {
	dir := daemontest.Dir(t)
	ctx, cancel := context.WithTimeout(t.Context(), deliveriesWithin)
	defer cancel()
	_, err := testdaemon.Command(ctx, daemontest.Bin(t), "serve", "--state", filepath.Join(dir, "state"), "--socket", filepath.Join(dir, "s"), "--listen", "127.0.0.1:0", "--api-listen", "0.0.0.0:0")
	if err == nil || !strings.Contains(err.Error(), "in the clear") {
		t.Errorf("fre serve: %v", err)
	}
	cmd := exec.CommandContext(ctx, daemontest.Bin(t), "functions")
	cmd.Env = append(os.Environ(), "FRE_HOST=http://192.0.2.1:1", "FRE_TOKEN=x")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "in the clear") {
		t.Errorf("fre functions: %v, %s", err, out)
	}
}
