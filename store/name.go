package store

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/reference"
)

// ErrName is wrapped by every refusal of an image's name or reference.
var ErrName = reference.ErrName

// Errors of image references and removal.
var (
	// ErrAmbiguous: a digest prefix matches several images.
	ErrAmbiguous = failure.New(failure.Ambiguous, "ambiguous image reference", "give more characters of the digest")
	// ErrInUse: a function refers to the image.
	ErrInUse = failure.New(failure.InUse, "image is in use", "remove the function, or stop the sandbox, first")
)

// portPattern matches a registry with a port at the start of a name.
var portPattern = regexp.MustCompile(`^[^/:@\s]+:[0-9]{1,5}/`)

// Reference is a parsed reference to an image.
type Reference struct {
	Name    string // with the registry's host and port, if any
	Version string // "" if the reference has no version
	Digest  Digest // of "name@sha256:…", complete; "" if the reference has no digest
}

// ParseReference parses "name", "name:version", "name@sha256:…" or "name:version@sha256:…". The
// name may begin with a registry's host and port ("localhost:5000/team/app:1.2"). The version is
// the text after the last colon that follows the last slash. ParseReference accepts names that
// [Store.Tag] refuses: see [Reference.Check]. Errors: ErrName.
func ParseReference(ref string) (Reference, error) {
	name, version, digest, err := reference.Parse(ref)
	return Reference{name, version, Digest(digest)}, err
}

// Check refuses a name outside of the grammar of registries and docker. Errors: ErrName.
func (r Reference) Check() error { return reference.Check(r.Name, r.Version) }

// String returns the reference in its written form.
func (r Reference) String() string {
	s := r.Name
	if r.Version != "" {
		s += ":" + r.Version
	}
	if r.Digest != "" {
		s += "@" + string(r.Digest)
	}
	return s
}

type tag struct{ name, version string }

// splitName splits "name:version".
func splitName(name string) tag {
	i := strings.LastIndexByte(name, ':')
	return tag{name[:max(i, 0)], name[i+1:]}
}

// String returns "name:version", or "" for no name.
func (k tag) String() string {
	if k == (tag{}) {
		return ""
	}
	return k.name + ":" + k.version
}

// checkName accepts the name or version of an image: text that can stand in "name:version" and
// on a command line. A name may begin with a registry's host and port. The builder's own names
// may violate the grammar of registries.
func checkName(what, s string) error {
	if s == "" || len(s) > maxName || s == "sha256" || !utf8.ValidString(s) {
		return fmt.Errorf("%w: %s %q", ErrPath, what, s)
	}
	rest := s
	if what == "image name" {
		rest = s[len(portPattern.FindString(s)):]
	}
	if i := strings.IndexFunc(rest, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ':' || r == '@' }); i >= 0 {
		return fmt.Errorf("%w: %s %q holds %q", ErrPath, what, s, rest[i])
	}
	return nil
}
