// Package reference has the grammar of references to images: that of the OCI distribution
// specification and of docker (github.com/distribution/reference).
package reference

import (
	"fmt"
	"strings"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/lazyregexp"
)

// ErrName is wrapped by every refusal of an image's name or reference.
var ErrName = failure.New(failure.BadName, "invalid image name", "")

// A name is a registry's host and port, then path components. A version is a tag in docker's terms.
var (
	hostPattern    = lazyregexp.New(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?$`)
	pathPattern    = lazyregexp.New(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	versionPattern = lazyregexp.New(`^[\w][\w.-]{0,127}$`)
	hexPattern     = lazyregexp.New(`^[0-9a-f]{64}$`)
	digestPattern  = lazyregexp.New(`^sha256:[0-9a-f]{64}$`)
)

const maxName = 255

// Parse splits "name", "name:version", "name@sha256:…" or "name:version@sha256:…". The version is
// the text after the last colon that follows the last slash. Parse accepts names that [Check]
// refuses. Errors: ErrName.
func Parse(ref string) (name, version, digest string, err error) {
	name, digest, ok := strings.Cut(ref, "@")
	if ok && !digestPattern.MatchString(digest) {
		return "", "", "", fmt.Errorf("%w %q: malformed digest %q", ErrName, ref, digest)
	}
	slash := strings.LastIndexByte(name, '/')
	if i := strings.LastIndexByte(name, ':'); i > slash {
		name, version = name[:i], name[i+1:]
		if version == "" {
			return "", "", "", fmt.Errorf("%w %q: nothing follows the colon", ErrName, ref)
		}
	}
	if name == "" {
		return "", "", "", fmt.Errorf("%w %q: the name is missing", ErrName, ref)
	}
	return name, version, digest, nil
}

// Check refuses a name or version outside of the grammar of registries and docker. version is "" for
// none. Errors: ErrName.
func Check(name, version string) error {
	components := strings.Split(name, "/")
	if len(components) > 1 && isHost(components[0]) {
		if !hostPattern.MatchString(components[0]) {
			return fmt.Errorf("%w %q: %q is no registry's host", ErrName, name, components[0])
		}
		components = components[1:]
	}
	for _, c := range components {
		if !pathPattern.MatchString(c) {
			return fmt.Errorf("%w %q: use lower-case letters, digits and slashes, with single dots, underscores or dashes between", ErrName, name)
		}
	}
	switch {
	case len(name) > maxName:
		return fmt.Errorf("%w: %.40q… is longer than %d bytes", ErrName, name, maxName)
	case len(components) == 1 && hexPattern.MatchString(name), name == "sha256":
		return fmt.Errorf("%w %q: looks like a digest", ErrName, name)
	case version != "" && !versionPattern.MatchString(version):
		return fmt.Errorf("%w: version %q: use up to 128 letters, digits, dots, underscores and dashes, beginning with none of the latter two", ErrName, version)
	}
	return nil
}

// isHost reports whether the first component of a path is a registry's host, by docker's rule.
func isHost(component string) bool {
	return strings.ContainsAny(component, ".:") || component == "localhost" || strings.ToLower(component) != component
}
