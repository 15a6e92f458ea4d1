package docker

import (
	"path"
	"strings"

	"github.com/fre-engine/fre/store"
)

// hub are the ways to write Docker Hub's host.
var hub = []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/"}

// familiar takes Docker Hub's host, and "library/" below it, off a reference:
// the name under which the local registry has what docker calls
// "docker.io/library/alpine:3" is "alpine:3".
func familiar(ref string) string {
	for _, host := range hub {
		if rest, ok := strings.CutPrefix(ref, host); ok {
			return strings.TrimPrefix(rest, "library/")
		}
	}
	return ref
}

// repositoryOf is a name, as the local registry has it, without its version or
// digest.
func repositoryOf(name string) string {
	name, _, digest := strings.Cut(name, "@")
	if digest {
		return name
	}
	return name[:max(strings.LastIndexByte(name, ':'), 0)]
}

// matches says whether a name is meant by a pattern of the reference filter:
// path.Match on it with and without its version or digest.
func matches(pattern, name string) (bool, error) {
	pattern = familiar(pattern)
	whole, err := path.Match(pattern, name)
	if err != nil {
		return false, badRequest("invalid filter 'reference=%s': %v", pattern, err)
	}
	short, _ := path.Match(pattern, repositoryOf(name)) // the pattern is well-formed
	return whole || short, nil
}

// image finds an image by what a client calls it.
func (s *server) image(name string) (*store.Image, error) {
	img, err := s.engine.Image(familiar(name))
	if err != nil {
		return nil, s.noImage(name, err)
	}
	return img, nil
}
