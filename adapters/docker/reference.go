package docker

import (
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// reference joins a name and a version or digest, as in query parameters, to a reference of the
// store.
func reference(name, version string) (store.Reference, error) {
	ref := oci.Familiar(name)
	switch {
	case strings.HasPrefix(version, "sha256:"):
		ref += "@" + version
	case version != "":
		ref += ":" + version
	}
	r, err := store.ParseReference(ref)
	if err == nil {
		err = r.Check()
	}
	return r, err
}

// repositoryOf returns a local name without version or digest.
func repositoryOf(name string) string {
	name, _, digest := strings.Cut(name, "@")
	if digest {
		return name
	}
	return name[:max(strings.LastIndexByte(name, ':'), 0)]
}

// matches reports whether a pattern of the reference filter matches a name: path.Match on the
// name with and without version or digest.
func matches(pattern, name string) (bool, error) {
	pattern = oci.Familiar(pattern)
	whole, err := path.Match(pattern, name)
	if err != nil {
		return false, badRequest("invalid filter 'reference=%s': %v", pattern, err)
	}
	short, _ := path.Match(pattern, repositoryOf(name)) // the pattern is well-formed
	return whole || short, nil
}

// imageID matches an image id or a prefix of an id.
var imageID = regexp.MustCompile(`^(sha256:)?[0-9a-f]*$`)

// noImage converts the error of looking up name: to a 404 in Docker's words, or to the error
// about a malformed name.
func noImage(name string, err error) error {
	if errorStatus(err) != http.StatusNotFound {
		return err
	}
	if r, parseErr := store.ParseReference(name); parseErr == nil && !imageID.MatchString(name) {
		if err := r.Check(); err != nil {
			return err
		}
		if r.Version == "" && r.Digest == "" {
			name += ":latest"
		}
	}
	return notFound("No such image: %s", name)
}
