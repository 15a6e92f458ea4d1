package wording

import (
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/spf13/pflag"
)

func TestMissing(t *testing.T) {
	for _, tt := range []struct{ message, words, kind string }{
		{`image "a:1": file does not exist`, `there is no image "a:1"`, "image"},
		{`remove: live stream "x": file does not exist`, `remove: there is no live stream "x"`, "live stream"},
		{`container "c: d": file does not exist`, `container "c: d": does not exist`, ""},
		{`image sha256:1 is being removed: file does not exist`, `image sha256:1 is being removed: does not exist`, ""},
		{`"x": file does not exist`, `"x": does not exist`, ""},
		{`open /x: no such file or directory`, `open /x: no such file or directory`, ""},
	} {
		if words, kind := Missing(tt.message); words != tt.words || kind != tt.kind {
			t.Errorf("%q: %q, %q; want %q, %q", tt.message, words, kind, tt.words, tt.kind)
		}
	}
}

func TestFlag(t *testing.T) {
	f := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Int("int", 0, "")
	f.Float64("float", 0, "")
	f.Bool("bool", false, "")
	f.Uint8("small", 0, "")
	f.Duration("for", 0, "")
	for arg, want := range map[string]string{
		"--int=x":     `invalid argument "x" for "--int" flag: not a whole number`,
		"--float=x":   `invalid argument "x" for "--float" flag: not a number`,
		"--bool=x":    `invalid argument "x" for "--bool" flag: neither true nor false`,
		"--small=256": `invalid argument "256" for "--small" flag: too large or too small`,
		"--for=5":     `invalid argument "5" for "--for" flag: not a duration, for example 30s or 5m`,
		"--none":      `unknown flag: --none`,
	} {
		if got := Flag(f.Parse([]string{arg})); fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", arg, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	var v struct {
		Max  int
		On   bool
		Of   struct{ Names []string }
		Rate float64
	}
	for text, want := range map[string]string{
		`{"Max":"1"}`:         "Max must be a whole number, not string",
		`{"On":1}`:            "On must be true or false, not number",
		`{"Of":{"Names":{}}}`: "Of.Names must be an array, not object",
		`{"Rate":"fast"}`:     "Rate must be a number, not string",
		`[]`:                  "the body must be an object, not array",
		`{"Max":`:             "unexpected end of JSON input",
	} {
		if got := JSON(json.Unmarshal([]byte(text), &v)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
