package registry

import (
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"hash"
	"path"
	"regexp"
	"strings"
)

// digest names content: ALGORITHM:HEX, with an algorithm that the registry supports.
type digest struct{ algorithm, hex string }

// The algorithms that the image-spec registers.
const (
	sha256Name = "sha256"
	sha512Name = "sha512"
)

func (d digest) String() string { return d.algorithm + ":" + d.hex }

// path returns the digest as two components of a path.
func (d digest) path() string { return d.algorithm + "/" + d.hex }

// blobPath returns the path of the content, common to all repositories.
func (d digest) blobPath() string { return path.Join(blobsDir, d.algorithm, d.hex[:2], d.hex) }

// newHash returns a hash for the algorithm, or nil if the registry does not support it.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case sha256Name:
		return sha256.New()
	case sha512Name:
		return sha512.New()
	}
	return nil
}

// digestSyntax is the image-spec's grammar of digests, for any algorithm.
var digestSyntax = regexp.MustCompile(`^[a-z0-9]+([+._-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$`)

// Errors in a digest.
var (
	errDigestSyntax     = errors.New("is not a digest, for example sha256:e3b0…")
	errUnknownAlgorithm = errors.New("has an unsupported algorithm: use sha256 or sha512")
	errDigestLength     = errors.New("has the wrong length, or characters other than lower-case hexadecimal digits")
)

// Errors in the name of a repository.
var (
	errRepositoryName    = errors.New("is not a repository's name: use lower-case letters and digits, with separators . _ __ - and / between components")
	errRepositoryTooLong = errors.New("is longer than 255 characters")
)

// parseDigest accepts digests of the supported algorithms.
func parseDigest(s string) (digest, error) {
	if !digestSyntax.MatchString(s) {
		return digest{}, errDigestSyntax
	}
	algorithm, hex, _ := strings.Cut(s, ":")
	h := newHash(algorithm)
	if h == nil {
		return digest{}, errUnknownAlgorithm
	}
	if len(hex) != 2*h.Size() || strings.Trim(hex, "0123456789abcdef") != "" {
		return digest{}, errDigestLength
	}
	return digest{algorithm, hex}, nil
}

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
