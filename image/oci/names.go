package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/fre-engine/fre/store"
)

// Familiar drops the parts of a name that docker hides: Docker Hub's host, and "library/" before a
// single component. "docker.io/library/alpine:3" is "alpine:3" in the store.
func Familiar(name string) string {
	for _, host := range []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/"} {
		if rest, ok := strings.CutPrefix(name, host); ok {
			name = rest
			break
		}
	}
	if official, ok := strings.CutPrefix(name, "library/"); ok && !strings.Contains(official, "/") {
		return official
	}
	return name
}

// canonical returns the full form of a name that docker abbreviates.
func canonical(name string) string {
	first, _, more := strings.Cut(name, "/")
	switch {
	case !more:
		return "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		return "docker.io/" + name
	}
	return name
}

// checkNames refuses bad names before the archive is unpacked.
func checkNames(names []string) error {
	for _, n := range names {
		r, err := store.ParseReference(n)
		if err == nil {
			err = r.Check()
		}
		if err == nil && r.Digest != "" {
			err = errors.New("a name cannot hold a digest")
		}
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrReference, n, err)
		}
	}
	return nil
}

// remoteName is a registry's name of an image: "name@sha256:…".
func remoteName(r name.Reference, d store.Digest) string {
	return Familiar(r.Context().Name()) + "@" + string(d)
}

func digestOf(b []byte) store.Digest {
	sum := sha256.Sum256(b)
	return store.Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// short abbreviates a digest for people.
func short(d store.Digest) string {
	_, h, _ := strings.Cut(string(d), ":")
	return h[:min(len(h), 12)]
}
