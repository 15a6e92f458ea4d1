package access

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestSecrets(t *testing.T) {
	a := open(t, Config{})
	put := func(mode PutMode, name, value string) error { return a.PutSecret("acme", name, []byte(value), mode) }
	if err := put(Update, "key", "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("update of none: %v, want fs.ErrNotExist", err)
	}
	if err := put(Create, "key", "one"); err != nil {
		t.Fatal(err)
	}
	if err := put(Create, "key", "two"); !errors.Is(err, ErrExists) {
		t.Errorf("create of what is there: %v, want ErrExists", err)
	}
	if err := put(Update, "key", "three"); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Secret("acme", "key"); err != nil || string(got) != "three" {
		t.Errorf("Secret = %q, %v, want three", got, err)
	}
	list, err := a.Secrets("acme")
	if err != nil || len(list) != 1 || list[0].Name != "key" || list[0].Bytes != 5 {
		t.Errorf("Secrets = %+v, %v, want key of 5 bytes", list, err)
	}
	if list, err := a.Secrets("other"); err != nil || len(list) != 0 {
		t.Errorf("another tenant's = %+v, %v, want none", list, err)
	}
	if _, err := a.Secret("other", "key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("as another tenant: %v, want fs.ErrNotExist", err)
	}
	if err := a.RemoveSecret("acme", "key"); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveSecret("acme", "key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed again: %v, want fs.ErrNotExist", err)
	}
}

func TestSecretRefused(t *testing.T) {
	a := open(t, Config{})
	for _, c := range []struct{ tenant, name, value string }{
		{"acme", "", "x"},
		{"acme", "..", "x"},
		{"acme", "a/b", "x"},
		{"acme", ".hidden", "x"},
		{"acme", strings.Repeat("a", 64), "x"},
		{"acme", "a\x00", "x"},
		{"..", "key", "x"},
		{"", "key", "x"},
		{AllTenants, "key", "x"},
	} {
		if err := a.PutSecret(c.tenant, c.name, []byte(c.value), Create); !errors.Is(err, ErrName) {
			t.Errorf("%q of %q: %v, want ErrName", c.name, c.tenant, err)
		}
		if _, err := a.Secret(c.tenant, c.name); !errors.Is(err, ErrName) {
			t.Errorf("read %q of %q: %v, want ErrName", c.name, c.tenant, err)
		}
	}
	for _, value := range []string{"", strings.Repeat("x", MaxSecretBytes+1)} {
		if err := a.PutSecret("acme", "key", []byte(value), Create); !errors.Is(err, ErrSecret) {
			t.Errorf("%d bytes: %v, want ErrSecret", len(value), err)
		}
	}
}

// A sealed file works only unchanged and in its own place.
func TestSecretMoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir})
	for _, tenant := range []string{"acme", "other"} {
		if err := a.PutSecret(tenant, "key", []byte("of "+tenant), Create); err != nil {
			t.Fatal(err)
		}
	}
	from, to := filepath.Join(dir, "secrets", "acme", "key"), filepath.Join(dir, "secrets", "other", "key")
	sealed, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, sealed, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Secret("other", "key"); !errors.Is(err, ErrSecret) {
		t.Errorf("another tenant's file: %q, %v, want ErrSecret", got, err)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if err := os.WriteFile(from, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := a.Secret("acme", "key"); err == nil {
			t.Errorf("byte %d changed: %q", i, got)
		}
	}
}

func TestKeyRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir})
	names := []string{"a", "b", "c"}
	for _, name := range names {
		if err := a.PutSecret("acme", name, []byte("value of "+name), Create); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, "secrets.key"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := a.Secrets("acme")
	if err != nil {
		t.Fatal(err)
	}
	// Readers get the value at all times meanwhile.
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := a.Secret("acme", "b"); err != nil || string(got) != "value of b" {
					t.Errorf("during the rotation: %q, %v", got, err)
					return
				}
			}
		})
	}
	for range 20 {
		if err := a.RotateKey(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	readers.Wait()
	after, err := os.ReadFile(filepath.Join(dir, "secrets.key"))
	if err != nil || bytes.Equal(before, after) {
		t.Errorf("the key file is the same, %v", err)
	}
	old, err := parseKeys(before)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		sealed, err := os.ReadFile(filepath.Join(dir, "secrets", "acme", name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := old.open("acme", name, sealed); err == nil {
			t.Errorf("the old key opens %s: %q", name, got)
		}
		if got, err := a.Secret("acme", name); err != nil || string(got) != "value of "+name {
			t.Errorf("Secret %s = %q, %v", name, got, err)
		}
	}
	relisted, err := a.Secrets("acme")
	if err != nil {
		t.Fatal(err)
	}
	for i := range listed {
		if !listed[i].Updated.Equal(relisted[i].Updated) {
			t.Errorf("%s was updated %v, want %v: its value is the same", listed[i].Name, relisted[i].Updated, listed[i].Updated)
		}
	}
}

// The next start finishes a key rotation that a crash interrupted, and no secret is lost.
func TestKeyRotationCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir})
	for _, name := range []string{"a", "b"} {
		if err := a.PutSecret("acme", name, []byte(name), Create); err != nil {
			t.Fatal(err)
		}
	}
	// The state after the key file and the first of two secrets were written.
	keys := append(keyring{newKey()}, a.keys.own...)
	if err := writeWhole(filepath.Join(dir, "secrets.key"), keys.encode()); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(filepath.Join(dir, "secrets", "acme", "a"), keys.seal("acme", "a", []byte("a"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secrets", "acme", ".tmp-1"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, Config{Dir: dir})
	for _, name := range []string{"a", "b"} {
		if got, err := b.Secret("acme", name); err != nil || string(got) != name {
			t.Errorf("Secret %s = %q, %v", name, got, err)
		}
	}
	if len(b.keys.own) != 1 {
		t.Errorf("%d keys are left, want the new one", len(b.keys.own))
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	for name, content := range map[string]string{"empty": "", "comment": "# none\n", "short": "00 00\n", "no hex": strings.Repeat("z", 16) + " " + strings.Repeat("z", 64) + "\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: t.TempDir(), KeyFile: path, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s: Open has taken it", name)
		}
	}
	if err := errors.Join(os.WriteFile(path, keyring{newKey()}.encode(), 0o600), os.Chmod(path, 0o640)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: t.TempDir(), KeyFile: path, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others may read: %v, want a refusal", err)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(keyring{newKey(), newKey()}.encode())
	f.Add([]byte("00 00\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := parseKeys(raw)
		if err != nil {
			return
		}
		again, err := parseKeys(r.encode())
		if err != nil || len(again) != len(r) {
			t.Errorf("parse(%q) = %d keys, written and read again %d, %v", raw, len(r), len(again), err)
		}
	})
}
