package image

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// The patterns of api/template.schema.json; a test compares them.
var (
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	versionPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$`)
	pathPattern    = regexp.MustCompile(`^[^/\x00-\x1f][^\x00-\x1f]*$`)
	handlerPattern = regexp.MustCompile(`^[^\x00-\x1f]{1,255}$`)
	envPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	pipPattern     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? *(\[[A-Za-z0-9._, -]*\])? *([<>=!~(;][^\x00-\x1f@]*)?$`)
	npmPattern     = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\x00-\x1f@/:]+)?$`)
)

// The ranges of numbers; the units are those of [Resources].
const (
	minMemory, maxMemory   = int64(4 << 20), int64(1 << 42)
	minTmp, maxTmp         = int64(64 << 10), int64(1 << 42)
	minCPU, maxCPU         = int64(10), int64(1024_000)
	minTimeout, maxTimeout = time.Millisecond, 24 * time.Hour
	maxIdle                = 24 * time.Hour
	minFiles, maxFiles     = int64(16), int64(1 << 20)
	maxPids                = int64(1 << 20)
	runtimeThreads         = 8 // what a runtime needs beside those that handle events
	maxConcurrency         = 1024
	maxInstances           = 1 << 16
	maxEnvBytes            = 128 << 10 // of all names and values: the kernel's MAX_ARG_STRLEN for one
)

// fields is the one table of a template's keys: it drives the parser, the
// suggestions, and the comparison with the published schema.
func (d *decoder) fields(t *Template) []field {
	in, res := &t.Instances, &t.Resources
	network := []field{
		{key: "mode", required: true, value: d.networkMode(&t.Network.Mode)},
		{key: "allow", value: d.destinations(&t.Network.Allow)},
	}
	return []field{
		{key: "id", required: true, value: d.text(&t.ID, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash")},
		{key: "version", value: d.text(&t.Version, versionPattern, "letters, digits and . _ + -, at most 128")},
		{key: "base", required: true, value: d.text(&t.Base, namePattern, `the name of a base environment such as "python"`)},
		{key: "packages", below: []field{
			{key: "pip", value: d.strings(&t.Packages.Pip, requirement(pipPattern, `write a requirement such as "lxml==5.3.0"; options, URLs and paths are not supported yet`))},
			{key: "npm", value: d.strings(&t.Packages.NPM, requirement(npmPattern, `write a package such as "left-pad@1.3.0"; URLs, paths and aliases are not supported yet`))},
			{key: "maven", value: d.unsupported("remove it; the package sites of today are pip and npm")},
			{key: "deb", value: d.unsupported("remove it; the package sites of today are pip and npm")},
		}},
		{key: "libs", value: d.unsupported("remove it and put the library beside the function's code")},
		{key: "code", below: []field{
			{key: "path", value: d.codePath(&t.Code.Path)},
			{key: "git", value: d.unsupported("clone the repository and name it in code.path"), below: []field{
				{key: "url"}, {key: "ref"}, {key: "path"}, {key: "auth"},
			}},
		}},
		{key: "handler", value: d.text(&t.Handler, handlerPattern, `a name such as "main.handle", or a path for native`)},
		{key: "runtime", value: d.unsupported("remove it; the base says which runtime is used")},
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
			{key: "memory", value: measure(d, &res.MemoryBytes, ParseBytes, formatBytes, minMemory, maxMemory)},
			{key: "cpu", value: measure(d, &res.CPUMillis, parseCPU, formatCPU, minCPU, maxCPU)},
			{key: "pids", value: integer(d, &res.Pids, 1, maxPids)},
			{key: "tmp", value: measure(d, &res.TmpBytes, ParseBytes, formatBytes, minTmp, maxTmp)},
			{key: "files", value: integer(d, &res.Files, minFiles, maxFiles)},
			{key: "timeout", value: measure(d, &res.Timeout, parseDuration, time.Duration.String, minTimeout, maxTimeout)},
		}},
		{key: "network", value: d.network(&t.Network, network), below: network},
	}
}

func (t *Template) setDefaults() {
	t.Version, t.Tenant, t.Network.Mode, t.Code.Path = "latest", DefaultTenant, NetworkNone, "."
	t.Instances = Instances{Fork: ForkAuto, Concurrency: 1, Max: 64, Idle: 5 * time.Minute}
	t.Resources = Resources{
		MemoryBytes: 128 << 20, CPUMillis: 1000, // Pids: see setDependentDefaults
		TmpBytes: 64 << 20, Files: 1024, Timeout: 30 * time.Second,
	}
}

// setDependentDefaults sets what depends on other fields.
func (t *Template) setDependentDefaults() {
	if t.Resources.Pids == 0 {
		// A runtime has up to a thread for each event and some of its own.
		t.Resources.Pids = max(64, 2*int64(t.Instances.Concurrency))
	}
	if t.Instances.Isolation == "" {
		t.Instances.Isolation = IsolationInstance
		if t.Base == "native" {
			t.Instances.Isolation = IsolationEvent
		}
	}
	if t.Handler == "" {
		t.Handler = map[string]string{"python": "main.handle", "node": "index.handle"}[t.Base]
	}
}

// relations checks fields against each other.
func (d *decoder) relations(t *Template) {
	fail := func(path, format string, args ...any) {
		d.errs = append(d.errs, d.errorAt(d.place(path), fmt.Sprintf(format, args...)))
	}
	in := t.Instances
	if in.Max < in.Min {
		fail("instances.max", "instances.max (%d) is less than instances.min (%d)", in.Max, in.Min)
	}
	if in.Isolation == IsolationEvent && in.Concurrency > 1 {
		fail("instances.concurrency", `instances.concurrency must be 1 where isolation is "event": every event has a sandbox of its own`)
	}
	// A process with too few threads for its events dies of them, at a moment
	// of its own. One program for one event needs no more than it says.
	if least := int64(in.Concurrency) + runtimeThreads; t.Resources.Pids < least && in.Isolation == IsolationInstance {
		fail("resources.pids", "resources.pids must be at least %d: an instance needs a thread for each of its events (instances.concurrency is %d) and %d for its runtime", least, in.Concurrency, runtimeThreads)
	}
	if t.Base == "native" {
		if t.Handler == "" {
			fail("", `missing key "handler" in template: the base native needs the path of the program, such as "bin/clock"`)
		}
	}
	if len(t.Network.Allow) > 0 && t.Network.Mode != NetworkEgress {
		fail("network.allow", "network.allow is for the mode egress: this network's is %s", t.Network.Mode)
	}
	size := 0
	for name, value := range t.Env {
		size += len(name) + len(value) + 2
	}
	if size > maxEnvBytes {
		fail("env", "env takes %d bytes: the limit is %s", size, formatBytes(maxEnvBytes))
	}
}

// Check is the second step of reading a template: it compares it with the
// runtimes at hand and asks the base's own for the handler. Faults come as
// [TemplateErrors].
func (t *Template) Check(runtimes []Runtime) error {
	names := make([]string, len(runtimes))
	var runtime Runtime
	for i, r := range runtimes {
		names[i] = r.Name()
		if r.Name() == t.Base {
			runtime = r
		}
	}
	if runtime == nil {
		slices.Sort(names)
		return t.fault(&FieldError{"base", fmt.Sprintf("base %q is not supported yet: the bases are %s", t.Base, strings.Join(names, ", "))})
	}
	for _, site := range []struct {
		path, base string
		list       []string
	}{{"packages.pip", "python", t.Packages.Pip}, {"packages.npm", "node", t.Packages.NPM}} {
		if len(site.list) > 0 && site.base != t.Base {
			return t.fault(&FieldError{site.path, fmt.Sprintf("%s needs the base %s: this template's base is %s", site.path, site.base, t.Base)})
		}
	}
	if _, _, err := runtime.Command(t); err != nil {
		return t.fault(err)
	}
	return nil
}

// fault gives a [FieldError] in err its place in the template; other errors
// pass unchanged.
func (t *Template) fault(err error) error {
	var field *FieldError
	if t.source == nil || !errors.As(err, &field) {
		return err
	}
	p := t.source.place(field.Field)
	if p == t.source.at[""] {
		p = position{} // the field was left to its default: no line is to blame
	}
	return TemplateErrors{t.source.errorAt(p, field.Message)}
}

func requirement(pattern *regexp.Regexp, want string) func(string) error {
	return func(s string) error {
		if len(s) > 512 || !pattern.MatchString(s) {
			return fmt.Errorf("bad requirement %q: %s", s, want)
		}
		return nil
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
