package origin

import (
	"strings"
	"testing"
)

// TestSessionID: the player's session is the value of the key sid only.
func TestSessionID(t *testing.T) {
	for list, want := range map[string]string{
		"": "", `sid="a-1"`: "a-1", `bl=21300,br=3200,sid="6e2fb550-c457-11e9-bb97-0800200c9a66",v=1`: "6e2fb550-c457-11e9-bb97-0800200c9a66", `a=1, sid="x"`: "x",
		`xsid="no"`: "", `xsid="no",sid="yes"`: "yes", `sid="`: "", `sid="open`: "", `sid=token`: "", "sid=\"a\nb\"": "", `sid="` + strings.Repeat("x", 65) + `"`: "", `sid=""`: "",
	} {
		if got := sessionID(list); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// FuzzSessionID: the logged session is short and printable for any request.
func FuzzSessionID(f *testing.F) {
	f.Add(`bl=1,sid="a"`)
	f.Add(`xsid="sid="`)
	f.Add("sid=\"\x00\"")
	f.Fuzz(func(t *testing.T, list string) {
		got := sessionID(list)
		if len(got) > 64 || !strings.Contains(list, got) || strings.ContainsFunc(got, func(c rune) bool { return c < ' ' || c > '~' || c == '"' }) {
			t.Errorf("%q: %q", list, got)
		}
	})
}
