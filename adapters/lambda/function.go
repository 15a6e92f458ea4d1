package lambda

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// label is the image label that stores the AWS settings of a function which FRE has no place
// for: settings, as JSON. The label moves and disappears with the image.
const label = "fre.lambda"

// settings are a function's settings, as requested over Lambda's API.
type settings struct {
	Runtime     string            `json:"runtime"`
	Handler     string            `json:"handler"`
	Role        string            `json:"role,omitempty"`
	Description string            `json:"description,omitempty"`
	Timeout     int               `json:"timeout"`     // seconds
	MemorySize  int               `json:"memory_size"` // MiB
	Environment map[string]string `json:"environment,omitempty"`
	Concurrency int               `json:"concurrency,omitempty"` // 0: not reserved
	CodeSize    int64             `json:"code_size"`             // size of the zip
	CodeSha256  string            `json:"code_sha256"`           // hash of the zip, base64
}

// settingsOf returns the settings stored in an image; false for a function not created by this
// API.
func settingsOf(c *image.Config) (settings, bool) {
	var s settings
	text, ok := c.Labels[label]
	return s, ok && json.Unmarshal([]byte(text), &s) == nil
}

// shownOf returns the settings to show for any function.
func shownOf(c *image.Config, img *store.Image) settings {
	if s, ok := settingsOf(c); ok {
		return s
	}
	sum := sha256.Sum256([]byte(img.Digest))
	return settings{
		Runtime: c.Runtime, Handler: c.Handler, Timeout: int(max(1, c.Resources.Timeout/time.Second)), MemorySize: int(c.Resources.MemoryBytes >> 20),
		CodeSize: img.Size, CodeSha256: base64.StdEncoding.EncodeToString(sum[:]),
	}
}

// configuration is AWS's FunctionConfiguration.
type configuration struct {
	FunctionName     string
	FunctionArn      string
	Runtime          string `json:",omitempty"`
	Role             string
	Handler          string `json:",omitempty"`
	CodeSize         int64
	Description      string
	Timeout          int
	MemorySize       int
	LastModified     string
	CodeSha256       string
	Version          string
	Environment      *environment `json:",omitempty"`
	TracingConfig    map[string]string
	RevisionId       string //nolint:revive // AWS's name
	State            string
	LastUpdateStatus string
	PackageType      string
	Architectures    []string
	EphemeralStorage map[string]int64
}

type environment struct{ Variables map[string]string }

const latest = "$LATEST"

// describe returns the configuration of a revision. version is $LATEST or a version number.
func (s *server) describe(tenant, name, version string, r *engine.Revision) (*configuration, error) {
	img, err := s.Engine.Image(string(r.Image))
	if err != nil {
		return nil, fmt.Errorf("revision %d of %s: %w", r.Number, name, err)
	}
	c, err := image.ConfigOf(img)
	if err != nil {
		return nil, err
	}
	set := shownOf(&c, img)
	out := &configuration{
		FunctionName: name, FunctionArn: s.arn(tenant, name), Runtime: set.Runtime, Role: cmp.Or(set.Role, "arn:aws:iam::"+Account(tenant)+":role/fre"),
		Handler: set.Handler, CodeSize: set.CodeSize, Description: set.Description, Timeout: set.Timeout, MemorySize: set.MemorySize,
		LastModified: r.Deployed.UTC().Format("2006-01-02T15:04:05.000-0700"), CodeSha256: set.CodeSha256, Version: version,
		TracingConfig: map[string]string{"Mode": "PassThrough"}, RevisionId: revisionID(template.QualifiedName(name, tenant), r),
		State: "Active", LastUpdateStatus: "Successful", PackageType: "Zip", Architectures: []string{architecture},
		EphemeralStorage: map[string]int64{"Size": max(1, c.Resources.TmpBytes>>20)},
	}
	if version != latest {
		out.FunctionArn += ":" + version
	}
	if len(set.Environment) > 0 {
		out.Environment = &environment{set.Environment}
	}
	return out, nil
}

// revisionID returns an id that changes with each deployment.
func revisionID(function string, r *engine.Revision) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s", function, r.Number, r.Image))
	return uuid(sum[:16])
}

// revisions returns a function's revisions. Another tenant's function is not found.
func (s *server) revisions(c *call, ref reference) (*engine.Revisions, error) {
	r, err := s.Engine.Revisions(template.QualifiedName(ref.name, c.tenant))
	if err != nil {
		return nil, notFound("Function not found: %s", s.arn(c.tenant, ref.name))
	}
	return r, nil
}

// revision returns the revision named by the request, and its version: $LATEST by default.
func (s *server) revision(c *call) (reference, *engine.Revision, string, error) {
	ref, err := s.function(c)
	if err != nil {
		return ref, nil, "", err
	}
	all, err := s.revisions(c, ref)
	if err != nil {
		return ref, nil, "", err
	}
	r, version, ok := qualified(all, ref.qualifier)
	if !ok {
		return ref, nil, "", notFound("Function not found: %s:%s", s.arn(c.tenant, ref.name), ref.qualifier)
	}
	return ref, r, version, nil
}

func (s *server) getConfiguration(c *call) error {
	ref, r, version, err := s.revision(c)
	if err != nil {
		return err
	}
	out, err := s.describe(c.tenant, ref.name, version, r)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

func (s *server) getFunction(c *call) error {
	ref, r, version, err := s.revision(c)
	if err != nil {
		return err
	}
	out, err := s.describe(c.tenant, ref.name, version, r)
	if err != nil {
		return err
	}
	// Code has no Location: the image has the code, and a link would be readable without a
	// token.
	answer := map[string]any{"Configuration": out, "Code": map[string]string{"RepositoryType": "FRE"}, "Tags": map[string]string{}}
	if n := s.reserved(r); n > 0 {
		answer["Concurrency"] = map[string]int{"ReservedConcurrentExecutions": n}
	}
	return c.reply(http.StatusOK, answer)
}

// reserved returns the concurrency reserved for a revision.
func (s *server) reserved(r *engine.Revision) int {
	img, err := s.Engine.Image(string(r.Image))
	if err != nil {
		return 0
	}
	config, err := image.ConfigOf(img)
	if err != nil {
		return 0
	}
	set, _ := settingsOf(&config)
	return set.Concurrency
}

func (s *server) listFunctions(c *call) error {
	q := c.r.URL.Query()
	if v := q.Get("FunctionVersion"); v != "" {
		return invalid("FunctionVersion=%s is not supported: list a function's versions by ListVersionsByFunction", clip(v))
	}
	var names []string
	for _, f := range s.Engine.Functions() {
		if f.Config.Tenant == c.tenant {
			name, _, err := template.SplitName(f.Name)
			if err != nil {
				return err
			}
			names = append(names, name)
		}
	}
	page, next, err := paged(c, names, func(n string) string { return n }, 50)
	if err != nil {
		return err
	}
	out := []*configuration{}
	for _, name := range page {
		all, err := s.Engine.Revisions(template.QualifiedName(name, c.tenant))
		if err != nil {
			continue // removed meanwhile
		}
		one, err := s.describe(c.tenant, name, latest, &all.Revisions[0].Revision)
		if err != nil {
			return err
		}
		out = append(out, one)
	}
	return c.reply(http.StatusOK, struct {
		Functions  []*configuration
		NextMarker string `json:",omitempty"`
	}{out, next})
}

// paged sorts a list and returns the requested page: at most MaxItems elements after Marker.
func paged[T any](c *call, all []T, key func(T) string, most int) (page []T, next string, err error) {
	q := c.r.URL.Query()
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	if v := q.Get("MaxItems"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 10_000 {
			return nil, "", invalid("MaxItems is %q: write a number from 1 to 10000", clip(v))
		}
		most = min(most, n)
	}
	if v := q.Get("Marker"); v != "" {
		last, err := base64.RawURLEncoding.DecodeString(v)
		if err != nil {
			return nil, "", invalid("invalid Marker")
		}
		i, found := slices.BinarySearchFunc(all, string(last), func(v T, last string) int { return cmp.Compare(key(v), last) })
		if found {
			i++
		}
		all = all[i:]
	}
	if len(all) > most {
		all = all[:most]
		next = base64.RawURLEncoding.EncodeToString([]byte(key(all[most-1])))
	}
	return all, next, nil
}

func (s *server) deleteFunction(c *call) error {
	ref, err := s.function(c)
	if err != nil {
		return err
	}
	unlock, err := s.lock(c)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := s.revisions(c, ref)
	if err != nil {
		return err
	}
	if ref.qualifier == "" {
		if err := s.Engine.RemoveFunction(c.r.Context(), c.on); err != nil {
			return err
		}
	} else if err := s.unpublish(c, all, ref); err != nil {
		return err
	}
	c.send(http.StatusNoContent, nil)
	return nil
}

func (s *server) accountSettings(c *call) error {
	var size int64
	count := 0
	for _, f := range s.Engine.Functions() {
		if f.Config.Tenant == c.tenant {
			count++
			if img, err := s.Engine.Image(string(f.Image)); err == nil {
				size += shownOf(&f.Config, img).CodeSize
			}
		}
	}
	q := s.Guard.Access.Quotas(c.tenant)
	instances := cmp.Or(q.Instances, 1000)
	return c.reply(http.StatusOK, map[string]map[string]int64{
		"AccountLimit": {
			"TotalCodeSize": cmp.Or(q.ImageBytes, 75<<30), "CodeSizeUnzipped": maxUnzipped, "CodeSizeZipped": maxZip,
			"ConcurrentExecutions": instances, "UnreservedConcurrentExecutions": instances,
		},
		"AccountUsage": {"TotalCodeSize": size, "FunctionCount": int64(count)},
	})
}

// template returns the function's fret.yaml, as JSON, a subset of YAML.
func (set *settings) template(name, tenant string) ([]byte, error) {
	base, native, err := set.base()
	if err != nil {
		return nil, err
	}
	handler := set.Handler
	if native {
		handler = "./bootstrap" // as in provided.al2023: the program reads _HANDLER
	}
	t := map[string]any{
		"id": name, "version": "lambda-" + tenant, "base": base, "contract": "lambda", "handler": handler, "tenant": tenant,
		"code":      map[string]string{"path": codeDir},
		"resources": map[string]string{"memory": fmt.Sprintf("%dMiB", set.MemorySize), "timeout": fmt.Sprintf("%ds", set.Timeout)},
	}
	env := maps.Clone(set.Environment)
	if native {
		if env == nil {
			env = map[string]string{}
		}
		env["_HANDLER"] = set.Handler
	}
	if len(env) > 0 {
		t["env"] = env
	}
	if base == "java" {
		t["packages"] = map[string][]string{"maven": {javaClient}}
	}
	if set.Concurrency > 0 {
		t["instances"] = map[string]int{"max": set.Concurrency}
	}
	return json.Marshal(t)
}

// javaClient fetches events in functions without an own client, like the client in AWS's
// runtime.
const javaClient = "com.amazonaws:aws-lambda-java-runtime-interface-client:2.10.1"

// base returns FRE's base environment for an AWS runtime. The base determines the version of the
// language.
func (set *settings) base() (base string, native bool, err error) {
	for prefix, base := range map[string]string{"python3.": "python", "nodejs": "node", "java": "java", "provided": "native"} {
		if rest, ok := strings.CutPrefix(set.Runtime, prefix); ok && (base == "native" || rest != "") {
			return base, base == "native", nil
		}
	}
	return "", false, invalid("Runtime %q is not supported: python3.N, nodejsN.x, javaN, provided.al2023 and provided.al2 are", clip(set.Runtime))
}
