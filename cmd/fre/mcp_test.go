package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/fre-engine/fre/api"
)

// TestMCPNetwork: a model chooses a sandbox's network within what the flags give.
func TestMCPNetwork(t *testing.T) {
	const pypi, npm, other = "pypi.org:443", "registry.npmjs.org:443", "example.com:443"
	for name, c := range map[string]struct {
		flags string // network and destinations
		asked string
		want  string // "" where it is refused
	}{
		"the flags'":               {"egress " + pypi, "", "egress " + pypi},
		"none by default":          {"", "none", "none"},
		"less than egress":         {"egress " + pypi, "none", "none"},
		"one of two":               {"egress " + pypi + " " + npm, "egress " + npm, "egress " + npm},
		"one without saying how":   {"egress " + pypi + " " + npm, " " + npm, "egress " + npm},
		"all that there is":        {"egress " + pypi, "egress", "egress " + pypi},
		"one of all":               {"egress", "egress " + other, "egress " + other},
		"egress where there is no": {"", "egress", ""},
		"one where there is no":    {"none", " " + other, ""},
		"another":                  {"egress " + pypi, "egress " + pypi + " " + other, ""},
	} {
		var usual api.AgentRequest
		var in mcpCreate
		usual.Network, usual.Allow = networkWords(c.flags)
		in.Network, in.Allow = networkWords(c.asked)
		got, err := (&mcpServer{usual: usual}).request(in)
		var hint *hintError
		switch made := strings.Join(append([]string{got.Network}, got.Allow...), " "); {
		case c.want == "" && !errors.As(err, &hint):
			t.Errorf("%s: %q, %v", name, made, err)
		case c.want != "" && (err != nil || made != c.want):
			t.Errorf("%s: %q, %v, want %q", name, made, err, c.want)
		}
	}
}

// networkWords are a network and its destinations.
func networkWords(s string) (network string, allow []string) {
	words := strings.Split(s, " ")
	return words[0], words[1:]
}
