package template

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
)

// The keys of the schema are those of the parser's table.
func TestSchemaKeys(t *testing.T) {
	var doc struct {
		Properties map[string]json.RawMessage
		Items      json.RawMessage
	}
	var schemaKeys func(raw json.RawMessage, path string) []string
	schemaKeys = func(raw json.RawMessage, path string) []string {
		doc.Properties, doc.Items = nil, nil
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Items != nil {
			return schemaKeys(doc.Items, path)
		}
		properties := doc.Properties
		var keys []string
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			keys = append(keys, join(path, key))
			keys = append(keys, schemaKeys(properties[key], join(path, key))...)
		}
		return keys
	}
	var tableKeys func(fields []field, path string) []string
	tableKeys = func(fields []field, path string) []string {
		var keys []string
		for _, f := range fields {
			keys = append(keys, join(path, f.key))
			keys = append(keys, tableKeys(f.below, join(path, f.key))...)
		}
		return keys
	}
	fromSchema := schemaKeys(api.TemplateSchema, "")
	d := &decoder{source: &source{at: map[string]position{}}}
	fromTable := tableKeys(d.fields(&Template{}), "")
	slices.Sort(fromSchema)
	slices.Sort(fromTable)
	if diff := cmp.Diff(fromTable, fromSchema); diff != "" {
		t.Errorf("-parser +schema:\n%s", diff)
	}
}
