package signature

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Accept says which images a rule accepts.
type Accept string

// Values of Accept.
const (
	AcceptAny    Accept = "any"    // all images
	AcceptSigned Accept = "signed" // images signed by one of the keys
	AcceptNone   Accept = "none"   // no image
)

// Rule applies to the repositories that match Repository.
type Rule struct {
	// Repository is a pattern for "host:port/path", for docker.io with its host and library/. A *
	// matches all characters but a slash, a ** at the end matches all characters.
	Repository string
	Accept     Accept
	Keys       []PublicKey // one key is enough
	// AnyIdentity accepts signatures made for another repository.
	AnyIdentity bool
}

// Policy is a list of rules; the first match counts. Repositories without a match are accepted,
// signed or not.
type Policy []Rule

// RuleConfig is a rule in the configuration file.
type RuleConfig struct {
	Repository string   `yaml:"repository"`
	Accept     string   `yaml:"accept"`
	Keys       []string `yaml:"keys"`     // files
	Identity   string   `yaml:"identity"` // "repository", the default, or "any"
}

// Read checks rules and reads their keys.
func Read(rules []RuleConfig) (Policy, error) {
	var p Policy
	for i, c := range rules {
		r, err := c.read()
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		p = append(p, r)
	}
	return p, nil
}

func (c RuleConfig) read() (Rule, error) {
	r := Rule{Repository: c.Repository, Accept: Accept(c.Accept), AnyIdentity: c.Identity == "any"}
	if r.Repository == "" || !utf8.ValidString(r.Repository) || strings.ContainsAny(r.Repository, "@ []?\\") || strings.Contains(strings.TrimSuffix(r.Repository, "**"), "**") {
		return r, fmt.Errorf(`repository: %q is not a pattern, for example "registry.example.org/team/*" or "docker.io/**"`, c.Repository)
	}
	if first, _, more := strings.Cut(r.Repository, "/"); r.Repository != "**" && (!more || !strings.ContainsAny(first, ".:*") && first != "localhost") {
		return r, fmt.Errorf("repository: %q names no registry: write docker.io/%s for Docker Hub, or **", c.Repository, c.Repository)
	}
	switch c.Identity {
	case "", "any", "repository":
	default:
		return r, fmt.Errorf(`identity: must be "repository" or "any", not %q`, c.Identity)
	}
	switch r.Accept {
	case AcceptAny, AcceptNone:
		if len(c.Keys) > 0 {
			return r, fmt.Errorf(`keys: only for accept: signed, not for %q`, c.Accept)
		}
		return r, nil
	case AcceptSigned:
	default:
		return r, fmt.Errorf(`accept: must be "signed", "any" or "none", not %q`, c.Accept)
	}
	if len(c.Keys) == 0 {
		return r, errors.New("keys: name the files of public keys")
	}
	for _, file := range c.Keys {
		b, err := os.ReadFile(file)
		if err != nil {
			return r, fmt.Errorf("keys: %w", err)
		}
		key, err := ParsePublic(file, b)
		if err != nil {
			return r, fmt.Errorf("keys: %w", err)
		}
		r.Keys = append(r.Keys, key)
	}
	return r, nil
}

// For returns the rule for a repository in the form of [Repository].
func (p Policy) For(repository string) Rule {
	for _, r := range p {
		if matches(r.Repository, repository) {
			return r
		}
	}
	return Rule{Repository: "**", Accept: AcceptAny}
}

// matches uses RE2, because a hostile pattern could make a backtracking matcher slow.
func matches(pattern, repository string) bool {
	var re strings.Builder
	for i, piece := range strings.Split(strings.TrimSuffix(pattern, "**"), "*") {
		if i > 0 {
			re.WriteString("[^/]*")
		}
		re.WriteString(regexp.QuoteMeta(piece))
	}
	if strings.HasSuffix(pattern, "**") {
		re.WriteString(".*")
	}
	return regexp.MustCompile("^(?s:" + re.String() + ")$").MatchString(repository)
}
