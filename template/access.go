package template

import (
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

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
