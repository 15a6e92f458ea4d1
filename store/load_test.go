package store

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzDecodeManifest: The store decodes a manifest exactly as encoding/json does, also if its parts
// are known from another manifest.
func FuzzDecodeManifest(f *testing.F) {
	m := Manifest{Name: "a,\"parts\":[{", Version: "}", Config: json.RawMessage(`{"env":["A=\"}"]}`), Parts: []Part{
		{Kind: "base", Name: "python", Tree: sumDigest(nil)}, {Kind: "pip", Name: "{\\\"", Version: "1", Tree: sumDigest(nil), Prefix: "opt", Diff: "sha256:00"},
	}}
	for _, m := range []Manifest{m, {Name: "n", Version: "v", Parts: m.Parts[:1]}, {}, {Parts: []Part{}}} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{
		`{"name":"a","version":"b"},"parts":[{}]}`, `{"name":"a","version":"b","parts":[{}],"config":null}`, `{"name":"a","version":"b","parts":[{}],"config":{}}x`,
		`{"name":"a","version":"b","parts":[{},]}`, `{"name":"a","version":"b","parts":[{}{}]}`, `{"name":"a","version":"b","parts":[{}],"config":"x"{}}`,
		`{"version":"b","NAME":"a","parts":[{"kind":1}]}`, `{"name":"a","version":"b","parts":[{}],"more":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want Manifest
		wantErr := json.Unmarshal(b, &want)
		manifests := newManifestCache()
		for range 2 {
			got, err := manifests.decode(b)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("%s: %v, want %v", b, err, wantErr)
			}
			if err == nil && !cmp.Equal(got, want) {
				t.Fatalf("%s (-want +got):\n%s", b, cmp.Diff(want, got))
			}
		}
	})
}

// TestDecodeManifestOutline: A manifest in the store's own format takes the fast path.
func TestDecodeManifestOutline(t *testing.T) {
	m := Manifest{Name: "n", Version: "1", Parts: []Part{{Kind: "base", Name: "python", Tree: sumDigest(nil)}, {Kind: "code", Tree: sumDigest(nil)}}}
	for _, config := range []json.RawMessage{nil, json.RawMessage(`{"a":{"b":["}"]}}`)} {
		m.Config = config
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		manifests := newManifestCache()
		got, ok := manifests.outline(b)
		if diff := cmp.Diff(m, got); diff != "" || !ok || len(manifests.parts) != 2 {
			t.Errorf("%s: %t, %d parts known (-want +got):\n%s", b, ok, len(manifests.parts), diff)
		}
	}
}
