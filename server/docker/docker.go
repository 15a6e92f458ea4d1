// Package docker answers the Docker Engine API (docs.docker.com/reference/api/engine)
// out of the engine, so that the docker client and the SDKs work as they are: see
// docs/docker.md for what they find here. Like package server it translates and
// decides nothing itself.
//
// Everything that runs is a container to Docker's clients: instances of
// functions (named FUNCTION-ID, with the labels fre.function and fre.tenant),
// runs, and containers proper. An image is known by its digest; names without a
// registry are Docker Hub's there, and stay as they are here (oci.Familiar).
//
// Wire types carry the field names of the API's description (swagger); those
// that clients need for sense, not all that it lists.
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

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/server/listing"
)

// The API versions a client may ask for, "v1.N" before the path. None means the
// newest.
const (
	minVersion = 41
	maxVersion = 50
)

// Config wires the server. All but Access is required.
type Config struct {
	Engine  *engine.Engine
	Log     *slog.Logger
	Version api.Version

	Access *access.Access // whose audit log tells of what clients do; nil: none does
}

type server struct {
	cfg    Config
	engine *engine.Engine
	log    *slog.Logger
	host   host
	images imageLists
	layers sync.Map          // diff ids by image (diffIDs)
	boxes  [2]*containerRows // by whether it holds all
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

// versioned takes the version off the path.
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

// versionOf is N of the "v1.N" that the client speaks.
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

// prunedNothing answers for what FRE has none of, whatever those filters say.
func prunedNothing(answer map[string]any, filters ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := filtersOf(r, filters...); err != nil {
			return err
		}
		return reply(w, http.StatusOK, answer)
	}
}

// fail sends err in Docker's error shape.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, message := statusOf(err)
	if status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "docker request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	_ = reply(w, status, errorBody{message})
}

// maxJSONBytes bounds a request's JSON body: a container's configuration is a
// few kilobytes.
const maxJSONBytes = 4 << 20

// decodeJSON reads a request's body; known finds what it says beyond v.
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

// boolOf is Docker's reading of a query parameter: anything but these is true.
func boolOf(r *http.Request, name string) bool { return truth(r.URL.Query().Get(name)) }

func truth(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "0", "no", "false", "none":
		return false
	}
	return true
}
