// Package docker serves the Docker Engine API (docs.docker.com/reference/api/engine) on top of
// the engine, for unmodified docker clients and SDKs: see docs/docker.md. Like package server,
// the package only translates between the API and the engine.
//
// Docker's clients see every sandbox as a container: instances of functions (named FUNCTION-ID,
// with the labels fre.function and fre.tenant), runs, and containers. An image's id is the
// image's digest. A name without a registry means Docker Hub, and is stored without the registry
// (oci.Familiar).
//
// Answers use the types of github.com/moby/moby/api. Requests, lists served from memory, and answers
// in which a zero value would be a false statement have types of their own (docs/decisions).
package docker

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
)

// Config configures the server. All fields but Access are required.
type Config struct {
	Engine  *engine.Engine
	Log     *slog.Logger
	Version api.Version

	Access *access.Access // audit log of the clients' actions; nil: no audit log
}

// Supported API versions, as N of the prefix "v1.N" of a path. No prefix means the newest
// version.
const (
	minVersion = 41
	maxVersion = 50
)

type versionKey struct{}

// versioned removes the version prefix from the path.
func versioned(r *http.Request) (*http.Request, error) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1.")
	if !ok {
		return r, nil
	}
	digits, _, _ := strings.Cut(rest, "/")
	n, err := strconv.ParseUint(digits, 10, 16)
	switch {
	case err != nil:
		return r, nil //nolint:nilerr // no version: a page that is not there
	case n < minVersion:
		return r, badRequest("client version 1.%d is too old: FRE speaks 1.%d to 1.%d, set DOCKER_API_VERSION=1.%d or upgrade the client", n, minVersion, maxVersion, minVersion)
	case n > maxVersion:
		return r, badRequest("client version 1.%d is too new. Maximum supported API version is 1.%d", n, maxVersion)
	}
	r2 := r.WithContext(context.WithValue(r.Context(), versionKey{}, int(n)))
	u := *r.URL
	prefix := len("/v1.") + len(digits)
	u.Path = u.Path[prefix:]
	if u.RawPath != "" {
		u.RawPath = u.RawPath[prefix:]
	}
	r2.URL = &u
	return r2, nil
}

// versionOf returns N of the client's API version "v1.N".
func versionOf(r *http.Request) int {
	if n, ok := r.Context().Value(versionKey{}).(int); ok {
		return n
	}
	return maxVersion
}
