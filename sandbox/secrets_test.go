package sandbox

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

const secretValue = "sk_live_only-in-memory\n"

// wantSecret reads a sandbox's secrets from inside, as the sandbox's user.
func wantSecret(t *testing.T, order func(string) (string, string), id string) {
	t.Helper()
	for _, c := range []struct{ command, printed, answer string }{
		{"ls /run/secrets", "stripe-key\n", "ok"},
		{"cat /run/secrets/stripe-key", secretValue, "ok"},
		{"stat /run/secrets", "40500 " + id + "\n", "ok"},
		{"stat /run/secrets/stripe-key", "100400 " + id + "\n", "ok"},
		{"write /run/secrets/stripe-key x", "", "open /run/secrets/stripe-key: permission denied"},
		{"write /run/secrets/new x", "", "open /run/secrets/new: permission denied"},
		{"write /run/new x", "", "open /run/new: permission denied"},
	} {
		printed, answer := order(c.command)
		readOnly := strings.Replace(c.answer, "permission denied", "read-only file system", 1)
		if printed != c.printed || answer != c.answer && answer != readOnly {
			t.Errorf("%s: printed %q and answered %q, want %q and %q", c.command, printed, answer, c.printed, c.answer)
		}
	}
	info, _ := order("cat /proc/self/environ /proc/self/cmdline /proc/self/mountinfo")
	if !strings.Contains(info, " /run ro,nosuid,nodev,noexec") {
		t.Errorf("/run is not mounted read-only:\n%s", info)
	}
	if strings.Contains(info, strings.TrimSpace(secretValue)) {
		t.Errorf("/proc shows the secret:\n%s", info)
	}
}

// TestSecrets: A sandbox finds its secrets, started by the spawner or in a bare parked sandbox.
func TestSecrets(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, background := range []bool{true, false} {
		inR, inW := pipe(t)
		outR, outW := pipe(t)
		spec := prog(root, "orders")
		spec.Stdin, spec.Stdout, spec.Stderr, spec.Background = inR, outW, outW, background
		spec.Secrets = []Secret{{"stripe-key", []byte(secretValue)}}
		spec.Repeats = true
		s, err := h.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		clear(spec.Secrets[0].Value) // as the engine does
		_, _ = inR.Close(), outW.Close()
		p := newOrders(t, s, inW, outR, root)
		wantSecret(t, p.order, "1000 1000")
		s.Kill()
		wait(t, s)
	}
	if n := h.Parked().Attached; n != 0 {
		t.Errorf("%d parked sandboxes wait with a tenant's secrets", n)
	}
	if _, err := os.Stat(root + "/run/secrets"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the image has /run/secrets: %v", err)
	}
}

// TestFurnishSecrets: A parked sandbox gets its secrets as files in memory.
func TestFurnishSecrets(t *testing.T) {
	h := openHost(t)
	p := park(t, h)
	p.want("ls /run", "", "ok")
	if err := p.Furnish(Furnishing{Secrets: []Secret{{"stripe-key", []byte(secretValue)}}}); err != nil {
		t.Fatal(err)
	}
	wantSecret(t, p.order, "1000 1000")
}

// TestSecretNames: A secret whose name is not a plain file name is refused.
func TestSecretNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/etc/passwd", "a\x00", strings.Repeat("a", 256)} {
		if err := checkSecrets([]Secret{{Name: name}}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: %v, want EINVAL", name, err)
		}
	}
}
