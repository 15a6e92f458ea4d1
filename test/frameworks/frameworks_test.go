// Package frameworks_test runs functions of the ten most used frameworks of each language on FRE's
// bases, because a base must have the parts that a framework looks up by name at run time. It also
// compiles the runtime interface client that AWS publishes for Node. Each
// testdata/LANGUAGE.NAME.txtar is the directory of one function, with a test of its own
// (docs/testing.md). make test leaves the package out: it downloads some hundred packages and
// compiles for minutes. Gems come from Debian, because a source of gems cannot be reached
// everywhere; PHP's libraries for the same reason.
package frameworks_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

func TestFrameworks(t *testing.T) {
	fretest.RequireRoot(t)
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no functions in testdata: %v", err)
	}
	state := os.Getenv("FRE_TEST_STATE") // keeps bases and packages between runs
	if state == "" {
		state = daemontest.Dir(t)
	}
	d := daemontest.Start(t, testdaemon.Config{State: state})
	t.Cleanup(func() { daemontest.Stop(t, d) })
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".txtar")
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(daemontest.Dir(t), "function")
			a, err := txtar.ParseFile(archive)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range a.Files {
				file := filepath.Join(dir, f.Name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, f.Data, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			out, err := d.CLI(t.Context(), "test", dir)
			if err != nil {
				t.Errorf("fre test: %v\n%s", err, out)
			}
		})
	}
}
