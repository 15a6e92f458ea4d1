package events

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fre-engine/fre/failure"
)

// Subjects lists by tenant the subjects of NATS that the tenant's triggers may subscribe to, beside
// fre.in.TENANT.>.
type Subjects map[string][]string

// Check returns an error if a subject is malformed, too wide, or reserved for the server or the
// engine. Called once, for the configuration.
func (s Subjects) Check() error {
	for tenant, all := range s {
		for _, subject := range all {
			if err := checkSubject(subject); err != nil {
				return fmt.Errorf("%s: %q %w", tenant, subject, err)
			}
		}
	}
	return nil
}

func checkSubject(subject string) error {
	tokens := strings.Split(subject, ".")
	for i, t := range tokens {
		wild := t == "*" || t == ">" && i == len(tokens)-1
		if t == "" || !wild && strings.ContainsAny(t, "*> \t\r\n") {
			return errors.New("is not a subject, for example orders.>")
		}
	}
	switch first := tokens[0]; {
	case first == "*" || first == ">":
		return errors.New("is too much: the first token is no wildcard")
	case first == "fre" || strings.HasPrefix(first, "$") || strings.HasPrefix(first, "_"):
		return errors.New("is the engine's own, or the server's")
	}
	return nil
}

// Allow returns an error unless the tenant may subscribe to all that subject matches.
func (s Subjects) Allow(tenant, subject string) error {
	own := "fre.in." + tenant + ".>"
	for _, allowed := range append([]string{own}, s[tenant]...) {
		if covers(allowed, subject) {
			return nil
		}
	}
	return fmt.Errorf("tenant %s may not subscribe to %s: use a subject below %s or from events.subjects in the engine's configuration", tenant, subject, strings.TrimSuffix(own, ".>"))
}

// covers reports whether the pattern all matches every subject that the pattern one matches.
func covers(all, one string) bool {
	a, b := strings.Split(all, "."), strings.Split(one, ".")
	for i, t := range a {
		switch {
		case i >= len(b):
			return false
		case t == ">":
			return true // for one token or more, of any kind
		case b[i] == ">", t != "*" && t != b[i]:
			return false
		}
	}
	return len(a) == len(b)
}

// ErrNoOutside says that only the engine can publish to its NATS server.
var ErrNoOutside = failure.New(failure.Unsupported, "the engine's NATS server is closed to clients: set events.listen to open the server, or events.nats to use a cluster", "")
