package openfaas

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/template"
)

// Contents of a build's archive: the configuration, and the build context below a directory.
const (
	configFile    = "com.openfaas.docker.config"
	sealedFile    = "com.openfaas.secrets"
	contextDir    = "context"
	functionDir   = "function" // directory of the handler in a context
	maxConfigFile = 64 << 10
)

// buildConfig is the content of configFile.
type buildConfig struct {
	Image     string            `json:"image"`
	BuildArgs map[string]string `json:"buildArgs"`
	Platforms []string          `json:"platforms"`
	SkipPush  bool              `json:"skipPush"` // irrelevant, because FRE never pushes
}

// buildResult is an answer, or one line of a streamed answer.
type buildResult struct {
	Log    []string `json:"log"`
	Image  string   `json:"image"`
	Status string   `json:"status"`
	Error  string   `json:"error,omitempty"`
}

// Values of buildResult.Status.
const (
	buildRuns      = "in_progress"
	buildSucceeded = "success"
	buildFailed    = "failed"
)

// build answers POST /build: a tar, and in X-Build-Signature the tar's HMAC, which identifies
// the builder. The archive is written to disk and verified before the handler reads any content.
// The audit log has every correctly signed build; a wrong signature counts as a failed
// authentication.
func (h *handler) build(w http.ResponseWriter, r *http.Request) {
	client := access.ClientOf(r)
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		h.fail(w, r, &api.Error{Code: api.CodeMethod, Message: "a build is a POST"})
		return
	}
	if len(h.Builders) == 0 {
		h.fail(w, r, &api.Error{Code: failure.Unsupported, Message: "remote builds are off", Next: "name openfaas.builders in the engine's configuration"})
		return
	}
	signature, err := signatureOf(r.Header.Get("X-Build-Signature"))
	if err == nil {
		err = h.Access.Slowed(client)
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	received, ok := h.receiving.Enter(access.Block(client))
	if !ok {
		w.Header().Set("Retry-After", "5")
		h.fail(w, r, &api.Error{Code: failure.Busy, Message: "too many uploads of build contexts in progress", Next: "try again in a moment"})
		return
	}
	defer received()
	dir, path, err := h.scratch()
	if err != nil {
		h.fail(w, r, err)
		return
	}
	defer func() {
		_ = dir.Close()
		if err := linux.RemoveAll(path); err != nil {
			h.Log.WarnContext(context.WithoutCancel(r.Context()), "build context not removed", "path", path, "error", err)
		}
	}()
	tenant, err := h.receive(w, r, dir, signature)
	received()
	if err != nil {
		h.fail(w, r, err)
		return
	}
	entry := access.Entry{Who: "builder of " + tenant, Tenant: tenant, Client: client, Action: "POST /build", Result: access.Failed}
	defer func() { h.Access.Record(entry) }()
	cfg, err := h.unpack(r.Context(), dir)
	if err != nil {
		entry.Status, entry.Reason = h.fail(w, r, err), err.Error()
		return
	}
	entry.On = cfg.Image
	out := &buildOutput{w: w, streams: strings.Contains(r.Header.Get("Accept"), "application/x-ndjson")}
	err = h.buildContext(r.Context(), dir, cfg, tenant, out.report)
	if entry.Status = http.StatusOK; err != nil {
		entry.Reason = err.Error()
	} else {
		entry.Result = access.Done
	}
	out.end(cfg.Image, err)
}

// signatureOf parses X-Build-Signature: "sha256=" and an HMAC-SHA256 in hexadecimal digits.
func signatureOf(field string) ([]byte, error) {
	digits, ok := strings.CutPrefix(field, "sha256=")
	mac, err := hex.DecodeString(digits)
	if !ok || err != nil || len(mac) != sha256.Size {
		return nil, errSignature("X-Build-Signature is missing, or is not sha256= with the body's HMAC-SHA256 in hexadecimal digits")
	}
	return mac, nil
}

func errSignature(message string) error {
	return &api.Error{Code: api.CodeUnauthorized, Message: message, Next: "sign with the secret file in openfaas.builders (faas-cli … --payload-secret FILE)"}
}

func (h *handler) scratch() (*os.Root, string, error) {
	path, err := h.Scratch()
	if err != nil {
		return nil, "", fmt.Errorf("make scratch directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, "", errors.Join(err, linux.RemoveAll(path))
	}
	return dir, path, nil
}

// archiveFile is the name of the request's body on disk.
const archiveFile = "request.tar"

// receive writes the body to disk, verifies the signature and returns the builder's tenant.
func (h *handler) receive(w http.ResponseWriter, r *http.Request, dir *os.Root, signature []byte) (tenant string, err error) {
	limit := h.MaxContextBytes + maxContextEntries*1024
	if r.ContentLength > limit {
		return "", &http.MaxBytesError{Limit: limit}
	}
	f, err := dir.Create(archiveFile)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	macs := make([]hash.Hash, len(h.Builders))
	to := []io.Writer{f}
	for i, b := range h.Builders {
		macs[i] = hmac.New(sha256.New, b.Secret)
		to = append(to, macs[i])
	}
	body, done := intake.Within(w, http.MaxBytesReader(w, r.Body, limit), h.ReceiveTime)
	err = build.WritingTo(r.Context(), dir.Name(), func(ctx context.Context) error {
		_, err := io.Copy(build.WhileRoom(ctx, io.MultiWriter(to...)), body)
		return err
	})
	done()
	if errors.Is(err, intake.ErrSlow) { // the client has not authenticated
		return "", h.Access.Failed(access.Identity{}, access.ClientOf(r), &api.Error{Code: failure.SlowBody, Message: fmt.Sprintf("the upload of the build context took longer than %s", h.ReceiveTime), Next: "exclude unneeded files from the function's directory"})
	}
	if err != nil {
		return "", fmt.Errorf("read build context: %w", err)
	}
	for i, b := range h.Builders { // compare with all builders, for constant time
		if hmac.Equal(macs[i].Sum(nil), signature) {
			tenant = b.Tenant
		}
	}
	if tenant == "" {
		return "", h.Access.Failed(access.Identity{}, access.ClientOf(r), errSignature("the build's signature matches no builder of the engine"))
	}
	return tenant, nil
}

// unpack unpacks the archive below dir and returns the build configuration.
func (h *handler) unpack(ctx context.Context, dir *os.Root) (*buildConfig, error) {
	f, err := dir.Open(archiveFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := dir.Mkdir("in", 0o755); err != nil {
		return nil, err
	}
	in, err := dir.OpenRoot("in")
	if err != nil {
		return nil, err
	}
	defer in.Close()
	err = build.WritingTo(ctx, dir.Name(), func(ctx context.Context) error {
		return unpack.Tar(ctx, in, f, unpack.Limits{Bytes: h.MaxContextBytes, Entries: maxContextEntries})
	})
	if removeErr := dir.Remove(archiveFile); err == nil { // free the disk space before the build waits for its turn
		err = removeErr
	}
	switch {
	case errors.Is(err, unpack.ErrLimit):
		return nil, &api.Error{Code: api.CodeTooLarge, Message: err.Error(), Next: "exclude unneeded files from the function's directory"}
	case errors.Is(err, unpack.ErrArchive):
		return nil, badRequest("the build context: %v", err)
	case err != nil:
		return nil, err
	}
	return readBuildConfig(in)
}

func readBuildConfig(in *os.Root) (*buildConfig, error) {
	raw, err := readSmall(in, configFile, maxConfigFile)
	if err != nil {
		return nil, badRequest("the archive has no %s of a reasonable size", configFile)
	}
	cfg := new(buildConfig)
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(cfg); err != nil {
		return nil, badRequest("%s: %s", configFile, wording.JSON(err))
	}
	if _, err := oci.Host(cfg.Image); err != nil {
		return nil, badRequest("%s: image: %v", configFile, err)
	}
	if image.ReservedName(familiar(cfg.Image)) {
		return nil, badRequest("%s: image: %s is a name of FRE's own", configFile, cfg.Image)
	}
	for name, value := range cfg.BuildArgs {
		if value != "" {
			return nil, badRequest("build argument %s: FRE runs no Dockerfile: leave build arguments out, and name packages in fret.yaml", name)
		}
	}
	here := "linux/" + runtime.GOARCH
	if p := slices.DeleteFunc(slices.Clone(cfg.Platforms), func(s string) bool { return s == "" }); len(p) > 0 && !slices.Equal(p, []string{here}) {
		return nil, badRequest("platforms %s: the engine builds for %s only (faas-cli … --platforms %s)", strings.Join(p, ", "), here, here)
	}
	if _, err := in.Lstat(sealedFile); err == nil {
		return nil, badRequest("build secrets: FRE runs no Dockerfile: leave build secrets out")
	}
	return cfg, nil
}

// readSmall reads a regular file of at most most bytes.
func readSmall(dir *os.Root, name string, most int64) ([]byte, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s: not a file of at most %d bytes", name, most)
	}
	return dir.ReadFile(name)
}

// buildContext builds an image of the unpacked context and tags the image with the requested
// name.
func (h *handler) buildContext(ctx context.Context, dir *os.Root, cfg *buildConfig, tenant string, report func(image.Progress)) error {
	ctx = h.Engine.ForTenant(build.KeepNames(ctx))
	defer h.Engine.Hold()()
	if err := h.Engine.MayName(familiar(cfg.Image), tenant); err != nil {
		return err
	}
	top, err := dir.OpenRoot("in/" + contextDir)
	if err != nil {
		return badRequest("the archive has no directory %s", contextDir)
	}
	defer top.Close()
	if own, err := ownTemplate(top); err != nil {
		return err
	} else if own != nil {
		defer own.Close()
		return h.buildOwn(ctx, own, cfg, tenant, report)
	}
	spec, err := languageTemplate(top)
	if err != nil {
		return err
	}
	id, err := madeName()
	if err != nil {
		return err
	}
	spec["id"], spec["tenant"] = id, tenant
	if err := writeTemplate(top, spec); err != nil {
		return err
	}
	t, err := h.Engine.Template(top)
	if err != nil {
		return err
	}
	img, _, err := h.Engine.Build(ctx, top, t, report)
	if err != nil {
		return err
	}
	_, err = h.Engine.TagImage(ctx, string(img.Digest), familiar(cfg.Image))
	return errors.Join(err, h.untag(ctx, img))
}

// buildOwn builds a directory with a fret.yaml, like fre build.
func (h *handler) buildOwn(ctx context.Context, dir *os.Root, cfg *buildConfig, tenant string, report func(image.Progress)) error {
	t, err := h.Engine.Template(dir)
	if err != nil {
		return err
	}
	if t.Tenant != tenant {
		return badRequest("the template is of tenant %s, the builder's secret of %s: write into fret.yaml: tenant: %s", t.Tenant, tenant, tenant)
	}
	if err := h.Engine.MayName(t.ID+":"+t.Version, tenant); err != nil {
		return err
	}
	img, _, err := h.Engine.Build(ctx, dir, t, report)
	if err != nil {
		return err
	}
	_, err = h.Engine.TagImage(ctx, string(img.Digest), familiar(cfg.Image))
	return err
}

// ownTemplate returns the directory of a build context with a fret.yaml: the top or the
// handler's directory. The result is nil if both lack a fret.yaml.
func ownTemplate(top *os.Root) (*os.Root, error) {
	for _, where := range []string{".", functionDir} {
		switch _, err := top.Lstat(path.Join(where, template.FileName)); {
		case err == nil:
			return top.OpenRoot(where)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, badRequest("%v", err)
		}
	}
	return nil, nil
}

// languageTemplate returns the fret.yaml that corresponds to an OpenFaaS language template.
func languageTemplate(top *os.Root) (map[string]any, error) {
	text, err := readSmall(top, "template.yml", maxConfigFile)
	if err != nil {
		return nil, errLanguage("a directory without template.yml")
	}
	var language struct {
		Language string `yaml:"language"`
	}
	if err := yaml.Unmarshal(text, &language); err != nil {
		return nil, badRequest("template.yml: %s", yaml.FormatError(err, false, false))
	}
	switch language.Language {
	case "python3-http", "python3-http-debian", "python3-flask", "python3-flask-debian":
		return pythonTemplate(top)
	}
	return nil, errLanguage(fmt.Sprintf("the template %q", language.Language))
}

func errLanguage(what string) error {
	return badRequest("FRE runs no Dockerfile and cannot build %s: put a fret.yaml beside the handler (fre new), use python3-http or python3-flask, or build the image with another tool and deploy the image by name", what)
}

// pythonTemplate returns the fret.yaml for OpenFaaS's python3-http and python3-flask. The
// template's index.py serves the handler on port 5000, and FRE replaces the watchdog.
func pythonTemplate(top *os.Root) (map[string]any, error) {
	if _, err := top.Stat("index.py"); err != nil {
		return nil, badRequest("the template has no index.py")
	}
	var requirements []byte
	for _, name := range []string{"requirements.txt", functionDir + "/requirements.txt"} {
		if _, err := top.Stat(name); err == nil {
			requirements = fmt.Appendf(requirements, "-r %s\n", name)
		}
	}
	spec := map[string]any{
		"base": "python", "runtime": "http", "handler": "python3 index.py", "http": map[string]any{"port": 5000},
		"instances": map[string]any{"concurrency": defaultConcurrency}, "resources": map[string]any{"pids": 256},
	}
	if requirements != nil {
		const file = "fre-requirements.txt"
		if err := top.WriteFile(file, requirements, 0o644); err != nil {
			return nil, err
		}
		spec["packages"] = map[string]any{"pip": file}
	}
	return spec, nil
}

// buildOutput reports the progress of a build, line by line or in one answer at the end.
type buildOutput struct {
	w       http.ResponseWriter
	streams bool

	mu    sync.Mutex // report may run on another goroutine
	log   []string
	last  string // last line, to skip repetitions
	begun bool
}

// maxBuildLog is the maximum number of lines in an answer at the end.
const maxBuildLog = 1000

func (o *buildOutput) report(e image.Progress) {
	if e.End || e.Total > 0 && e.Done > 0 { // progress is only for bars
		return
	}
	line := strings.TrimSpace(strings.Join([]string{e.Step, e.Name, e.Message}, " "))
	o.mu.Lock()
	defer o.mu.Unlock()
	if line == o.last {
		return
	}
	o.last = line
	if !o.streams {
		if len(o.log) < maxBuildLog {
			o.log = append(o.log, line)
		}
		return
	}
	o.sendLocked(buildResult{Log: []string{line}, Status: buildRuns})
}

// end sends the result. The status is always 200, because clients look for errors in the body.
func (o *buildOutput) end(image string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := buildResult{Log: o.log, Image: image, Status: buildSucceeded}
	if err != nil {
		e := server.ErrorOf(err)
		r.Status, r.Error = buildFailed, e.Message
		if e.Next != "" {
			r.Error += "; " + e.Next
		}
	}
	o.sendLocked(r)
}

func (o *buildOutput) sendLocked(r buildResult) {
	if !o.begun {
		o.begun = true
		kind := "application/json"
		if o.streams {
			kind = "application/x-ndjson"
		}
		o.w.Header().Set("Content-Type", kind)
	}
	if r.Log == nil {
		r.Log = []string{}
	}
	b, err := json.Marshal(r)
	if err != nil { // strings always encode
		return
	}
	_, _ = o.w.Write(append(b, '\n')) // an error means that the connection ends
	if o.streams {
		_ = http.NewResponseController(o.w).Flush()
	}
}
