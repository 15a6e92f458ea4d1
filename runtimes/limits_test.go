package runtimes_test

import (
	"strings"
	"testing"
)

// TestLimits: An interpreter sees the sandbox's CPUs and memory, not the host's.
func TestLimits(t *testing.T) {
	for _, l := range languages(t) {
		t.Run(l.name, func(t *testing.T) {
			i := l.start(t, "limits.handle", "FRE_CPUS=3", "GOMAXPROCS=3", "FRE_MEMORY_BYTES=268435456")
			got, err := i.invoke(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				"python": "[3,3,3,3,3,268435456,true]",
				"node":   "[3,3,268435456,true]",
				"php":    "[234881024]", // the memory; PHP has no notion of CPUs
				"ruby":   "[3,3,268435456,true]",
				"java":   "[3,61]",        // from javaLanguage's arguments
				"go":     "[3,241591911]", // the rest is for memory that the collector does not see
			}[l.name]
			if body := strings.ReplaceAll(got.Body, " ", ""); body != want {
				t.Errorf("got %s, want %s", body, want)
			}
		})
	}
}
