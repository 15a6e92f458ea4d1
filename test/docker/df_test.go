package docker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// docker system df lists the downloads of builds, and docker builder prune removes them with the
// build cache.
func TestBuildCache(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	state := filepath.Join(daemontest.Dir(t), "state")
	cache := filepath.Join(state, "cache", "uv")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cache, "index"), make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	d := daemontest.Start(t, testdaemon.Config{State: state, Log: t.Output()})
	t.Cleanup(func() { daemontest.Stop(t, d) })
	w := &world{Daemon: d, client: clients(t)[0], config: t.TempDir()}
	df := []string{"system", "df", "--format", "{{.Type}}:{{.TotalCount}}:{{.Reclaimable}}"}
	for until := time.Now().Add(within); !strings.Contains(w.ok(t, df...), "Build Cache:1:"); { // the engine counts in the background
		if time.Now().After(until) {
			t.Fatal("the cache is not listed")
		}
	}
	const deprecated = `legacy builder|^$` // the client's own warning without buildx
	w.run(t, []line{
		{df, 0, `(?m)^Build Cache:1:5\.2\d*MB`, ``},
		{words("system df -v"), 0, `(?m)^downloads +regular +5\.2\d*MB`, ``},
		{words("builder prune -f"), 0, `Total reclaimed space: 0B`, deprecated},
		{words("builder prune -af --filter until=1h"), 0, `Total reclaimed space: 0B`, deprecated},
		{df, 0, `(?m)^Build Cache:1:`, ``},
		{words("builder prune -af"), 0, `(?s)downloads.*space: 5\.2\d*MB`, deprecated},
		{df, 0, `(?m)^Build Cache:0:0B`, ``},
	})
}
