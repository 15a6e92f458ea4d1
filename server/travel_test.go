package server

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image/oci"
)

// Any login header is read or refused, and no error shows a password.
func FuzzLogins(f *testing.F) {
	for _, s := range []string{`{"h:5000":{"username":"ann","password":"hunter2-hunter2"}}`, `{"h":null}`, `{"h":{}}`, `[]`, `{"h":"hunter2-hunter2"}`, ""} {
		f.Add(base64.URLEncoding.EncodeToString([]byte(s)))
	}
	f.Add("hunter2-hunter2!")
	f.Fuzz(func(t *testing.T, header string) {
		logins, err := loginsOf(header)
		if err != nil && (len(logins) > 0 || len(header) > 12 && strings.Contains(err.Error(), header) || strings.Contains(err.Error(), "hunter2-")) {
			t.Errorf("%v of %q: %v", logins, header, err)
		}
		for host, login := range logins {
			if login == nil || *login == (oci.Auth{}) {
				t.Errorf("%q: no login for %s", header, host)
			}
		}
	})
}

func TestLogins(t *testing.T) {
	got, err := loginsOf(base64.URLEncoding.EncodeToString([]byte(`{"h:5000":{"username":"ann","password":"p"},"t":{"identity_token":"i"},"r":{"registry_token":"r"},"none":{},"null":null}`)))
	want := map[string]*oci.Auth{"h:5000": {Username: "ann", Password: "p"}, "t": {IdentityToken: "i"}, "r": {RegistryToken: "r"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
