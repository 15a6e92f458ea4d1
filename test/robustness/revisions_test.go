package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// routing is the acknowledged state of a function's revisions.
type routing struct {
	Newest  int
	Percent map[string]int    // by revision, without 0
	Aliases map[string]string // alias → revision
}

func routingOf(r *api.Revisions) routing {
	to := routing{Percent: map[string]int{}, Aliases: map[string]string{}}
	for _, v := range r.Revisions {
		to.Newest = max(to.Newest, v.Number)
		if v.Percent > 0 {
			to.Percent[strconv.Itoa(v.Number)] = v.Percent
		}
		for _, a := range v.Aliases {
			to.Aliases[a] = strconv.Itoa(v.Number)
		}
	}
	return to
}

func (r routing) String() string { return string(must(json.Marshal(r))) }

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return b
}

func (r routing) equal(o routing) bool {
	return r.Newest == o.Newest && maps.Equal(r.Percent, o.Percent) && maps.Equal(r.Aliases, o.Aliases)
}

// next makes a change, each kind in turn, and returns the state after the change.
func (r routing) next(ctx context.Context, cl *client.Client, turn int) (want routing, err error) {
	want = routing{r.Newest, maps.Clone(r.Percent), maps.Clone(r.Aliases)}
	newest := strconv.Itoa(r.Newest)
	var revisions api.Revisions
	switch turn % 4 {
	case 0:
		want.Newest++
		want.Percent = map[string]int{strconv.Itoa(want.Newest): 100}
		_, err = cl.Functions().Deploy(ctx, api.DeployRequest{Image: "fn:1", Name: "fn"})
	case 1:
		before := strconv.Itoa(r.Newest - 1)
		want.Percent = map[string]int{before: 90 - turn%50, newest: 10 + turn%50}
		revisions, err = cl.Functions().Split(ctx, "fn", api.SplitRequest{Weights: []api.Weight{{Revision: before, Percent: want.Percent[before]}, {Revision: newest, Percent: want.Percent[newest]}}})
	case 2:
		want.Aliases["stable"] = newest
		revisions, err = cl.Functions().SetAliases(ctx, "fn", api.AliasRequest{Set: map[string]string{"stable": newest}})
	default:
		want.Percent = map[string]int{strconv.Itoa(r.Newest - 1): 100}
		revisions, err = cl.Functions().Rollback(ctx, "fn", api.RollbackRequest{Revision: strconv.Itoa(r.Newest - 1)})
	}
	if got := routingOf(&revisions); err == nil && turn%4 != 0 && !got.equal(want) {
		err = fmt.Errorf("change %d: %s, want %s", turn, got, want)
	}
	return want, err
}

// Acknowledged deployments, splits, aliases and rollbacks survive a kill of the engine during the
// next change. That change is there whole or not at all, and each revision with traffic answers.
func TestRevisionsOutliveKills(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	random := fretest.Rand(t)
	state := filepath.Join(daemontest.Dir(t), "state")
	program := filepath.Join(fretest.Rootfs(t), "bin/prog")
	if err := testdaemon.PutImages(t.Context(), state, testdaemon.Function{Name: "fn", Program: program, Config: image.Config{Args: []string{"/function/program", "function"}}}); err != nil {
		t.Fatal(err)
	}
	cfg := testdaemon.Config{State: state, Log: t.Output()}
	d := daemontest.Start(t, cfg)
	t.Cleanup(func() { daemontest.Stop(t, d) })
	cl := client.New(d.Socket())
	for range 2 { // so that a revision before the newest exists
		if _, err := cl.Functions().Deploy(t.Context(), api.DeployRequest{Image: "fn:1", Name: "fn"}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := cl.Functions().Revisions(t.Context(), "fn")
	if err != nil {
		t.Fatal(err)
	}
	acknowledged, turn := routingOf(&first), 0
	const kills = 8
	for range kills {
		for range random.IntN(5) {
			if acknowledged, err = acknowledged.next(t.Context(), cl, turn); err != nil {
				t.Fatal(err)
			}
			turn++
		}
		type result struct {
			want routing
			err  error
		}
		under := make(chan result)
		begun := make(chan struct{})
		go func() {
			close(begun)
			want, err := acknowledged.next(t.Context(), cl, turn)
			under <- result{want, err}
		}()
		<-begun
		for range random.IntN(4) { // the random calls let the change get further
			if _, err := cl.Version(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		d.Kill()
		last := <-under
		turn++
		cl.Close()
		d = daemontest.Start(t, cfg)
		cl = client.New(d.Socket())
		revisions, err := cl.Functions().Revisions(t.Context(), "fn")
		if err != nil {
			t.Fatal(err)
		}
		got := routingOf(&revisions)
		switch {
		case got.equal(last.want):
		case last.err == nil:
			t.Fatalf("after a kill: %s, acknowledged was %s", got, last.want)
		case !got.equal(acknowledged):
			t.Fatalf("after a kill: %s, acknowledged was %s, under way %s", got, acknowledged, last.want)
		}
		t.Logf("turn %d, under way: %v; %s", turn, last.err, got)
		acknowledged = got
		answered(t, d, got)
	}
	cl.Close()
}

// answered calls every revision that can get events.
func answered(t *testing.T, d *testdaemon.Daemon, r routing) {
	t.Helper()
	paths := []string{"fn"}
	sum := 0
	for revision, percent := range r.Percent {
		paths = append(paths, "fn@"+revision)
		sum += percent
	}
	if sum != 100 {
		t.Errorf("%s: %d of 100 events go somewhere", r, sum)
	}
	for _, alias := range slices.Sorted(maps.Keys(r.Aliases)) {
		paths = append(paths, "fn@"+alias)
	}
	for _, p := range paths {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL("/function/"+p+"/"), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", p, resp.Status)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
