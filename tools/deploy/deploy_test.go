package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// read returns an example.
func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/deploy/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// longerThanDrain checks that the time before a kill is longer than the engine's --drain.
func longerThanDrain(t *testing.T, stop string, args []string) {
	t.Helper()
	i := slices.Index(args, "--drain")
	if i < 0 || i+1 == len(args) {
		t.Fatalf("no --drain in %q", args)
	}
	drain, err := time.ParseDuration(args[i+1])
	if err != nil {
		t.Fatal(err)
	}
	if d, err := time.ParseDuration(stop); err != nil || d <= drain {
		t.Errorf("it is killed after %q (%v); want longer than it drains, %v", stop, err, drain)
	}
}

func TestDockerfile(t *testing.T) {
	file, err := parser.Parse(strings.NewReader(read(t, "kubernetes/Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range file.Warnings {
		t.Error(w.Short)
	}
	var got []string
	for _, n := range file.AST.Children {
		got = append(got, strings.ToUpper(n.Value))
	}
	if want := []string{"FROM", "RUN", "COPY", "ENTRYPOINT"}; !slices.Equal(got, want) {
		t.Errorf("instructions: %v, want %v", got, want)
	}
}
