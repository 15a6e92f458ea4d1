package registry

import (
	"errors"
	"regexp"
	"strings"
)

// Errors in the name of a repository.
var (
	errRepositoryName    = errors.New("is not a repository's name: use lower-case letters and digits, with separators . _ __ - and / between components")
	errRepositoryTooLong = errors.New("is longer than 255 characters")
)

// The distribution-spec's patterns.
var (
	nameSyntax = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagSyntax  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// checkName returns the error in the name of a repository, if any.
func checkName(name string) error {
	if len(name) > 255 {
		return errRepositoryTooLong
	}
	if !nameSyntax.MatchString(name) {
		return errRepositoryName
	}
	return nil
}

// resource is the kind of object that a path names.
type resource int

const (
	resourceBase resource = iota
	resourceCatalog
	resourceBlob
	resourceUploads
	resourceUpload
	resourceManifest
	resourceTags
	resourceReferrers
)

var resourceNames = [...]string{"base", "catalog", "blob", "uploads", "upload", "manifest", "tags", "referrers"}

func (r resource) String() string { return resourceNames[r] }

// target is a parsed path.
type target struct {
	resource resource
	name     string // of the repository; "" for the base and the catalog
	ref      string // digest, tag or UUID, unchecked; "" if the path has none
}

// parsePath parses the path of a request. It parses from the end, because the name of a
// repository may contain any of the keywords:
//
//	/v2/
//	/v2/_catalog
//	/v2/NAME/blobs/DIGEST
//	/v2/NAME/blobs/uploads/
//	/v2/NAME/blobs/uploads/UUID
//	/v2/NAME/manifests/REFERENCE
//	/v2/NAME/tags/list
//	/v2/NAME/referrers/DIGEST
//
// The name in the target is valid.
func parsePath(p string) (target, *apiError) {
	switch p {
	case "/v2", "/v2/":
		return target{resource: resourceBase}, nil
	case "/v2/_catalog":
		return target{resource: resourceCatalog}, nil
	}
	rest, ok := strings.CutPrefix(p, "/v2/")
	if !ok {
		return target{}, errNoSuchPath
	}
	t, ok := parseResource(rest)
	if !ok {
		return target{}, errNoSuchPath
	}
	if err := checkName(t.name); err != nil {
		return target{}, errNameInvalid(t.name, err)
	}
	return t, nil
}

// parseResource parses a path below a repository's name, which is not checked.
func parseResource(rest string) (t target, ok bool) {
	head, last := cutLast(rest)
	name, word := cutLast(head)
	t = target{name: name, ref: last}
	switch {
	case word == "uploads" && strings.HasSuffix(name, "/blobs"):
		t.name, t.resource = strings.TrimSuffix(name, "/blobs"), resourceUpload
		if last == "" {
			t.resource = resourceUploads
		}
	case word == "blobs" && last == "uploads":
		t.resource, t.ref = resourceUploads, ""
	case word == "blobs":
		t.resource = resourceBlob
	case word == "manifests":
		t.resource = resourceManifest
	case word == "tags" && last == "list":
		t.resource, t.ref = resourceTags, ""
	case word == "referrers":
		t.resource = resourceReferrers
	default:
		return target{}, false
	}
	return t, true
}

// cutLast splits s at the last slash.
func cutLast(s string) (head, last string) {
	i := strings.LastIndexByte(s, '/')
	return s[:max(i, 0)], s[i+1:]
}
