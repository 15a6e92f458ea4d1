package docker

import "testing"

func TestParseKeys(t *testing.T) {
	for text, want := range map[string]string{"": "\x10\x11", "ctrl-p,ctrl-q": "\x10\x11", "a,CTRL-[": "a\x1b", "ctrl-@": "\x00"} {
		if got, err := parseKeys(text); err != nil || string(got) != want {
			t.Errorf("parseKeys(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "ab", "a,,b"} {
		if _, err := parseKeys(text); err == nil {
			t.Errorf("parseKeys(%q): want an error", text)
		}
	}
}

// TestEscape: the sequence detaches wherever it is cut and goes nowhere; all else
// goes on.
func TestEscape(t *testing.T) {
	for _, test := range []struct {
		pieces   []string
		want     string
		detached bool
	}{
		{[]string{"abc"}, "abc", false},
		{[]string{"a\x10\x11b"}, "a", true},
		{[]string{"a\x10", "\x11b"}, "a", true},
		{[]string{"\x10a\x11"}, "\x10a\x11", false},
		{[]string{"\x10\x10\x11"}, "\x10", true},
		{[]string{"\x11\x10"}, "\x11\x10", false},
		{[]string{"\x10", "\x10", "a"}, "\x10\x10a", false},
	} {
		over := make(chan struct{})
		e := &escape{keys: []byte{0x10, 0x11}, detach: func() { close(over) }, until: over}
		got := ""
		for _, piece := range test.pieces {
			got += string(e.pass([]byte(piece)))
		}
		got += string(e.held())
		detached := false
		select {
		case <-over:
			detached = true
		default:
		}
		if got != test.want || detached != test.detached {
			t.Errorf("%q: %q goes on, detached %v, want %q, %v", test.pieces, got, detached, test.want, test.detached)
		}
	}
}
