package origin

import (
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/fre-engine/fre/video/asset"
)

// key returns the item of a protected asset's key.
func (s *shelf) key() item {
	return item{kind: "application/octet-stream", keep: never, tag: `"` + s.asset.Made + `-key"`, plain: s.asset.Secret.Key[:], size: 16}
}

// mostLicense is the longest license request, in bytes.
const mostLicense = 64 << 10

// licenseOf returns the license of an asset for a request (W3C Encrypted Media Extensions, section
// 9.1.3), or false if the request is none.
func licenseOf(a *asset.Asset, request []byte) (license []byte, ok bool) {
	var q struct {
		IDs []string `json:"kids"`
	}
	if err := json.Unmarshal(request, &q); err != nil || len(request) > mostLicense {
		return nil, false
	}
	type key struct {
		Type string `json:"kty"`
		ID   string `json:"kid"`
		Key  string `json:"k"`
	}
	to := struct {
		Keys []key  `json:"keys"`
		Type string `json:"type"`
	}{Keys: []key{}, Type: "temporary"}
	own := base64.RawURLEncoding.EncodeToString(a.Secret.KeyID[:])
	if slices.Contains(q.IDs, own) {
		to.Keys = append(to.Keys, key{Type: "oct", ID: own, Key: base64.RawURLEncoding.EncodeToString(a.Secret.Key[:])})
	}
	license, _ = json.Marshal(to) // of strings
	return license, true
}
