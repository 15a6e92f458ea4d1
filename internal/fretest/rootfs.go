package fretest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// program compiles testprog, once per test binary.
var program = sync.OnceValues(func() ([]byte, error) {
	// A machine without Go, such as the guest of test/v2, has a built testprog.
	if built := os.Getenv("FRE_TESTPROG"); built != "" {
		return os.ReadFile(built)
	}
	dir, err := os.MkdirTemp("", "testprog")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, "prog")
	cmd := exec.Command("go", "build", "-o", name, "github.com/fre-engine/fre/internal/fretest/testdata/testprog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build testprog: %w\n%s", err, out)
	}
	return os.ReadFile(name)
})

// Rootfs makes a root directory for a sandbox and removes it when the test ends. The directory
// holds the mount points and the statically linked program testprog as /bin/prog; the source of
// testprog lists the program's commands.
func Rootfs(t testing.TB) string {
	t.Helper()
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, dir := range []string{"bin", "dev", "etc", "opt", "proc", "run", "sys", "tmp", "work"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin/prog"), binary, 0o755); err != nil {
		t.Fatal(err)
	}
	// t.TempDir is private to its owner, but the tenant's user needs access.
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}
