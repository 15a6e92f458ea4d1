package registry

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// open returns the registry of a directory and closes it with the test.
func open(t testing.TB, dir string, cfg Config) *Registry {
	t.Helper()
	cfg.Dir = dir
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// serve serves a handler on a loopback address until the end of the test and returns the address.
func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	stop, addr := server(t, h)
	t.Cleanup(stop)
	return addr
}

// testUsers are reader and writer; both have the password "secret".
func testUsers(t testing.TB) *Users {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(file, []byte("reader:"+string(hash)+"\nwriter:"+string(hash)+":write\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	users, err := ReadUsers(file, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return users
}
