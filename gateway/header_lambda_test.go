package gateway

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
)

// A client says nothing by fields that are Lambda's API's own.
func TestLambdaFields(t *testing.T) {
	got := eventHeader("h", [][2]string{{"A", "1"}, {engine.QualifierField, "live"}, {engine.VersionField, "4"}})
	if diff := cmp.Diff([][2]string{{"Host", "h"}, {"A", "1"}}, got); diff != "" {
		t.Error(diff)
	}
}
