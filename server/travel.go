package server

import (
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/image/oci"
)

// travelRoutes are the routes that carry images between FRE, archives and registries.
type travelRoutes struct {
	engine Engine
	log    *slog.Logger
}

func (s *travelRoutes) routes() []route {
	return []route{
		{"POST", "/v1/images/load", s.load},
		{"GET", "/v1/images/save", s.save},
		{"POST", "/v1/images/import", s.importImage},
		{"POST", "/v1/images/pull", s.pull},
		{"POST", "/v1/images/push", s.push},
		{"POST", "/v1/images/resolve", s.resolve},
		{"POST", "/v1/images/sign", s.sign},
	}
}

// load answers POST /v1/images/load: imports an archive of images.
func (s *travelRoutes) load(w http.ResponseWriter, r *http.Request) error {
	if err := takeArchive(w, r); err != nil {
		return err
	}
	out := &lines{w: w, log: s.log}
	images, err := s.engine.Load(r.Context(), r.Body, out.report)
	if err != nil {
		return out.end(r, err)
	}
	var line api.TravelLine
	for _, img := range images {
		line.Images = append(line.Images, imageOf(img))
	}
	out.send(line)
	return nil
}

// importImage answers POST /v1/images/import: imports an archive of a file system as an image.
func (s *travelRoutes) importImage(w http.ResponseWriter, r *http.Request) error {
	if err := takeArchive(w, r); err != nil {
		return err
	}
	q := r.URL.Query()
	out := &lines{w: w, log: s.log}
	img, err := s.engine.Import(r.Context(), r.Body, oci.ImportOptions{Name: q.Get("name"), Message: q.Get("message"), Changes: q["change"]}, out.report)
	if err != nil {
		return out.end(r, err)
	}
	out.send(api.TravelLine{Images: []api.Image{imageOf(img)}})
	return nil
}

// save answers GET /v1/images/save. A failure after the first bytes aborts the answer.
func (s *travelRoutes) save(w http.ResponseWriter, r *http.Request) error {
	refs := r.URL.Query()["ref"]
	if len(refs) == 0 {
		return badRequest("ref is missing: name the images to save")
	}
	out := &archiveOut{w: w}
	err := s.engine.Save(r.Context(), out, refs)
	if err != nil && out.started {
		s.log.WarnContext(r.Context(), "saving images broke off", "images", refs, "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// archiveOut sets the content type with the first bytes.
type archiveOut struct {
	w       http.ResponseWriter
	started bool
}

func (a *archiveOut) Write(p []byte) (int, error) {
	if !a.started {
		a.started = true
		a.w.Header().Set("Content-Type", tarType)
	}
	return a.w.Write(p)
}

// pull answers POST /v1/images/pull.
func (s *travelRoutes) pull(w http.ResponseWriter, r *http.Request) error {
	var req api.PullRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	out := &lines{w: w, log: s.log}
	img, remote, err := s.engine.Pull(r.Context(), req.Ref, req.Platform, authOf(req.Auth), out.report)
	if err != nil {
		return out.end(r, err)
	}
	out.send(api.TravelLine{Images: []api.Image{imageOf(img)}, Digest: string(remote.Digest)})
	return nil
}

// push answers POST /v1/images/push.
func (s *travelRoutes) push(w http.ResponseWriter, r *http.Request) error {
	var req api.PushRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	out := &lines{w: w, log: s.log}
	remote, err := s.engine.Push(r.Context(), req.Image, req.To, authOf(req.Auth), oci.PushOptions{AsImage: req.AsImage, NoSBOM: req.NoSBOM}, out.report)
	if err != nil {
		return out.end(r, err)
	}
	out.send(api.TravelLine{Digest: string(remote.Digest)})
	return nil
}

// resolve answers POST /v1/images/resolve.
func (s *travelRoutes) resolve(w http.ResponseWriter, r *http.Request) error {
	var req api.ResolveRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	ref, err := s.engine.Resolve(r.Context(), req.Ref, authOf(req.Auth))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.Resolved{Ref: ref})
}

// sign answers POST /v1/images/sign.
func (s *travelRoutes) sign(w http.ResponseWriter, r *http.Request) error {
	var req api.SignRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if err := s.engine.AttachSignature(r.Context(), req.Ref, []byte(req.Payload), req.Signature, authOf(req.Auth)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func authOf(a *api.RegistryAuth) *oci.Auth {
	if a == nil {
		return nil
	}
	return &oci.Auth{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
}

// loginsOf parses an api.RegistryConfigHeader. The errors do not quote the header, which holds
// passwords.
func loginsOf(header string) (map[string]*oci.Auth, error) {
	if header == "" {
		return nil, nil
	}
	raw, err := base64.URLEncoding.DecodeString(header)
	if err != nil {
		return nil, badRequest("%s is not base64, of the kind for URLs", api.RegistryConfigHeader)
	}
	var logins map[string]*api.RegistryAuth
	if err := json.Unmarshal(raw, &logins); err != nil {
		return nil, badRequest("%s is not JSON of logins by registry", api.RegistryConfigHeader)
	}
	out := map[string]*oci.Auth{}
	for host, login := range logins {
		if login != nil && *login != (api.RegistryAuth{}) {
			out[host] = authOf(login)
		}
	}
	return out, nil
}

// takeArchive requires a content type that a browser cannot send across sites without a
// preflight, and lets the handler send progress while the archive arrives.
func takeArchive(w http.ResponseWriter, r *http.Request) error {
	switch mediaType(r) {
	case tarType, "application/gzip", "application/zstd", "application/octet-stream":
		clearBodyDeadline(w) // sent by an operator
		return http.NewResponseController(w).EnableFullDuplex()
	}
	return badRequest("Content-Type is %q: send an archive as %s", r.Header.Get("Content-Type"), tarType)
}
