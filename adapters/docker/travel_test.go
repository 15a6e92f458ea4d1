package docker

import (
	"encoding/base64"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image/oci"
)

// TestAuthOf: authOf decodes every form of a client's registry login. A malformed login is answered
// 400.
func TestAuthOf(t *testing.T) {
	encode := func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }
	for _, test := range []struct {
		header string
		want   *oci.Auth
	}{
		{"", &oci.Auth{}},
		{encode(`{}`), &oci.Auth{}},
		{encode(`{"username":"u","password":"p","serveraddress":"x"}`), &oci.Auth{Username: "u", Password: "p"}},
		{encode(`{"auth":"` + base64.StdEncoding.EncodeToString([]byte("u:p:q")) + `"}`), &oci.Auth{Username: "u", Password: "p:q"}},
		{encode(`{"identitytoken":"t"}`), &oci.Auth{IdentityToken: "t"}},
	} {
		got, err := authOf(test.header)
		if err != nil {
			t.Errorf("authOf(%q): %v", test.header, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("authOf(%q) (-want +got):\n%s", test.header, diff)
		}
	}
	for _, header := range []string{"!", encode("{"), encode(`{"auth":"!"}`), encode(`[]`)} {
		var e *statusError
		if _, err := authOf(header); !errors.As(err, &e) || e.status != http.StatusBadRequest {
			t.Errorf("authOf(%q): %v, want status 400", header, err)
		}
	}
}
