package template

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// Access says who may call a function at the gateway.
type Access string

// The values of Access.
const (
	AccessToken Access = "token" // holders of a token of the function's tenant with the scope invoke
	AccessOpen  Access = "open"  // everybody, if the engine's configuration lets templates say so
)

// CORS says to which web pages of other origins browsers give a function's answers
// (https://fetch.spec.whatwg.org/#http-cors-protocol).
type CORS struct {
	Origins     []string      `json:"origins"`               // "https://app.example", or only "*" for all
	Methods     []string      `json:"methods,omitempty"`     // default GET, HEAD, POST
	Headers     []string      `json:"headers,omitempty"`     // fields that requests may have beyond the safelisted ones
	Credentials bool          `json:"credentials,omitempty"` // send cookies and the like; not with "*"
	MaxAge      time.Duration `json:"max_age_ns,omitempty"`  // how long a browser may cache the permission; default 5m
}

const (
	maxSecrets = 16
	maxCORS    = 64 // entries of one list
	maxCORSAge = 24 * time.Hour
)

var (
	secretPattern = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	originPattern = lazyregexp.New(`^(\*|https?://[a-z0-9.:\[\]-]{1,253})$`)
	tokenPattern  = lazyregexp.New(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,64}$`)
)

func secretNamed(s string) error {
	if !secretPattern.MatchString(s) {
		return fmt.Errorf("bad secret %q: write a name from fre secret ls: at most 63 letters, digits and . _ -", s)
	}
	return nil
}

func corsOrigin(s string) error {
	if u, err := url.Parse(s); !originPattern.MatchString(s) || s != "*" && (err != nil || u.Hostname() == "") {
		return fmt.Errorf("bad origin %q: write https://HOST or https://HOST:PORT, without a path, or *", s)
	}
	return nil
}

func corsToken(s string) error {
	if !tokenPattern.MatchString(s) {
		return fmt.Errorf("bad entry %q: a method such as PUT, or a header field's name", s)
	}
	return nil
}

func (d *decoder) corsFields(c *CORS) []field {
	return []field{
		{
			key: "origins", required: true, value: d.strings(&c.Origins, item{patternSchema(originPattern), corsOrigin}), more: object{{"minItems", 1}, {"maxItems", maxCORS}},
			about: "Origins such as https://app.example, or * alone for all.", examples: []any{[]string{"https://app.example"}},
		},
		{
			key: "methods", value: d.strings(&c.Methods, item{patternSchema(tokenPattern), corsToken}), more: object{{"maxItems", maxCORS}},
			about: "Methods of requests.", def: []string{"GET", "HEAD", "POST"},
		},
		{
			key: "headers", value: d.strings(&c.Headers, item{patternSchema(tokenPattern), corsToken}), more: object{{"maxItems", maxCORS}},
			about: "Header fields that requests may have.", examples: []any{[]string{"Content-Type", "Authorization"}},
		},
		{key: "credentials", value: d.boolean(&c.Credentials), about: "Whether cookies and the like go along; not with *.", def: false},
		{key: "max_age", value: measure(d, &c.MaxAge, durations, 0, maxCORSAge), about: "For how long a browser remembers the answer to a preflight request, at most 24h.", def: "5m"},
	}
}

func (d *decoder) accessRelations(t *Template, fail func(path, format string, args ...any)) {
	slices.Sort(t.Secrets)
	if err := CheckAccess(t.Secrets, t.Access, t.CORS); err != nil {
		path, _, _ := strings.Cut(err.Error(), " ")
		fail(strings.TrimSuffix(path, ":"), "%v", err)
	}
}

// CheckAccess checks the fields of a template, or of an image's configuration, that say who may call
// the function. secrets must be sorted. Errors begin with the field's name.
func CheckAccess(secrets []string, access Access, cors *CORS) error {
	if len(secrets) > maxSecrets {
		return fmt.Errorf("secrets has %d entries: the limit is %d", len(secrets), maxSecrets)
	}
	for i, s := range secrets {
		if err := secretNamed(s); err != nil {
			return fmt.Errorf("secrets: %w", err)
		}
		if i > 0 && s == secrets[i-1] {
			return fmt.Errorf("secrets names %s twice", s)
		}
	}
	if access != "" && access != AccessToken && access != AccessOpen {
		return fmt.Errorf("access %q is unknown", access)
	}
	if cors == nil {
		return nil
	}
	return cors.Check()
}

// Check returns an error, beginning with the field's name, for a faulty configuration.
func (c *CORS) Check() error {
	if len(c.Origins) == 0 {
		return fmt.Errorf("cors.origins names none")
	}
	if slices.Contains(c.Origins, "*") && (len(c.Origins) > 1 || c.Credentials) {
		return fmt.Errorf("cors.origins: browsers refuse * together with more origins or with credentials")
	}
	for _, f := range []struct {
		name string
		list []string
		item func(string) error
	}{{"origins", c.Origins, corsOrigin}, {"methods", c.Methods, corsToken}, {"headers", c.Headers, corsToken}} {
		if len(f.list) > maxCORS {
			return fmt.Errorf("cors.%s has %d entries: the limit is %d", f.name, len(f.list), maxCORS)
		}
		for _, s := range f.list {
			if err := f.item(s); err != nil {
				return fmt.Errorf("cors.%s: %w", f.name, err)
			}
		}
	}
	if c.MaxAge < 0 || c.MaxAge > maxCORSAge {
		return fmt.Errorf("cors.max_age is %s: the most is %s", c.MaxAge, maxCORSAge)
	}
	return nil
}
