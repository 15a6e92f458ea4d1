package lambda

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// Versions and aliases are the engine's revisions and aliases:
//
//	version 4                   revision 4, kept by the alias version-4
//	alias prod → 4              the alias prod
//	alias prod → 4, 5: 0.25     likewise, and the alias weight-2500-prod of revision 5
//
// A change is therefore atomic, on disk before the change takes effect, and visible in fre
// function revisions. A version's number is the revision's number: the numbers grow, with gaps
// for unpublished revisions.
const (
	versionPrefix = "version-"
	weightPrefix  = "weight-"
	parts         = 10_000 // denominator of a weight
)

// qualified returns the revision for $LATEST, the number of a published version, or an alias,
// and the revision's version.
func qualified(all *engine.Revisions, qualifier string) (r *engine.Revision, version string, ok bool) {
	if qualifier == "" || qualifier == latest {
		return &all.Revisions[0].Revision, latest, true
	}
	alias := qualifier
	if n, err := strconv.Atoi(qualifier); err == nil {
		alias = versionPrefix + strconv.Itoa(n)
	}
	for i := range all.Revisions {
		if slices.Contains(all.Revisions[i].Aliases, alias) {
			return &all.Revisions[i].Revision, strconv.Itoa(all.Revisions[i].Number), true
		}
	}
	return nil, "", false
}

// publish publishes a revision as a version.
func (s *server) publish(c *call, r *engine.Revision) (version string, err error) {
	version = strconv.Itoa(r.Number)
	_, err = s.Engine.SetAliases(c.r.Context(), c.on, map[string]string{versionPrefix + version: version}, nil)
	return version, err
}

func (s *server) publishVersion(c *call) error {
	var req struct {
		CodeSha256, RevisionId string //nolint:revive // AWS's names
		Description            *string
		FunctionName           string // in the path
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	ref, r, _, err := s.revision(c)
	if err != nil {
		return err
	}
	unlock, err := s.lock(c)
	if err != nil {
		return err
	}
	defer unlock()
	out, err := s.describe(c.tenant, ref.name, latest, r)
	if err != nil {
		return err
	}
	if req.CodeSha256 != "" && req.CodeSha256 != out.CodeSha256 {
		return invalid("CodeSHA256 (%s) is different from current CodeSHA256 in $LATEST (%s). Please try again with the CodeSHA256 in $LATEST.", clip(req.CodeSha256), out.CodeSha256)
	}
	if req.RevisionId != "" && req.RevisionId != out.RevisionId {
		return refuse(http.StatusPreconditionFailed, "PreconditionFailedException", "The Revision Id provided does not match the latest Revision Id.")
	}
	version, err := s.publish(c, r)
	if err != nil {
		return err
	}
	out.Version, out.FunctionArn = version, out.FunctionArn+":"+version
	return c.reply(http.StatusCreated, out)
}

// unpublish removes a version.
func (s *server) unpublish(c *call, all *engine.Revisions, ref reference) error {
	if _, err := strconv.Atoi(ref.qualifier); err != nil {
		return invalid("%s cannot be deleted: name a version, or leave the qualifier away", ref.qualifier)
	}
	r, version, ok := qualified(all, ref.qualifier)
	if !ok {
		return notFound("Function not found: %s:%s", s.arn(c.tenant, ref.name), ref.qualifier)
	}
	for _, a := range aliasesOf(all) {
		if a.version == r.Number || a.other == r.Number {
			return refuse(http.StatusConflict, "ResourceConflictException", "version %s is in use by the alias %s: change or delete the alias first", version, a.name)
		}
	}
	if _, err := s.Engine.SetAliases(c.r.Context(), c.on, nil, []string{versionPrefix + version}); err != nil {
		return err
	}
	err := s.Engine.RemoveRevision(c.r.Context(), c.on, version)
	if errors.Is(err, engine.ErrRevisionUsed) { // the revision is also $LATEST
		return nil
	}
	return err
}

func (s *server) listVersions(c *call) error {
	ref, err := s.function(c)
	if err != nil {
		return err
	}
	all, err := s.revisions(c, ref)
	if err != nil {
		return err
	}
	rows := []int{0} // stands for $LATEST
	for _, r := range slices.Backward(all.Revisions) {
		if slices.Contains(r.Aliases, versionPrefix+strconv.Itoa(r.Number)) {
			rows = append(rows, r.Number)
		}
	}
	page, next, err := paged(c, rows, func(n int) string { return fmt.Sprintf("%012d", n) }, 50)
	if err != nil {
		return err
	}
	out := []*configuration{}
	for _, n := range page {
		qualifier := latest
		if n > 0 {
			qualifier = strconv.Itoa(n)
		}
		r, version, _ := qualified(all, qualifier)
		one, err := s.describe(c.tenant, ref.name, version, r)
		if err != nil {
			return err
		}
		out = append(out, one)
	}
	return c.reply(http.StatusOK, struct {
		Versions   []*configuration
		NextMarker string `json:",omitempty"`
	}{out, next})
}

// alias is an alias of AWS.
type alias struct {
	name    string
	version int
	other   int // 0: no second version
	weight  int // weight of other, in units of 1/parts
}

// aliasesOf returns the aliases made by clients.
func aliasesOf(all *engine.Revisions) []*alias {
	found := map[string]*alias{}
	for _, r := range all.Revisions {
		for _, name := range r.Aliases {
			if !strings.HasPrefix(name, versionPrefix) && !strings.HasPrefix(name, weightPrefix) {
				found[name] = &alias{name: name, version: r.Number}
			}
		}
	}
	for _, r := range all.Revisions {
		for _, name := range r.Aliases {
			rest, ok := strings.CutPrefix(name, weightPrefix)
			weight, of, _ := strings.Cut(rest, "-")
			if a := found[of]; ok && a != nil {
				a.other = r.Number
				a.weight, _ = strconv.Atoi(weight)
			}
		}
	}
	out := make([]*alias, 0, len(found))
	for _, a := range found {
		out = append(out, a)
	}
	return out
}

func findAlias(all *engine.Revisions, name string) *alias {
	for _, a := range aliasesOf(all) {
		if a.name == name {
			return a
		}
	}
	return nil
}

// kept returns the engine's alias for the second version.
func (a *alias) kept() string { return fmt.Sprintf("%s%04d-%s", weightPrefix, a.weight, a.name) }

// pick chooses the version for an event at random, by weight.
func (a *alias) pick() int {
	if a.other != 0 && rand.IntN(parts) < a.weight {
		return a.other
	}
	return a.version
}

// aliasConfiguration is AWS's AliasConfiguration.
type aliasConfiguration struct {
	AliasArn        string
	Name            string
	FunctionVersion string
	Description     string
	RoutingConfig   *routing `json:",omitempty"`
	RevisionId      string   //nolint:revive // AWS's name
}

type routing struct{ AdditionalVersionWeights map[string]float64 }

func (s *server) describeAlias(c *call, ref reference, a *alias) *aliasConfiguration {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%+v", c.on, *a))
	out := &aliasConfiguration{
		AliasArn: s.arn(c.tenant, ref.name) + ":" + a.name, Name: a.name, FunctionVersion: s.numbered(a.version), RevisionId: uuid(sum[:16]),
	}
	if a.other != 0 {
		out.RoutingConfig = &routing{map[string]float64{s.numbered(a.other): float64(a.weight) / parts}}
	}
	return out
}

func (s *server) numbered(n int) string { return strconv.Itoa(n) }

// aliasChange is the request of CreateAlias and UpdateAlias.
type aliasChange struct {
	Name            string
	FunctionVersion string
	Description     *string // ignored
	RoutingConfig   *routing
	RevisionId      string //nolint:revive // AWS's name
	FunctionName    string // from the path
}

// numberOf returns the number of a version's revision.
func numberOf(all *engine.Revisions, v, arn string) (int, error) {
	if v == latest {
		return 0, invalid("an alias of $LATEST is not supported: publish a version")
	}
	r, _, ok := qualified(all, v)
	if _, err := strconv.Atoi(v); err != nil || !ok {
		return 0, notFound("Function not found: %s:%s", arn, clip(v))
	}
	return r.Number, nil
}

// apply applies a change. version returns the number of a version's revision.
func (a *alias) apply(req *aliasChange, version func(string) (int, error)) (err error) {
	if req.FunctionVersion != "" {
		if a.version, err = version(req.FunctionVersion); err != nil {
			return err
		}
	}
	if req.RoutingConfig != nil {
		if err := a.route(req.RoutingConfig.AdditionalVersionWeights, version); err != nil {
			return err
		}
	}
	if a.version == 0 || a.other == a.version {
		return invalid("an alias needs a FunctionVersion, and a different version in RoutingConfig")
	}
	return nil
}

// route sets the additional version and its weight.
func (a *alias) route(weights map[string]float64, version func(string) (int, error)) (err error) {
	a.other, a.weight = 0, 0
	if len(weights) > 1 {
		return invalid("RoutingConfig has %d additional versions: at most 1", len(weights))
	}
	for v, w := range weights {
		if a.other, err = version(v); err != nil {
			return err
		}
		if a.weight = int(math.Round(w * parts)); !(w >= 0 && w < 1) || a.weight == parts {
			return invalid("the weight of version %s is %v: from 0 to less than 1", clip(v), w)
		}
	}
	return nil
}

// put creates or updates an alias, and answers. was is the current alias, or nil.
func (s *server) put(c *call, ref reference, all *engine.Revisions, was *alias, req *aliasChange, name string, status int) error {
	a := &alias{name: name}
	if was != nil {
		*a = *was
	}
	version := func(v string) (int, error) { return numberOf(all, v, s.arn(c.tenant, ref.name)) }
	if err := a.apply(req, version); err != nil {
		return err
	}
	set := map[string]string{a.name: strconv.Itoa(a.version)}
	if a.other != 0 {
		set[a.kept()] = strconv.Itoa(a.other)
	}
	var remove []string
	if was != nil && was.other != 0 {
		if _, stays := set[was.kept()]; !stays {
			remove = append(remove, was.kept())
		}
	}
	if _, err := s.Engine.SetAliases(c.r.Context(), c.on, set, remove); err != nil {
		return err
	}
	return c.reply(status, s.describeAlias(c, ref, a))
}

func (s *server) createAlias(c *call) error {
	var req aliasChange
	if err := c.decode(&req); err != nil {
		return err
	}
	ref, err := s.function(c)
	if err != nil {
		return err
	}
	if !template.ValidName(req.Name) || strings.HasPrefix(req.Name, versionPrefix) || strings.HasPrefix(req.Name, weightPrefix) || len(weightPrefix)+5+len(req.Name) > 63 {
		return invalid("alias %q: lower-case letters, digits and dashes, at most 51, not beginning with %s or %s", clip(req.Name), versionPrefix, weightPrefix)
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
	if findAlias(all, req.Name) != nil {
		return refuse(http.StatusConflict, "ResourceConflictException", "Alias already exists: %s:%s", s.arn(c.tenant, ref.name), req.Name)
	}
	return s.put(c, ref, all, nil, &req, req.Name, http.StatusCreated)
}

// alias returns the alias named by the request.
func (s *server) alias(c *call) (reference, *engine.Revisions, *alias, error) {
	ref, err := s.function(c)
	if err != nil {
		return ref, nil, nil, err
	}
	all, err := s.revisions(c, ref)
	if err != nil {
		return ref, nil, nil, err
	}
	name := c.r.PathValue("alias")
	a := findAlias(all, name)
	if a == nil {
		return ref, nil, nil, notFound("Cannot find alias arn: %s:%s", s.arn(c.tenant, ref.name), clip(name))
	}
	return ref, all, a, nil
}

func (s *server) getAlias(c *call) error {
	ref, _, a, err := s.alias(c)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, s.describeAlias(c, ref, a))
}

func (s *server) updateAlias(c *call) error {
	var req aliasChange
	if err := c.decode(&req); err != nil {
		return err
	}
	if _, err := s.function(c); err != nil {
		return err
	}
	unlock, err := s.lock(c)
	if err != nil {
		return err
	}
	defer unlock()
	ref, all, a, err := s.alias(c)
	if err != nil {
		return err
	}
	if req.RevisionId != "" && req.RevisionId != s.describeAlias(c, ref, a).RevisionId {
		return refuse(http.StatusPreconditionFailed, "PreconditionFailedException", "The Revision Id provided does not match the latest Revision Id.")
	}
	return s.put(c, ref, all, a, &req, a.name, http.StatusOK)
}

func (s *server) deleteAlias(c *call) error {
	if _, err := s.function(c); err != nil {
		return err
	}
	unlock, err := s.lock(c)
	if err != nil {
		return err
	}
	defer unlock()
	_, _, a, err := s.alias(c)
	if f, ok := errors.AsType[*awsError](err); ok && f.status == http.StatusNotFound { // as in AWS, deleting a missing alias succeeds
		if _, err := s.Engine.Function(c.on); err == nil {
			c.send(http.StatusNoContent, nil)
			return nil
		}
	}
	if err != nil {
		return err
	}
	remove := []string{a.name}
	if a.other != 0 {
		remove = append(remove, a.kept())
	}
	if _, err := s.Engine.SetAliases(c.r.Context(), c.on, nil, remove); err != nil {
		return err
	}
	c.send(http.StatusNoContent, nil)
	return nil
}

func (s *server) listAliases(c *call) error {
	ref, err := s.function(c)
	if err != nil {
		return err
	}
	all, err := s.revisions(c, ref)
	if err != nil {
		return err
	}
	list := aliasesOf(all)
	if v := c.r.URL.Query().Get("FunctionVersion"); v != "" {
		list = slices.DeleteFunc(list, func(a *alias) bool { return strconv.Itoa(a.version) != v })
	}
	page, next, err := paged(c, list, func(a *alias) string { return a.name }, 50)
	if err != nil {
		return err
	}
	out := []*aliasConfiguration{}
	for _, a := range page {
		out = append(out, s.describeAlias(c, ref, a))
	}
	return c.reply(http.StatusOK, struct {
		Aliases    []*aliasConfiguration
		NextMarker string `json:",omitempty"`
	}{out, next})
}

// --- Concurrency: instances.max of the newest revision ---

func (s *server) putConcurrency(c *call) error {
	var req struct {
		ReservedConcurrentExecutions *int
		FunctionName                 string // from the path
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	if n := req.ReservedConcurrentExecutions; n == nil || *n < 1 || *n > 1000 {
		return invalid("ReservedConcurrentExecutions: from 1 to 1000; to stop all events, delete the function")
	}
	if err := s.reserve(c, *req.ReservedConcurrentExecutions); err != nil {
		return err
	}
	return c.reply(http.StatusOK, req)
}

func (s *server) deleteConcurrency(c *call) error {
	if err := s.reserve(c, 0); err != nil {
		return err
	}
	c.send(http.StatusNoContent, nil)
	return nil
}

func (s *server) reserve(c *call, n int) error {
	ref, set, r, done, err := s.changed(c, "")
	if err != nil {
		return err
	}
	defer done()
	if set.Concurrency == n {
		return nil
	}
	set.Concurrency = n
	_, err = s.again(c, ref, set, r)
	return err
}

func (s *server) getConcurrency(c *call) error {
	_, r, _, err := s.revision(c)
	if err != nil {
		return err
	}
	out := map[string]int{}
	if n := s.reserved(r); n > 0 {
		out["ReservedConcurrentExecutions"] = n
	}
	return c.reply(http.StatusOK, out)
}
