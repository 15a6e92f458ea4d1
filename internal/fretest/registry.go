package fretest

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Registry runs an empty registry (the distribution project's) on a loopback port until the test
// ends, and returns its host and port. make builds the program once.
func Registry(t testing.TB) string {
	t.Helper()
	program := Tool(t, "registry")
	config := filepath.Join(t.TempDir(), "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: info, formatter: json}\nstorage:\n  filesystem: {rootdirectory: %q}\n  delete: {enabled: true}\nhttp: {addr: '127.0.0.1:0'}\n", t.TempDir())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", config)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan string, 1)
	var read sync.WaitGroup
	read.Go(func() {
		defer close(listening)
		found := false
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if _, after, ok := strings.Cut(lines.Text(), "listening on "); ok && !found {
				addr, _, _ := strings.Cut(after, `"`)
				listening <- addr
				found = true
			}
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		read.Wait()
		_ = cmd.Wait()
	})
	addr, ok := <-listening
	if !ok {
		t.Fatal("the registry does not start")
	}
	return addr
}

// Tool returns the path of a tool for tests. make builds the tool once, from a go.mod of its own
// below tools. On a machine without Go, such as the v2 virtual machine, FRE_TEST_NAME holds the
// path.
func Tool(t testing.TB, name string) string {
	t.Helper()
	if program := os.Getenv("FRE_TEST_" + strings.ToUpper(name)); program != "" {
		return program
	}
	root, err := treeRoot()
	if err != nil {
		t.Fatal(err)
	}
	target := ".cache/tools/" + name
	program := filepath.Join(root, target)
	if _, err := os.Stat(program); err != nil {
		if out, err := exec.Command("make", "-C", root, target).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return program
}

// treeRoot returns the directory of go.work, above the directory of the package under test.
func treeRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, "go.work"))
		switch {
		case err == nil:
			return dir, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		case dir == filepath.Dir(dir):
			return "", errors.New("no go.work here or above")
		}
	}
	return "", err
}
