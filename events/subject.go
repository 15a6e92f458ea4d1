package events

import (
	"errors"
	"fmt"
	"strings"
)

// Subjects says which subjects of NATS tenants may be told of, by tenant, beside those
// below fre.in.TENANT.
type Subjects map[string][]string

// Check finds what nobody may be told of: what is the server's or the engine's own. It is
// asked once, of the configuration.
func (s Subjects) Check() error {
	for tenant, all := range s {
		for _, subject := range all {
			tokens := strings.Split(subject, ".")
			for i, t := range tokens {
				if t == "" || strings.ContainsAny(t, " \t\r\n") || t == ">" && i < len(tokens)-1 || len(t) > 1 && strings.ContainsAny(t, "*>") {
					return fmt.Errorf("%s: %q is no subject such as orders.>", tenant, subject)
				}
			}
			switch first := tokens[0]; {
			case first == "*" || first == ">":
				return fmt.Errorf("%s: %q is too much: the first token is no wildcard", tenant, subject)
			case first == "fre" || strings.HasPrefix(first, "$") || strings.HasPrefix(first, "_"):
				return fmt.Errorf("%s: %q is the engine's own, or the server's", tenant, subject)
			}
		}
	}
	return nil
}

// Allow says whether a tenant may be told of all that a subject stands for.
func (s Subjects) Allow(tenant, subject string) error {
	own := "fre.in." + tenant + ".>"
	for _, allowed := range append([]string{own}, s[tenant]...) {
		if covers(allowed, subject) {
			return nil
		}
	}
	return fmt.Errorf("tenant %s may not be told of the subject %s: it is below %s or among events.subjects of the engine's configuration", tenant, subject, strings.TrimSuffix(own, ".>"))
}

// covers says whether each subject that one stands for is one of all's, too.
func covers(all, one string) bool {
	a, b := strings.Split(all, "."), strings.Split(one, ".")
	for i, t := range a {
		switch {
		case i >= len(b):
			return false
		case t == ">":
			return true // for one token or more, of whatever kind
		case b[i] == ">", t != "*" && t != b[i]:
			return false
		}
	}
	return len(a) == len(b)
}

// ErrNoOutside says that nobody can publish here but the engine.
var ErrNoOutside = errors.New("nobody reaches the engine's NATS: events.nats names a cluster, events.listen opens the server inside")
