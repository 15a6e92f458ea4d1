package runtimes_test

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
)

//go:embed testdata/complete/Complete.java
var completeSource []byte

// buildComplete: a base has the whole JDK, so that frameworks find modules, locales, character
// sets, providers, pictures and services by name. The program prints the failures.
func buildComplete(t *testing.T, w *workshop) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"Complete.java": completeSource,
		"fret.yaml": []byte("id: complete\nbase: java\nhandler: Complete.handle\npackages:\n" +
			"  maven: ['org.springframework.boot:spring-boot:3.3.5', 'org.apache.logging.log4j:log4j-core:2.24.1', 'io.netty:netty-transport-native-epoll:4.1.114.Final:linux-x86_64']\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	img, _, err := w.Build(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigOf(img)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.inside(t, img, config.Env, config.Args[0], "-cp", "/function:/opt/java/*", "Complete"); !strings.HasSuffix(got, "complete") {
		t.Errorf("the JVM lacks:\n%s", got)
	}
}
