package security

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

// secretOfA may be read by tenant a's sandbox only.
const secretOfA = "sk_live_of-tenant-a"

// Only a tenant's own sandbox reads its secret. Another sandbox, the shared image and other users
// of the host never show the secret.
func TestOthersSecrets(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	in, _ := pipe(t) // keeps the sandbox running
	owner := prog(root, "orders")
	owner.Stdin, owner.Secrets = in, []sandbox.Secret{{Name: "key", Value: []byte(secretOfA + "\n")}}
	a, _, _ := startReady(t, h, owner)

	// The owner can read the secret, but not change or move it.
	attempts := []string{"write /run/secrets/key x", "write /run/secrets/new x", "remove /run/secrets/key", "rename /run/secrets/key /tmp/key", "mkdir /run/more"}
	got := orders(t, h, owner, append([]string{"cat /run/secrets/key"}, attempts...)...)
	if !strings.Contains(got[0], secretOfA) {
		t.Fatalf("its owner reads %q", got[0])
	}
	for i, command := range attempts {
		if strings.HasSuffix(got[i+1], "ok") {
			t.Errorf("%s: %q", command, got[i+1])
		}
	}
	pid := strconv.Itoa(a.PID())
	var ways []string
	for _, path := range []string{
		"/run/secrets/key", "/proc/1/root/run/secrets/key", "/proc/" + pid + "/root/run/secrets/key", "/proc/self/root/../run/secrets/key", "/proc/2/root/run/secrets/key",
	} {
		ways = append(ways, "cat "+path)
	}
	spec := prog(root, "orders")
	spec.User = another
	for i, got := range orders(t, h, spec, ways...) {
		if strings.Contains(got, secretOfA) || strings.HasSuffix(got, "ok") {
			t.Errorf("another tenant: %s: %q", ways[i], got)
		}
	}
	// The host's view of the processes, as root.
	for _, file := range []string{"environ", "cmdline", "mountinfo", "mounts", "stat", "status"} {
		raw, err := os.ReadFile(filepath.Join("/proc", pid, file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), secretOfA) {
			t.Errorf("/proc/%s/%s shows the secret", pid, file)
		}
	}
	// Root reads the secret through the owner's process; another user of the host cannot.
	path := filepath.Join("/proc", pid, "root/run/secrets/key")
	if raw, err := os.ReadFile(path); err != nil || string(raw) != secretOfA+"\n" {
		t.Errorf("root reads %q, %v: the way to it is wrong", raw, err)
	}
	cmd := exec.CommandContext(t.Context(), "cat", path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), secretOfA) {
		t.Errorf("another user of the host reads %q, %v", out, err)
	}
	if _, err := os.Lstat(filepath.Join(root, "run/secrets")); err == nil {
		t.Error("the image has /run/secrets")
	}
}
