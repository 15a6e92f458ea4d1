package template

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
)

// TestParseDestination: A destination is a name, a wildcard or a range with a port; an invalid one
// is refused.
func TestParseDestination(t *testing.T) {
	cidr := netip.MustParsePrefix
	for s, want := range map[string]Destination{
		"example.org":           {Name: "example.org"},
		"Example.ORG:443":       {Name: "example.org", Port: 443},
		"*.example.org":         {Name: "*.example.org"},
		"db":                    {Name: "db"},
		"_dmarc.a-b.org":        {Name: "_dmarc.a-b.org"},
		"xn--bcher-kva.example": {Name: "xn--bcher-kva.example"},
		"10.1.2.0/24":           {Prefix: cidr("10.1.2.0/24")},
		"10.1.2.0/24:53":        {Prefix: cidr("10.1.2.0/24"), Port: 53},
		"198.51.100.1":          {Prefix: cidr("198.51.100.1/32")},
		"198.51.100.1:65535":    {Prefix: cidr("198.51.100.1/32"), Port: 65535},
		"2001:db8::/32":         {Prefix: cidr("2001:db8::/32")},
		"::1":                   {Prefix: cidr("::1/128")},
		"2001:db8::1":           {Prefix: cidr("2001:db8::1/128")},
		"[2001:db8::1]:80":      {Prefix: cidr("2001:db8::1/128"), Port: 80},
		"[2001:db8::/32]:80":    {Prefix: cidr("2001:db8::/32"), Port: 80},
		"[2001:db8::1]":         {Prefix: cidr("2001:db8::1/128")},
		"0.0.0.0/0":             {Prefix: cidr("0.0.0.0/0")},
	} {
		if got, err := ParseDestination(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "*", "*.", "*.*.org", "a.*.org", "a*.org", ".org", "org.", "a..b", "-a.org", "a-.org", "bücher.example", "a b",
		"http://example.org", "example.org/x", "example.org:", "example.org:0", "example.org:080", "example.org:65536", "example.org:http", ":80",
		"10.1.2", "10.1.2.300", "10.1.2.3/24", "10.0.0.0/33", "10.0.0.0/", "10.1.2.0.5", "2001:db8::/129", "2001:db8::1/32",
		"[2001:db8::1", "[2001:db8::1]80", "[]:80", "[10.0.0.1]:80", "[example.org]:80", "[::1]:", "::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "fe80::1%eth0",
	} {
		if got, err := ParseDestination(s); err == nil {
			t.Errorf("%q: accepted as %+v", s, got)
		}
	}
}

// FuzzParseDestination: Any destination gives exactly a name or a range, or is refused.
func FuzzParseDestination(f *testing.F) {
	for _, s := range []string{"example.org:443", "*.example.org", "10.1.2.0/24", "[2001:db8::/32]:80", "::", "]:1", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDestination(s)
		if err == nil && (d.Name == "") != d.Prefix.IsValid() {
			t.Errorf("%q: %+v is not exactly one of a name and a range", s, d)
		}
	})
}

// TestNetworkJSON: The network setting reads each form of its JSON, also of older images.
func TestNetworkJSON(t *testing.T) {
	for text, want := range map[string]Network{
		`"none"`: {Mode: NetworkNone}, // also in images of older engines
		`"host"`: {Mode: NetworkHost},
		`{"mode":"egress","allow":["a.org","10.0.0.0/8"]}`: {Mode: NetworkEgress, Allow: []string{"a.org", "10.0.0.0/8"}},
		`{"mode":"none","lend_connection":true}`:           {Mode: NetworkNone, LendConnection: true},
	} {
		got := Network{Allow: []string{"left from before"}, LendConnection: true}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Mode != want.Mode || got.LendConnection != want.LendConnection || !slices.Equal(got.Allow, want.Allow) {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
		b, err := json.Marshal(want)
		if err != nil || string(b) != text {
			t.Errorf("%+v: %s, %v; want %s", want, b, err, text)
		}
	}
}
