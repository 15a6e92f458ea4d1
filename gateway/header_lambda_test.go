package gateway

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
)

// The gateway drops fields from clients that belong to Lambda's API.
func TestLambdaFields(t *testing.T) {
	got := eventHeader("h", [][2]string{{"A", "1"}, {engine.QualifierField, "live"}, {engine.VersionField, "4"}})
	if diff := cmp.Diff([][2]string{{"Host", "h"}, {"A", "1"}}, got); diff != "" {
		t.Error(diff)
	}
}
