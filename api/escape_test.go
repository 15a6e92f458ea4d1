package api

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// The detach keys detach at any split of the input and are not passed on; all other input is passed
// on.
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
		for name, as := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader} {
			var pieces []io.Reader
			for _, p := range test.pieces {
				pieces = append(pieces, strings.NewReader(p))
			}
			keys, err := ParseKeys("")
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(as(&EscapeReader{From: io.MultiReader(pieces...), Keys: keys}))
			if detached := errors.Is(err, ErrDetached); string(got) != test.want || detached != test.detached || err != nil && !detached {
				t.Errorf("%q, %s: %q goes on, %v, want %q, detached %v", test.pieces, name, got, err, test.want, test.detached)
			}
		}
	}
}

func TestParseKeys(t *testing.T) {
	for text, want := range map[string]string{
		"": "\x10\x11", "ctrl-p,ctrl-q": "\x10\x11", "a,CTRL-[": "a\x1b", "ctrl-@": "\x00",
		"ctrl-": "error", "ctrl-1": "error", "ab": "error", "a,,b": "error", ",": "error",
	} {
		keys, err := ParseKeys(text)
		got := string(keys)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// The passed input is the typed input up to the detach keys.
func FuzzEscape(f *testing.F) {
	f.Add("", "a\x10b\x10\x11c")
	f.Add("a,a,b", "aaab")
	f.Fuzz(func(t *testing.T, notation, typed string) {
		keys, err := ParseKeys(notation)
		if err != nil {
			return
		}
		got, err := io.ReadAll(iotest.HalfReader(&EscapeReader{From: strings.NewReader(typed), Keys: keys}))
		if errors.Is(err, ErrDetached) && strings.HasPrefix(typed, string(got)+string(keys)) {
			return
		}
		if err != nil || string(got) != typed {
			t.Errorf("of %q %q goes on, %v", typed, got, err)
		}
	})
}
