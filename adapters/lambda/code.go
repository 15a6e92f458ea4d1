package lambda

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/template"
)

// change is the request of CreateFunction and UpdateFunctionConfiguration. nil and "" keep the
// current value.
type change struct {
	Runtime      string
	Handler      string
	Role         string
	Description  *string
	Timeout      *int
	MemorySize   *int
	Environment  *environment
	RevisionId   string //nolint:revive // AWS's name
	FunctionName string // from the path

	// Accepted and ignored: values without a meaning in FRE, or equal to FRE's behaviour.
	TracingConfig    any
	Tags             any
	LoggingConfig    any
	SnapStart        *struct{ ApplyOn string }
	EphemeralStorage any

	// Refused unless empty.
	Layers           []string
	VpcConfig        *struct{ SubnetIds, SecurityGroupIds []string } //nolint:revive // AWS's name
	DeadLetterConfig *struct{ TargetArn string }
}

// bundle is the code in a request.
type bundle struct {
	ZipFile                             []byte
	S3Bucket, S3Key, S3ObjectVersion    string
	ImageUri, SourceKMSKeyArn           string //nolint:revive // AWS's names
	Architectures                       []string
	Publish, DryRun                     bool
	RevisionId, FunctionName, PublishTo string //nolint:revive // likewise
}

func (b *bundle) check() error {
	switch {
	case cmp.Or(b.S3Bucket, b.S3Key, b.ImageUri, b.SourceKMSKeyArn, b.PublishTo) != "":
		return invalid("code comes as ZipFile alone: FRE reads no S3 bucket and no image of ECR")
	case len(b.ZipFile) == 0:
		return invalid("ZipFile is missing")
	case len(b.ZipFile) > maxZip:
		return refuse(http.StatusRequestEntityTooLarge, "RequestTooLargeException", "ZipFile has %d bytes, at most %d", len(b.ZipFile), maxZip)
	case len(b.Architectures) > 1 || len(b.Architectures) == 1 && b.Architectures[0] != architecture:
		return invalid("Architectures: the engine runs %s", architecture)
	}
	return nil
}

var variablePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]+$`)

// apply checks the change and applies the change to s.
func (o *change) apply(s *settings) error {
	if err := o.supported(); err != nil {
		return err
	}
	for value, to := range map[*string]*string{&o.Runtime: &s.Runtime, &o.Handler: &s.Handler, &o.Role: &s.Role} {
		if *value != "" {
			*to = *value
		}
	}
	if o.Description != nil {
		s.Description = *o.Description
	}
	if err := o.applyLimits(s); err != nil {
		return err
	}
	if o.Environment != nil {
		if err := checkEnvironment(o.Environment.Variables); err != nil {
			return err
		}
		s.Environment = o.Environment.Variables
	}
	return s.check()
}

func (s *settings) check() error {
	if len(s.Description) > 256 || len(s.Handler) > 128 || len(s.Role) > 256 {
		return invalid("Description and Role have at most 256 characters, Handler 128")
	}
	_, _, err := s.base()
	return err
}

func (o *change) applyLimits(s *settings) error {
	if err := within("Timeout", o.Timeout, 1, 900, &s.Timeout); err != nil {
		return err
	}
	return within("MemorySize", o.MemorySize, 128, 10240, &s.MemorySize)
}

// supported refuses settings that FRE has not.
func (o *change) supported() error {
	switch {
	case len(o.Layers) > 0:
		return invalid("Layers are not supported: put the layers' files into the ZipFile")
	case o.VpcConfig != nil && len(o.VpcConfig.SubnetIds)+len(o.VpcConfig.SecurityGroupIds) > 0:
		return invalid("VpcConfig is not supported: functions have no network but loopback")
	case o.DeadLetterConfig != nil && o.DeadLetterConfig.TargetArn != "":
		return invalid("DeadLetterConfig is not supported: fre events ls --state dead shows dead letters")
	case o.SnapStart != nil && o.SnapStart.ApplyOn != "None" && o.SnapStart.ApplyOn != "":
		return invalid("SnapStart is not supported")
	}
	return nil
}

// within sets a number that the change has and that lies in its limits.
func within(name string, value *int, least, most int, to *int) error {
	if value == nil {
		return nil
	}
	if *value < least || *value > most {
		return invalid("%s is %d: from %d to %d", name, *value, least, most)
	}
	*to = *value
	return nil
}

func checkEnvironment(variables map[string]string) error {
	size := 0
	for name, value := range variables {
		if !variablePattern.MatchString(name) || strings.HasPrefix(name, "AWS_") || strings.HasPrefix(name, "FRE_") || name == "_HANDLER" || name == "LAMBDA_TASK_ROOT" || name == "LAMBDA_RUNTIME_DIR" {
			return invalid("the environment variable %q is reserved, or its name is not valid", clip(name))
		}
		size += len(name) + len(value)
	}
	if size > 4096 {
		return invalid("the environment has %d bytes, at most 4096", size)
	}
	return nil
}

// initial returns the settings of a new function.
func (o *change) initial() (settings, error) {
	set := settings{Timeout: 3, MemorySize: 128}
	if err := o.apply(&set); err != nil {
		return set, err
	}
	if set.Handler == "" {
		return set, invalid("Handler is missing")
	}
	return set, nil
}

func (s *server) createFunction(c *call) error {
	var req struct {
		change
		Code        bundle
		Publish     bool
		PackageType string

		Architectures []string
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	c.r.SetPathValue("function", req.FunctionName) // other requests have the name in the path
	ref, err := s.function(c)
	if err != nil {
		return err
	}
	if ref.qualifier != "" {
		return invalid("FunctionName has a qualifier: a new function has no versions")
	}
	if cmp.Or(req.PackageType, "Zip") != "Zip" {
		return invalid("PackageType %q is not supported: Zip is", clip(req.PackageType))
	}
	req.Code.Architectures = req.Architectures
	if err := req.Code.check(); err != nil {
		return err
	}
	set, err := req.initial()
	if err != nil {
		return err
	}
	dir, done, err := s.upload(c, &set, &req.Code)
	if err != nil {
		return err
	}
	defer done()
	unlock, err := s.lock(c)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.Engine.Function(c.on); err == nil {
		return refuse(http.StatusConflict, "ResourceConflictException", "Function already exist: %s", ref.name)
	}
	return s.deploy(c, ref, &set, dir, req.Publish, http.StatusCreated)
}

func (s *server) updateCode(c *call) error {
	var req bundle
	if err := c.decode(&req); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	var code settings
	dir, remove, err := s.upload(c, &code, &req)
	if err != nil {
		return err
	}
	defer remove()
	ref, set, _, done, err := s.changed(c, req.RevisionId)
	if err != nil {
		return err
	}
	defer done()
	if req.DryRun {
		return s.getConfiguration(c)
	}
	set.CodeSize, set.CodeSha256 = code.CodeSize, code.CodeSha256
	return s.deploy(c, ref, set, dir, req.Publish, http.StatusOK)
}

func (s *server) updateConfiguration(c *call) error {
	var req change
	if err := c.decode(&req); err != nil {
		return err
	}
	ref, set, r, done, err := s.changed(c, req.RevisionId)
	if err != nil {
		return err
	}
	defer done()
	if err := req.apply(set); err != nil {
		return err
	}
	return s.redeploy(c, ref, set, r)
}

// redeploy deploys a revision's code with other settings, and answers.
func (s *server) redeploy(c *call, ref reference, set *settings, r *engine.Revision) error {
	r, err := s.again(c, ref, set, r)
	if err != nil {
		return err
	}
	out, err := s.describe(c.tenant, ref.name, latest, r)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

// again is redeploy without the answer.
func (s *server) again(c *call, ref reference, set *settings, r *engine.Revision) (*engine.Revision, error) {
	dir, remove, err := s.scratch(c)
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := os.CopyFS(filepath.Join(dir, codeDir), os.DirFS(filepath.Join(s.Rootfs(r.Image), "function"))); err != nil {
		return nil, err
	}
	return s.build(c, ref, set, dir)
}

// changed prepares a change of a function that was created by this API: changed locks the
// function until the caller calls done, and returns the newest revision and its settings. If id
// is not "", the newest revision must have this id.
func (s *server) changed(c *call, id string) (ref reference, set *settings, r *engine.Revision, done func(), err error) {
	if ref, err = s.function(c); err != nil {
		return ref, nil, nil, nil, err
	}
	if ref.qualifier != "" && ref.qualifier != latest {
		return ref, nil, nil, nil, invalid("versions and aliases do not change: leave the qualifier away")
	}
	unlock, err := s.lock(c)
	if err != nil {
		return ref, nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	all, err := s.revisions(c, ref)
	if err != nil {
		return ref, nil, nil, nil, err
	}
	r = &all.Revisions[0].Revision
	if id != "" && id != revisionID(c.on, r) {
		return ref, nil, nil, nil, refuse(http.StatusPreconditionFailed, "PreconditionFailedException", "The Revision Id provided does not match the latest Revision Id. Call the GetFunction/GetAlias API to retrieve the latest Revision Id")
	}
	set, err = s.settings(ref, r)
	if err != nil {
		return ref, nil, nil, nil, err
	}
	return ref, set, r, unlock, nil
}

// settings returns the settings of a revision that this API deployed.
func (s *server) settings(ref reference, r *engine.Revision) (*settings, error) {
	img, err := s.Engine.Image(string(r.Image))
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigOf(img)
	if err != nil {
		return nil, err
	}
	set, ok := settingsOf(&config)
	if !ok {
		return nil, refuse(http.StatusConflict, "ResourceConflictException", "%s was deployed from a template: change the template, and use fre deploy", ref.name)
	}
	return &set, nil
}

// upload unpacks a request's code into a template directory. The caller calls remove to remove
// the directory. upload frees the memory of the code, so the next request can load its code
// while this request waits.
func (s *server) upload(c *call, set *settings, code *bundle) (dir string, remove func(), err error) {
	sum := sha256.Sum256(code.ZipFile)
	set.CodeSize, set.CodeSha256 = int64(len(code.ZipFile)), base64.StdEncoding.EncodeToString(sum[:])
	if dir, remove, err = s.scratch(c); err != nil {
		return "", nil, err
	}
	err = build.WritingTo(c.r.Context(), dir, func(ctx context.Context) error { return unzip(ctx, dir, code.ZipFile) })
	code.ZipFile = nil
	c.release()
	if err != nil {
		remove()
		return "", nil, err
	}
	return dir, remove, nil
}

// scratch creates a template directory. The caller calls remove to remove the directory.
func (s *server) scratch(c *call) (dir string, remove func(), err error) {
	if dir, err = s.Scratch(); err != nil {
		return "", nil, fmt.Errorf("make scratch directory: %w", err)
	}
	return dir, func() {
		if err := linux.RemoveAll(dir); err != nil {
			s.Log.WarnContext(context.WithoutCancel(c.r.Context()), "upload not removed", "path", dir, "error", err)
		}
	}, nil
}

// deploy builds and deploys the code in a template directory, and answers.
func (s *server) deploy(c *call, ref reference, set *settings, dir string, publish bool, status int) error {
	r, err := s.build(c, ref, set, dir)
	if err != nil {
		return err
	}
	version := latest
	if publish {
		if version, err = s.publish(c, r); err != nil {
			return err
		}
	}
	out, err := s.describe(c.tenant, ref.name, version, r)
	if err != nil {
		return err
	}
	return c.reply(status, out)
}

// unzip unpacks an untrusted archive into a function's code directory.
func unzip(ctx context.Context, dir string, zip []byte) error {
	file := filepath.Join(dir, "code.zip")
	if err := os.WriteFile(file, zip, 0o600); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Mkdir(filepath.Join(dir, codeDir), 0o755); err != nil {
		return err
	}
	to, err := os.OpenRoot(filepath.Join(dir, codeDir))
	if err != nil {
		return err
	}
	defer to.Close()
	magic := make([]byte, 2)
	if _, err := f.ReadAt(magic, 0); err != nil || string(magic) != "PK" { // AWS accepts only zip archives
		return invalid("Could not unzip uploaded file. Please check your file, then try to upload again.")
	}
	err = unpack.File(ctx, to, f, unpack.Limits{Bytes: maxUnzipped, Entries: maxFiles})
	switch {
	case errors.Is(err, unpack.ErrLimit):
		return invalid("Unzipped size must be smaller than %d bytes, of at most %d files: %v", maxUnzipped, maxFiles, err)
	case errors.Is(err, unpack.ErrArchive):
		return invalid("Could not unzip uploaded file: %v", err)
	}
	return err
}

// build builds an image of the settings and the code in path, and deploys the image. The new
// revision receives all events without a version. A disconnect of the client does not cancel the
// build; otherwise a base environment whose build outlasts the client's timeout would never be
// built.
func (s *server) build(c *call, ref reference, set *settings, path string) (*engine.Revision, error) {
	said, err := json.Marshal(set)
	if err != nil {
		return nil, err
	}
	written, err := set.template(ref.name, c.tenant)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(path, template.FileName), written, 0o600); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	ctx := context.WithoutCancel(c.r.Context())
	defer s.Engine.Hold()()
	o := image.BuildOptions{AsIs: true, Labels: map[string]string{label: string(said)}}
	t, err := s.Engine.Template(dir)
	if err != nil {
		return nil, codeError(err)
	}
	img, _, err := s.Engine.Build(image.WithOptions(ctx, o), dir, t, nil)
	if err != nil {
		return nil, codeError(err)
	}
	if _, err := s.Engine.Deploy(ctx, c.on, img, engine.DeployOptions{By: c.id.Who, Within: c.tenant}); err != nil {
		return nil, err
	}
	all, err := s.Engine.Revisions(c.on)
	if err != nil {
		return nil, err
	}
	return &all.Revisions[0].Revision, nil
}

// codeError rewrites a build's errors about the template as errors about the code.
func codeError(err error) error {
	if fault, ok := errors.AsType[*template.Error](err); ok { // omit the line, because the template is generated
		return invalid("the function cannot be built: %s", fault.Message)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return invalid("the function cannot be built: %v", err)
	}
	return err
}
