package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
)

// progress is one line of a progress stream. An error after the first line is the last line.
type progress struct {
	Stream      string               `json:"stream,omitempty"`
	Status      string               `json:"status,omitempty"`
	ID          string               `json:"id,omitempty"`
	Progress    string               `json:"progress,omitempty"`
	Detail      *jsonstream.Progress `json:"progressDetail,omitempty"`
	Error       string               `json:"error,omitempty"`
	ErrorDetail *jsonstream.Error    `json:"errorDetail,omitempty"`
	Aux         any                  `json:"aux,omitempty"`
}

// progressOut sends lines at once; the first line also sends the status.
type progressOut struct {
	w     http.ResponseWriter
	begun bool
}

func (p *progressOut) send(line progress) {
	if !p.begun {
		p.begun = true
		p.w.Header().Set("Content-Type", "application/json")
		p.w.WriteHeader(http.StatusOK)
	}
	// If the client disconnects or does not read, net/http ends the request's context and thus
	// the work.
	c := http.NewResponseController(p.w)
	_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
	_ = json.NewEncoder(p.w).Encode(line)
	_ = c.Flush()
}

// report sends a progress event of the engine.
func (p *progressOut) report(e image.Progress) {
	line := progress{ID: e.Name, Status: e.Message}
	switch {
	case e.Step == "warning":
		line = progress{Status: "WARNING: " + e.Message + ": " + e.Name}
	case e.Step != "layer":
		return
	case line.Status == "":
		line.Status = "Downloading"
	case line.Status == "already here":
		line.Status = "Already exists"
	}
	if e.Total > 0 || e.Done > 0 {
		line.Detail = &jsonstream.Progress{Current: e.Done, Total: e.Total}
		if e.Total > 0 {
			line.Progress = fmt.Sprintf("%d%%", 100*e.Done/e.Total)
		}
	}
	p.send(line)
}

// fail ends the answer with err, or returns err if nothing was sent.
func (p *progressOut) fail(err error) error {
	if !p.begun {
		return err
	}
	if w, ok := p.w.(*watchedWriter); ok {
		w.failure = err
	}
	_, message := statusOf(err)
	p.send(progress{Error: message, ErrorDetail: &jsonstream.Error{Message: message}})
	return nil
}

// authOf parses the X-Registry-Auth header: base64 of JSON. Without a login, authOf returns an
// empty login, which means anonymous access. A nil login would make the engine use the login of
// its own user.
func authOf(header string) (*oci.Auth, error) {
	if header == "" {
		return &oci.Auth{}, nil
	}
	raw, err := base64.URLEncoding.DecodeString(header)
	if err != nil {
		raw, err = base64.RawURLEncoding.DecodeString(header)
	}
	if err != nil {
		if raw, err = base64.StdEncoding.DecodeString(header); err != nil {
			return nil, badRequest("X-Registry-Auth is not base64: %v", err)
		}
	}
	var a authConfig
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, badRequest("X-Registry-Auth is not JSON")
	}
	return a.auth()
}

// authConfig is a login in the format of clients.
type authConfig struct {
	Username, Password, Auth, IdentityToken, RegistryToken, ServerAddress string
	Email                                                                 string // formerly required by registries
}

// auth converts the login to the engine's type.
func (a *authConfig) auth() (*oci.Auth, error) {
	if a.Auth != "" && a.Username == "" {
		pair, err := base64.StdEncoding.DecodeString(a.Auth)
		user, password, ok := strings.Cut(string(pair), ":")
		if err != nil || !ok {
			return nil, badRequest("auth is not base64 of USER:PASSWORD")
		}
		a.Username, a.Password = user, password
	}
	return &oci.Auth{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}, nil
}

// auth answers POST /auth: reports whether the registry accepts the login. The client then
// stores the login and sends the login with each pull and push. The default address is Docker
// Hub's.
func (s *server) auth(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	var a authConfig
	if err := decodeJSON(body, &a); err != nil {
		return err
	}
	if err := known(body, a); err != nil {
		return err
	}
	auth, err := a.auth()
	if err == nil && *auth == (oci.Auth{}) {
		err = badRequest("the login is missing: give a username and a password")
	}
	if err != nil {
		return err
	}
	host := a.ServerAddress
	if _, after, ok := strings.Cut(host, "://"); ok {
		host = after
	}
	host, _, _ = strings.Cut(host, "/")
	err = s.engine.Login(r.Context(), host, auth)
	if errors.Is(err, fs.ErrPermission) {
		return &statusError{http.StatusUnauthorized, err.Error()}
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, registry.AuthResponse{Status: "Login Succeeded"})
}

// imageCreate answers POST /images/create: a pull (fromImage, tag, platform), or
// an import of an archive of a file system (fromSrc=-, repo, tag, message, changes).
func (s imageRoutes) imageCreate(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if source := q.Get("fromSrc"); source != "" {
		return s.imageImport(w, r, source)
	}
	ref, err := pullReference(q)
	if err != nil {
		return err
	}
	auth, err := authOf(r.Header.Get("X-Registry-Auth"))
	if err != nil {
		return err
	}
	before, _ := s.engine.Image(ref) // nil: no such image
	out := &progressOut{w: w}
	img, remote, err := s.engine.Pull(r.Context(), ref, q.Get("platform"), auth, out.report)
	if err != nil {
		return out.fail(err)
	}
	out.send(progress{Status: "Digest: " + string(remote.Digest)})
	status := "Downloaded newer image for "
	if before != nil && before.Digest == img.Digest {
		status = "Image is up to date for "
	}
	out.send(progress{Status: "Status: " + status + ref})
	return nil
}

// pullReference returns the image to pull.
func pullReference(q url.Values) (string, error) {
	from := q.Get("fromImage")
	for _, of := range []string{"repo", "message", "changes"} {
		if q.Get(of) != "" {
			return "", badRequest("%s: only for an import (fromSrc), not for a pull of %s", of, from)
		}
	}
	if from == "" {
		return "", badRequest("fromImage or fromSrc is missing: name the image to pull, or - for an archive to import")
	}
	ref, err := reference(from, q.Get("tag"))
	if err != nil {
		return "", err
	}
	if ref.Version == "" && ref.Digest == "" {
		return "", leftOut("pull of all tags", "name a tag: docker pull "+from+":TAG")
	}
	return ref.String(), nil
}

// fullDuplex lets a handler answer while the body arrives. Without fullDuplex, net/http reads
// the whole body before the answer.
func fullDuplex(w http.ResponseWriter) error {
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (s imageRoutes) imageImport(w http.ResponseWriter, r *http.Request, source string) error {
	if source != "-" {
		return leftOut("import from URLs", "fetch it, then docker import - NAME < FILE")
	}
	if err := oci.CheckPlatform(r.URL.Query().Get("platform")); err != nil {
		return badRequest("%v", err)
	}
	if err := fullDuplex(w); err != nil {
		return err
	}
	q := r.URL.Query()
	name := ""
	if repository := q.Get("repo"); repository != "" {
		p, err := reference(repository, q.Get("tag"))
		if err != nil {
			return err
		}
		if p.Version == "" {
			p.Version = "latest"
		}
		name = p.String()
	}
	out := &progressOut{w: w}
	img, err := s.engine.Import(r.Context(), r.Body, oci.ImportOptions{Name: name, Message: q.Get("message"), Changes: q["changes"], Platform: q.Get("platform")}, nil)
	if err != nil {
		return out.fail(err)
	}
	out.send(progress{Status: string(img.Digest)})
	return nil
}

// imageLoad answers POST /images/load?quiet=&platform=.
func (s imageRoutes) imageLoad(w http.ResponseWriter, r *http.Request) error {
	for _, p := range r.URL.Query()["platform"] {
		if err := oci.CheckPlatform(p); err != nil {
			return err
		}
	}
	if err := fullDuplex(w); err != nil {
		return err
	}
	out := &progressOut{w: w}
	images, err := s.engine.Load(r.Context(), r.Body, func(e image.Progress) {
		if e.Step == "warning" {
			out.send(progress{Stream: "WARNING: " + e.Message + ": " + e.Name + "\n"})
		}
	})
	if err != nil {
		return out.fail(err)
	}
	for _, img := range images {
		if len(img.Names) == 0 {
			out.send(progress{Stream: "Loaded image ID: " + string(img.Digest) + "\n"})
		}
		for _, name := range img.Names {
			out.send(progress{Stream: "Loaded image: " + name + "\n"})
		}
	}
	return nil
}

// tarOut sends the status with the first bytes of an archive.
type tarOut struct {
	w     http.ResponseWriter
	begun bool
}

func (t *tarOut) Write(p []byte) (int, error) {
	if !t.begun {
		t.begun = true
		t.w.Header().Set("Content-Type", "application/x-tar")
		t.w.WriteHeader(http.StatusOK)
	}
	return t.w.Write(p)
}

// imageSave answers GET /images/get?names=&platform= and GET /images/NAME/get. A failure after
// the first bytes aborts the answer.
func (s imageRoutes) imageSave(w http.ResponseWriter, r *http.Request) error {
	names := r.URL.Query()["names"]
	if name := r.PathValue("name"); name != "" {
		names = []string{name}
	}
	if len(names) == 0 {
		return badRequest("names is missing: name the images to save")
	}
	refs := make([]string, len(names))
	for i, name := range names {
		if _, err := s.platformed(r, name, "platform"); err != nil {
			return err
		}
		refs[i] = oci.Familiar(name)
	}
	out := &tarOut{w: w}
	err := s.engine.Save(r.Context(), out, refs)
	if err != nil && out.begun {
		s.log.WarnContext(r.Context(), "saving images broke off", "images", refs, "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// imagePush answers POST /images/NAME/push?tag=&platform=. Without a tag, the handler pushes
// every version of the name.
func (s imageRoutes) imagePush(w http.ResponseWriter, r *http.Request) error {
	auth, err := authOf(r.Header.Get("X-Registry-Auth"))
	if err != nil {
		return err
	}
	name := oci.Familiar(r.PathValue("name"))
	refs := s.versionsOf(name)
	if tag := r.URL.Query().Get("tag"); tag != "" {
		refs = []string{name + ":" + tag}
	}
	if !slices.ContainsFunc(refs, func(ref string) bool { _, err := s.engine.Image(ref); return err == nil }) {
		return notFound("An image does not exist locally with the tag: %s", name)
	}
	if err := oci.CheckPlatform(r.URL.Query().Get("platform")); err != nil {
		return err
	}
	out := &progressOut{w: w}
	for _, ref := range refs {
		if err := s.pushOne(r.Context(), out, ref, auth); err != nil {
			return out.fail(err)
		}
	}
	return nil
}

// versionsOf returns the references of all images with the name, in any version.
func (s imageRoutes) versionsOf(name string) (refs []string) {
	images, _ := s.engine.ImageList()
	for _, img := range images {
		for _, ref := range img.Names {
			if repositoryOf(ref) == name || ref == name {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

func (s imageRoutes) pushOne(ctx context.Context, out *progressOut, ref string, auth *oci.Auth) error {
	sent, err := s.engine.Push(ctx, ref, "", auth, oci.PushOptions{AsImage: true}, out.report)
	if err != nil {
		return err
	}
	version := ref[len(repositoryOf(ref))+1:]
	out.send(progress{Status: fmt.Sprintf("%s: digest: %s size: %d", version, sent.Digest, sent.Size)})
	out.send(progress{Aux: map[string]any{"Tag": version, "Digest": sent.Digest, "Size": sent.Size}})
	return nil
}
