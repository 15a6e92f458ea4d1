package lambda

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/template"
)

// Account returns a tenant's AWS account number: twelve digits, zeros for the tenant "default",
// and a hash of the name for other tenants.
func Account(tenant string) string {
	if tenant == template.DefaultTenant {
		return "000000000000"
	}
	sum := sha256.Sum256([]byte("fre account " + tenant))
	return fmt.Sprintf("%012d", 1+binary.BigEndian.Uint64(sum[:8])%999_999_999_999)
}

func (s *server) arn(tenant, function string) string {
	return "arn:aws:lambda:" + s.Region + ":" + Account(tenant) + ":function:" + function
}

// reference is a request's reference of a function: NAME, or a full or partial ARN.
type reference struct {
	region, account string // "" if absent
	name, qualifier string
}

var (
	accountPattern   = regexp.MustCompile(`^[0-9]{12}$`)
	regionPattern    = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
	qualifierPattern = regexp.MustCompile(`^(\$LATEST|[A-Za-z0-9_-]{1,128})$`)
)

// parseReference parses a reference in one of the forms
//
//	arn:PARTITION:lambda:REGION:ACCOUNT:function:NAME[:QUALIFIER]
//	ACCOUNT:function:NAME[:QUALIFIER]
//	function:NAME[:QUALIFIER]
//	NAME[:QUALIFIER]
func parseReference(text string) (reference, error) {
	var r reference
	bad := func() (reference, error) {
		return reference{}, invalid("%q is not a function: write a name, or arn:aws:lambda:REGION:ACCOUNT:function:NAME", clip(text))
	}
	if len(text) > 256 {
		return bad()
	}
	parts := strings.Split(text, ":")
	if parts[0] == "arn" {
		if !isARN(parts) {
			return bad()
		}
		r.region = parts[3]
		parts = parts[4:]
	}
	var ok bool
	if r.account, parts, ok = cutAccount(parts); !ok {
		return bad()
	}
	if r.name = parts[0]; len(parts) > 2 {
		return bad()
	}
	if len(parts) == 2 {
		if r.qualifier = parts[1]; !qualifierPattern.MatchString(r.qualifier) {
			return bad()
		}
	}
	if !template.ValidName(r.name) {
		return reference{}, invalid("function name %q: FRE's names have lower-case letters, digits and dashes, at most 63, and do not begin with a dash", clip(r.name))
	}
	return r, nil
}

// cutAccount cuts ACCOUNT:function: or function: off. ok is false for a bad account.
func cutAccount(parts []string) (account string, rest []string, ok bool) {
	switch {
	case len(parts) > 2 && parts[1] == "function":
		return parts[0], parts[2:], accountPattern.MatchString(parts[0])
	case len(parts) > 1 && parts[0] == "function":
		return "", parts[1:], true
	}
	return "", parts, true
}

// isARN reports whether the parts are those of a function's ARN, with or without a qualifier.
func isARN(parts []string) bool {
	return len(parts) >= 7 && strings.HasPrefix(parts[1], "aws") && parts[2] == "lambda" && regionPattern.MatchString(parts[3]) && accountPattern.MatchString(parts[4]) && parts[5] == "function"
}

// function parses the request's reference of a function. A reference to another account or
// region is not found.
func (s *server) function(c *call) (reference, error) {
	ref, err := parseReference(c.r.PathValue("function"))
	if err != nil {
		return ref, err
	}
	c.on = template.QualifiedName(ref.name, c.tenant)
	if q := c.r.URL.Query().Get("Qualifier"); q != "" {
		if ref.qualifier != "" && ref.qualifier != q {
			return ref, invalid("The derived qualifier from the function name does not match the specified qualifier.")
		}
		if !qualifierPattern.MatchString(q) {
			return ref, invalid("qualifier %q is neither a version, an alias nor $LATEST", clip(q))
		}
		ref.qualifier = q
	}
	if ref.account != "" && ref.account != Account(c.tenant) || ref.region != "" && ref.region != s.Region {
		return ref, notFound("Function not found: %s", c.r.PathValue("function"))
	}
	return ref, nil
}

func notFound(format string, args ...any) error {
	return refuse(http.StatusNotFound, "ResourceNotFoundException", format, args...)
}

// clip truncates a client's text for an error message.
func clip(s string) string { return s[:min(len(s), 80)] }

// requestID returns a random UUID (RFC 9562).
func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return uuid(b[:])
}

// uuid formats 16 bytes as a UUID.
func uuid(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
