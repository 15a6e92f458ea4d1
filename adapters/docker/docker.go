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
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/moby/api/types/common"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/server/listing"
)

// Supported API versions, as N of the prefix "v1.N" of a path. No prefix means the newest
// version.
const (
	minVersion = 41
	maxVersion = 50
)

// Config configures the server. All fields but Access are required.
type Config struct {
	Engine  *engine.Engine
	Log     *slog.Logger
	Version api.Version

	Access *access.Access // audit log of the clients' actions; nil: no audit log
}

type server struct {
	cfg    Config
	engine *engine.Engine
	log    *slog.Logger
	host   host
	images imageLists
	layers sync.Map          // diff ids by image digest (diffIDs)
	boxes  [2]*containerRows // index: whether the rows include ended sandboxes
}

// New returns the handler of the API.
func New(cfg Config) http.Handler {
	s := &server{cfg: cfg, engine: cfg.Engine, log: cfg.Log, host: thisHost(), boxes: [2]*containerRows{newContainerRows(), newContainerRows()}}
	s.images.init()
	mux := http.NewServeMux()
	s.register(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1."+strconv.Itoa(maxVersion))
		w.Header().Set("Docker-Experimental", "false")
		w.Header().Set("Ostype", "linux")
		w.Header().Set("Server", "FRE/"+cfg.Version.Version+" (linux)")
		r, err := versioned(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

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

// reply sends v as JSON.
func reply(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	listing.Send(w, status, body)
	return nil
}

// pluginList answers GET /plugins?filters=.
func (s *server) pluginList(w http.ResponseWriter, r *http.Request) error {
	if _, err := filtersOf(r, "capability", "enabled"); err != nil {
		return err
	}
	return reply(w, http.StatusOK, []any{})
}

// prunedNothing returns a handler for the prune route of objects that FRE never has. The handler
// accepts the given filters.
func prunedNothing(answer any, filters ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := filtersOf(r, filters...); err != nil {
			return err
		}
		return reply(w, http.StatusOK, answer)
	}
}

// fail sends err in Docker's error format.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, message := statusOf(err)
	if status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "docker request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	_ = reply(w, status, common.ErrorResponse{Message: message})
}

// maxJSONBytes bounds a request's JSON body; a container's configuration has a few kilobytes.
const maxJSONBytes = 4 << 20

// decodeJSON parses a request's body and ignores unknown fields; known finds unknown fields.
func decodeJSON(body []byte, v any) error {
	if len(strings.TrimSpace(string(body))) == 0 {
		return badRequest("invalid JSON: got EOF while reading request body")
	}
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return badRequest("invalid JSON: %v at byte %d", err, syntax.Offset)
	}
	return badRequest("invalid JSON: %s", wording.JSON(err))
}

// boolOf parses a query parameter like Docker: every value except the ones in truth is true.
func boolOf(r *http.Request, name string) bool { return truth(r.URL.Query().Get(name)) }

func truth(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "0", "no", "false", "none":
		return false
	}
	return true
}
