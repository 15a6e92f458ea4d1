package template

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/goccy/go-yaml/ast"

	"github.com/fre-engine/fre/internal/glob"
)

// Patterns of api/template.schema.json; a test compares them.
var (
	namePattern    = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)
	versionPattern = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$`)
	pathPattern    = lazyregexp.New(`^[^/\x00-\x1f][^\x00-\x1f]*$`)
	handlerPattern = lazyregexp.New(`^[^\x00-\x1f]{1,255}$`)
	readyPattern   = lazyregexp.New(`^/[!-~]{0,254}$`)
	envPattern     = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	pipPattern     = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? *(\[[A-Za-z0-9._, -]*\])? *([<>=!~(;][^\x00-\x1f@]*)?$`)
	runPattern     = lazyregexp.New(`^[^\x00]{1,1000}$`)
	namePackage    = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]{1,127}$`) // of Debian
	mavenPattern   = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*:[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_\[(][A-Za-z0-9_.+,()\[\]-]*(@bom|:[A-Za-z0-9_][A-Za-z0-9_.-]*)?|::[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	refPattern     = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,254}$`) // as in git-check-ref-format(1), without unused characters
	urlPattern     = lazyregexp.New("^((https?|ssh)://([A-Za-z0-9_.~-]+@)?[A-Za-z0-9_.~:\\[\\]-]+/|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:)[^\\x00-\\x20\"'\\\\`$]{1,1000}$")
	debPattern     = lazyregexp.New(`^[a-z0-9][a-z0-9.+-]{1,254}(=[A-Za-z0-9*?\[][A-Za-z0-9.+:~*?\[\]-]{0,254})?$`)
	libPattern     = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*\.so(\.[A-Za-z0-9_.+-]+)?$`)
	npmPattern     = lazyregexp.New(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\x00-\x1f@/:]+)?$`)
)

// packageName matches a package of pip.
var packageName = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// npmName matches a package of npm_scripts, without a version.
var npmName = lazyregexp.New(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*$`)

const npmNameWanted = `write a package's name only, for example "bcrypt"`

// composerPattern matches a package in the syntax of composer require.
var composerPattern = lazyregexp.New(`^[a-z0-9]([_.-]?[a-z0-9]+)*/[a-z0-9](([_.]|-{1,2})?[a-z0-9]+)*(:[^\x00-\x1f]+)?$`)

// gemPattern matches a gem in the syntax of gem install, with any number of versions.
var gemPattern = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(: *(=|!=|>=|<=|>|<|~>)? *[0-9][0-9A-Za-z.-]*(, *(=|!=|>=|<=|>|<|~>)? *[0-9][0-9A-Za-z.-]*)*)?$`)

// Ranges of numbers, in the units of [Resources].
const (
	minMemory, maxMemory   = int64(4 << 20), int64(1 << 42)
	minTmp, maxTmp         = int64(64 << 10), int64(1 << 42)
	minCPU, maxCPU         = int64(10), int64(1024_000)
	minTimeout, maxTimeout = time.Millisecond, 24 * time.Hour
	maxIdle                = 24 * time.Hour
	minFiles, maxFiles     = int64(16), int64(1 << 20)
	maxPids                = int64(1 << 20)
	runtimeThreads         = 8 // threads that a runtime needs beside the threads that handle events
	maxConcurrency         = 1024
	maxInstances           = 1 << 16
	MaxEnvBytes            = 128 << 10 // of all names and values; the kernel allows MAX_ARG_STRLEN for one
)

// fields is the only table of a template's keys. The parser, the suggestions, and the comparison
// with the published schema use it.
func (d *decoder) fields(t *Template) []field {
	in, res := &t.Instances, &t.Resources
	repository := &GitCode{}
	git := []field{
		{key: "url", required: true, value: d.gitURL(&repository.URL)},
		{key: "ref", value: d.text(&repository.Ref, refPattern, "a branch, a tag or a whole commit id")},
		{key: "auth", value: d.text(&repository.Auth, namePattern, "the name of a credential in the engine's configuration")},
		{key: "submodules", value: d.boolean(&repository.Submodules)},
	}
	step := &BuildStep{Output: "."}
	build := []field{
		{key: "run", required: true, value: d.text(&step.Run, runPattern, "a command of the shell")},
		{key: "packages", below: []field{
			{key: "pip", value: d.strings(&step.Packages.Pip.List, requirement(pipPattern, `write a requirement such as "cython==3.0.11"`))},
			{key: "npm", value: d.strings(&step.Packages.NPM.List, requirement(npmPattern, `write a package such as "typescript@5.6.3"`))},
			{key: "deb", value: d.strings(&step.Packages.Deb.List, requirement(namePackage, `write a Debian package such as "make"`))},
			{key: "npm_scripts", value: d.strings(&step.Packages.NPMScripts, requirement(npmName, npmNameWanted))},
		}},
		{key: "output", value: d.codePath(&step.Output)},
	}
	network := []field{
		{key: "mode", required: true, value: d.networkMode(&t.Network.Mode)},
		{key: "allow", value: d.destinations(&t.Network.Allow)},
		{key: "lend_connection", value: d.boolean(&t.Network.LendConnection)},
	}
	cors := &CORS{}
	return []field{
		{key: "id", required: true, value: d.text(&t.ID, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash")},
		{key: "version", value: d.text(&t.Version, versionPattern, "letters, digits and . _ + -, at most 128")},
		{key: "pipeline", value: d.pipeline(&t.Pipeline)},
		{key: "base", value: d.base(&t.Base)},
		{key: "runtime", value: d.text(&t.Runtime, namePattern, `the name of a runtime such as "python"`)},
		{key: "contract", value: d.contract(&t.Contract)},
		{key: "packages", below: []field{
			{key: "pip", value: d.requests(&t.Packages.Pip, requirement(pipPattern, `write a requirement such as "lxml==5.3.0"; options, URLs and paths are not supported yet`))},
			{key: "npm", value: d.requests(&t.Packages.NPM, requirement(npmPattern, `write a package such as "left-pad@1.3.0"; URLs, paths and aliases are not supported yet`))},
			{key: "maven", value: d.requests(&t.Packages.Maven, requirement(mavenPattern, `write "group:artifact:version" or "group:artifact:version:classifier", or "group:artifact" with a "group:artifact:version@bom" that says the version`))},
			{key: "deb", value: d.strings(&t.Packages.Deb.List, requirement(debPattern, `write a Debian package such as "curl" or "ghostscript=10.*"`))},
			{key: "composer", value: d.requests(&t.Packages.Composer, requirement(composerPattern, `write a package such as "monolog/monolog:^3"; platform packages and repositories belong into a composer.json`))},
			{key: "gem", value: d.requests(&t.Packages.Gem, requirement(gemPattern, `write a gem such as "sinatra" or "rack:>= 2, < 4"; git and paths are not supported`))},
			{key: "npm_scripts", value: d.strings(&t.Packages.NPMScripts, requirement(npmName, npmNameWanted))},
			{key: "pip_index", value: d.pipIndex(&t.Packages.PipIndex)},
		}},
		{key: "slim", value: d.slim(&t.Slim)},
		{key: "keep", value: d.strings(&t.Keep, keepGlob)},
		{key: "libs", value: d.strings(&t.Libs, requirement(libPattern, `write a library's soname, for example "libxml2.so.2"`))},
		{key: "code", below: []field{
			{key: "path", value: d.codePath(&t.Code.Path)},
			{key: "archive", value: d.codePath(&t.Code.Archive)},
			{key: "git", value: d.git(t, repository, git), below: git},
			{key: "build", value: d.buildStep(t, step, build), below: build},
		}},
		{key: "handler", value: d.text(&t.Handler, handlerPattern, `a name such as "main.handle", or a path for native`)},
		{key: "http", below: []field{
			{key: "listen", value: d.listen(&t.HTTP.Listen)},
			{key: "port", value: integer(d, &t.HTTP.Port, 1, 65535)},
			{key: "ready", value: d.text(&t.HTTP.Ready, readyPattern, "the path of a request, such as /health")},
		}},
		{key: "lambda", below: []field{{key: "event", value: d.lambdaEvent(&t.Lambda.Event)}}},
		{key: "env", value: d.env(&t.Env)},
		{key: "tenant", value: d.text(&t.Tenant, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash")},
		{key: "instances", below: []field{
			{key: "isolation", value: d.isolation(&in.Isolation)},
			{key: "fork", value: d.fork(&in.Fork)},
			{key: "concurrency", value: integer(d, &in.Concurrency, 1, maxConcurrency)},
			{key: "min", value: integer(d, &in.Min, 0, maxInstances)},
			{key: "max", value: integer(d, &in.Max, 1, maxInstances)},
			{key: "idle", value: measure(d, &in.Idle, parseDuration, time.Duration.String, 0, maxIdle)},
		}},
		{key: "resources", below: []field{
			{key: "memory", value: measure(d, &res.MemoryBytes, ParseBytes, FormatBytes, minMemory, maxMemory)},
			{key: "cpu", value: measure(d, &res.CPUMillis, parseCPU, formatCPU, minCPU, maxCPU)},
			{key: "pids", value: integer(d, &res.Pids, 1, maxPids)},
			{key: "tmp", value: measure(d, &res.TmpBytes, ParseBytes, FormatBytes, minTmp, maxTmp)},
			{key: "files", value: integer(d, &res.Files, minFiles, maxFiles)},
			{key: "timeout", value: measure(d, &res.Timeout, parseDuration, time.Duration.String, minTimeout, maxTimeout)},
		}},
		{key: "network", value: d.network(&t.Network, network), below: network},
		{key: "secrets", value: d.strings(&t.Secrets, secretNamed)},
		{key: "access", value: d.access(&t.Access)},
		{key: "cors", value: d.cors(t, cors), below: d.corsFields(cors)},
		{key: "events", below: d.eventFields(&t.Events)},
		{key: "triggers", value: d.triggers(&t.Triggers), below: d.triggerFields(&Trigger{})},
	}
}

func (t *Template) setDefaults() {
	t.Events = DefaultEvents()
	t.Version, t.Tenant, t.Network.Mode, t.Code.Path = "latest", DefaultTenant, NetworkNone, "."
	t.Instances = Instances{Fork: ForkAuto, Concurrency: 1, Max: 64, Idle: 5 * time.Minute}
	t.Resources = Resources{
		MemoryBytes: 128 << 20, CPUMillis: 1000, // Pids: see setDependentDefaults
		TmpBytes: 64 << 20, Files: 1024, Timeout: 30 * time.Second,
	}
}

// defaultHandlers has the default handler by runtime. Templates for other runtimes name a handler.
var defaultHandlers = map[string]string{
	"go": "Handle", "java": "Handler.handle", "node": "index.handle", "php": "index.handle", "python": "main.handle", "ruby": "main.handle",
}

// setDependentDefaults sets defaults that depend on other fields.
func (t *Template) setDependentDefaults() {
	if t.Resources.Pids == 0 {
		// A runtime has up to a thread for each event, and some of its own.
		t.Resources.Pids = max(64, 2*int64(t.Instances.Concurrency))
	}
	if len(t.Pipeline) > 0 {
		t.Instances.Isolation = IsolationInstance
		return
	}
	t.setContract()
	if t.Runtime == "http" {
		t.HTTP.Listen, t.HTTP.Port = cmp.Or(t.HTTP.Listen, ListenPort), cmp.Or(t.HTTP.Port, 8080)
	}
}

// relations checks fields against each other.
func (d *decoder) relations(t *Template) {
	fail := func(path, format string, args ...any) {
		d.errs = append(d.errs, d.errorAt(d.place(path), fmt.Sprintf(format, args...)))
	}
	if len(t.Pipeline) > 0 {
		d.pipelineRelations(t, fail)
		d.accessRelations(t, fail)
		return
	}
	in := t.Instances
	if in.Max < in.Min {
		fail("instances.max", "instances.max (%d) is less than instances.min (%d)", in.Max, in.Min)
	}
	if in.Isolation == IsolationEvent && in.Concurrency > 1 {
		fail("instances.concurrency", `instances.concurrency must be 1 with isolation "event": every event has a separate sandbox`)
	}
	// A process with too few threads for its events fails at an unpredictable moment. A program for
	// a single event needs only the number that it declares.
	if least := int64(in.Concurrency) + runtimeThreads; t.Resources.Pids < least && in.Isolation == IsolationInstance {
		fail("resources.pids", "resources.pids must be at least %d: an instance needs a thread for each of its events (instances.concurrency is %d) and %d for its runtime", least, in.Concurrency, runtimeThreads)
	}
	if _, ok := d.at["http"]; ok && t.Runtime != "http" {
		fail("http", "http is for the runtime http, but the template's runtime is %s", t.Runtime)
	}
	if t.Runtime == "http" && t.Handler == "" {
		fail("", `missing key "handler" in template: the runtime http needs the server's command line, such as "node server.js"`)
	}
	if t.Runtime == "native" && t.Handler == "" {
		fail("", `missing key "handler" in template: the runtime native needs the path of the program, such as "bin/clock"`)
	}
	if _, ok := d.at["code.git"]; ok && t.Code.Archive != "" {
		fail("code.git", "code.archive and code.git exclude each other: remove either")
	}
	if len(t.Packages.NPMScripts) > 0 && t.Packages.NPM.None() {
		fail("packages.npm_scripts", "packages.npm_scripts names packages, but packages.npm is empty")
	}
	if step := t.Code.Build; step != nil && len(step.Packages.NPMScripts) > 0 && step.Packages.NPM.None() {
		fail("code.build.packages.npm_scripts", "code.build.packages.npm_scripts names packages, but code.build.packages.npm is empty")
	}
	if len(t.Packages.PipIndex) > 0 && t.Packages.Pip.None() {
		fail("packages.pip_index", "packages.pip_index names packages, but packages.pip is empty")
	}
	if len(t.Network.Allow) > 0 && t.Network.Mode != NetworkEgress {
		fail("network.allow", "network.allow is for the mode egress, but the network's mode is %s", t.Network.Mode)
	}
	if t.Network.LendConnection && (t.Contract != ContractFRE || t.Runtime != "go" && t.Runtime != "native") {
		fail("network.lend_connection", `network.lend_connection is for the runtime go, and for native with instances.isolation "instance", but the template's runtime is %s`, t.Runtime)
	}
	d.accessRelations(t, fail)
	d.contractRelations(t, fail)
	size := 0
	for name, value := range t.Env {
		size += len(name) + len(value) + 2
	}
	if size > MaxEnvBytes {
		fail("env", "env takes %d bytes: the limit is %s", size, FormatBytes(MaxEnvBytes))
	}
}

// Fault adds the position in the template to a [FieldError] in err; other errors pass unchanged.
func (t *Template) Fault(err error) error {
	var field *FieldError
	if err == nil || t.source == nil || !errors.As(err, &field) {
		return err
	}
	p := t.source.place(field.Field)
	if p == t.source.at[""] {
		p = position{} // the template does not set the field, so no line is at fault
	}
	return Errors{t.source.errorAt(p, field.Message)}
}

// keepGlob accepts a path glob below the root.
func keepGlob(s string) error {
	if len(s) > 512 || !pathPattern.MatchString(s) || strings.HasPrefix(s, "./") {
		return fmt.Errorf("bad pattern %q: write a path such as usr/share/locale/de, without a slash before it; * and ? stand for part of a name, ** for any number of directories", s)
	}
	if _, err := glob.Parse(s); err != nil {
		return fmt.Errorf("bad pattern %q: pattern %w", s, err)
	}
	return nil
}

func requirement(pattern *lazyregexp.Regexp, want string) func(string) error {
	return func(s string) error {
		if len(s) > 512 || !pattern.MatchString(s) {
			return fmt.Errorf("bad requirement %q: %s", s, want)
		}
		return nil
	}
}

// base reads a base in the syntax of [ParseBase].
func (d *decoder) base(dst *string) func(ast.Node, string) {
	return func(n ast.Node, at string) {
		s, ok := d.str(n, at)
		if !ok {
			return
		}
		ref, err := ParseBase(s)
		if err != nil {
			d.errorf(n, "%s", err)
			return
		}
		*dst = ref.String()
	}
}

func (d *decoder) codePath(dst *string) func(ast.Node, string) {
	return func(n ast.Node, at string) {
		var s string
		d.text(&s, pathPattern, "a relative path below the template's directory")(n, at)
		if s == "" {
			return
		}
		if s = path.Clean(s); s == ".." || strings.HasPrefix(s, "../") {
			d.errorf(n, "%s %q leaves the template's directory", at, s)
			return
		}
		*dst = s
	}
}

// git reads repository by the fields below.
func (d *decoder) git(t *Template, repository *GitCode, below []field) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		t.Code.Git = repository
		d.field(n, path, field{below: below})
	}
}

// buildStep reads step by the fields below.
func (d *decoder) buildStep(t *Template, step *BuildStep, below []field) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		t.Code.Build = step
		d.field(n, path, field{below: below})
	}
}

func (d *decoder) gitURL(dst *string) func(ast.Node, string) {
	return func(n ast.Node, at string) {
		var s string
		d.text(&s, urlPattern, "write https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH")(n, at)
		if u, err := url.Parse(s); err == nil && u.User != nil && u.Scheme != "ssh" {
			// Do not repeat the user: it may be a password.
			d.errorf(n, "%s contains a user: put credentials into the engine's configuration (packages.git), and name the credential in code.git.auth", at)
			return
		}
		*dst = s
	}
}

func (d *decoder) boolean(dst *bool) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.errorf(n, "%s must be true or false, not %s", path, describe(n))
			return
		}
		*dst = b.Value
	}
}

func (d *decoder) slim(dst *Slim) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		var slim bool
		if d.boolean(&slim)(n, path); slim {
			*dst = SlimTrue
		} else {
			*dst = SlimFalse
		}
	}
}

func (d *decoder) env(dst *map[string]string) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		m, ok := n.(ast.MapNode)
		if !ok {
			d.errorf(n, "%s must be a mapping of names to values, not %s", path, describe(n))
			return
		}
		*dst = map[string]string{}
		for it := m.MapRange(); it.Next(); {
			key, v := keyText(it.Key()), it.Value()
			d.at[join(path, key)] = nodePosition(v)
			switch _, dup := (*dst)[key]; {
			case dup:
				d.errorf(it.Key(), "duplicate key %q in env", key)
				continue
			case !envPattern.MatchString(key):
				d.errorf(it.Key(), "bad name %q in env: letters, digits and _, not beginning with a digit", key)
				continue
			case strings.HasPrefix(key, "FRE_"):
				d.errorf(it.Key(), "name %q in env is reserved: names beginning with FRE_ are the engine's", key)
				continue
			}
			switch v := v.(type) {
			case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
				(*dst)[key] = v.GetToken().Value
			default:
				s, ok := d.str(v, join(path, key))
				if ok && strings.ContainsRune(s, 0) {
					d.errorf(v, "%s holds a NUL character", join(path, key))
					ok = false
				}
				if ok {
					(*dst)[key] = s
				}
			}
		}
	}
}

// pipIndex reads packages.pip_index, a mapping of packages to names of indexes.
func (d *decoder) pipIndex(dst *map[string]string) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		m, ok := n.(ast.MapNode)
		if !ok {
			d.errorf(n, "%s must be a mapping of packages to the names of indexes, such as torch: pytorch-cpu, not %s", path, describe(n))
			return
		}
		*dst = map[string]string{}
		for it := m.MapRange(); it.Next(); {
			key := keyText(it.Key())
			if !packageName.MatchString(key) {
				d.errorf(it.Key(), "bad package %q in %s: write the package's name only, for example torch", key, path)
				continue
			}
			name := NormalName(key)
			if _, dup := (*dst)[name]; dup {
				d.errorf(it.Key(), "%s names the package %s twice", path, name)
				continue
			}
			d.at[join(path, name)] = nodePosition(it.Value())
			var index string
			d.text(&index, namePattern, "the name of an index in the engine's configuration (packages.pip.indexes)")(it.Value(), join(path, key))
			(*dst)[name] = index
		}
	}
}

func (d *decoder) isolation(dst *Isolation) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		switch i := Isolation(s); i {
		case IsolationEvent, IsolationInstance:
			*dst = i
		default:
			d.errorf(n, `%s must be "event" or "instance", not %q`, path, s)
		}
	}
}

func (d *decoder) listen(dst *Listen) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		switch l := Listen(s); l {
		case ListenPort, ListenFD:
			*dst = l
		default:
			d.errorf(n, `%s must be "port" or "fd", not %q`, path, s)
		}
	}
}

func (d *decoder) fork(dst *Fork) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		switch f := Fork(s); f {
		case ForkAuto, ForkNever:
			*dst = f
		default:
			d.errorf(n, `%s must be "auto" or "never", not %q`, path, s)
		}
	}
}

func formatCPU(millis int64) string { return fmt.Sprintf("%dm", millis) }

var nameRuns = lazyregexp.New(`[-_.]+`)

// NormalName returns a Python package's name as PEP 503 compares names.
func NormalName(s string) string { return nameRuns.ReplaceAllString(strings.ToLower(s), "-") }
