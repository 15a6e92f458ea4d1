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
	runPattern     = lazyregexp.New(`^[^\x00]{1,1000}$`)
	namePackage    = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]{1,127}$`)           // of Debian
	refPattern     = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,254}$`) // as in git-check-ref-format(1), without unused characters
	urlPattern     = lazyregexp.New("^((https?|ssh)://([A-Za-z0-9_.~-]+@)?[A-Za-z0-9_.~:\\[\\]-]+/|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:)[^\\x00-\\x20\"'\\\\`$]{1,1000}$")
	debPattern     = lazyregexp.New(`^[a-z0-9][a-z0-9.+-]{1,254}(=[A-Za-z0-9*?\[][A-Za-z0-9.+:~*?\[\]-]{0,254})?$`)
	libPattern     = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*\.so(\.[A-Za-z0-9_.+-]+)?$`)
)

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

// fields is the only table of a template's keys. The parser, the suggestions and the published schema
// use it.
func (d *decoder) fields(t *Template) []field {
	if t.Packages == nil {
		t.Packages = Packages{}
	}
	git, build := &GitCode{}, &BuildStep{Output: "."}
	cors := &CORS{}
	return []field{
		{
			key: "id", required: true, value: d.text(&t.ID, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash"),
			about: "The function's name: lower-case letters, digits and dashes.", examples: []any{"thumbnail"},
		},
		{
			key: "version", value: d.text(&t.Version, versionPattern, "letters, digits and . _ + -, at most 128"),
			about: "The image's version. Quote it where it looks like a number.", def: "latest", examples: []any{"0.1.0"},
		},
		{
			key: "pipeline", value: d.pipeline(&t.Pipeline),
			about:    "Functions of the same tenant, NAME or NAME@REVISION, that the function is, one behind the other: each has the answer of the one before. It has no base, code or sandbox of its own; of resources it has timeout alone.",
			examples: []any{[]string{"resize", "watermark@3", "publish"}},
		},
		{
			key: "base", value: d.base(&t.Base),
			about:    "The base environment: the language's runtime on a slim system. native runs any program. It may be left out where the runtime has a base of its own. NAME:RELEASE is of that release of the distribution. oci:IMAGE is an image of a registry, archive:FILE what docker save wrote, layout:DIRECTORY an OCI layout, dir:DIRECTORY a root file system: these need runtime.",
			examples: d.baseExamples(),
		},
		{
			key: "runtime", value: d.text(&t.Runtime, namePattern, "the name of a runtime"+d.dialect.example()),
			about: "How the function is run. The default is the base's own; where it is given the base may be left out.",
			more:  object{{"enum", d.dialect.named(func(*Runtime) bool { return true })}},
		},
		{
			key: "contract", value: d.contract(&t.Contract),
			about:    "What the code is written against: fre (handle(event, context)), lambda (AWS Lambda's handlers, or its runtime interface clients), asgi, wsgi, functions-framework (Google's), knative, http (a server: the runtime http), cgi (a program for each event, RFC 3875), stdio (a program for each sandbox, the body on stdin). http, cgi and stdio imply their runtime. See docs/contracts.md.",
			examples: []any{ContractLambda},
		},
		{
			key: "packages", below: d.packages(t.Packages),
			about: "Packages from the ecosystems' own sites, pinned in fret.lock by the first build.", more: d.dialect.scriptsNeed(false),
		},
		{
			key: "slim", value: d.slim(&t.Slim),
			about: "true: a base of FRE's also leaves out what few functions load, such as rare modules of the language and character sets. false: a base of FRE's, and Debian packages, hold all their files, of a base those but documentation. Without it, documentation and what serves installation alone are left out.",
		},
		{
			key: "keep", value: d.strings(&t.Keep, item{patternSchema(pathPattern).with("maxLength", maxItem), keepGlob}),
			about:    "Paths below the root that stay in a base of FRE's and in Debian packages though slimming would leave them out: * and ? for part of a name, ** for any number of directories.",
			examples: []any{[]string{"usr/share/locale/de"}},
		},
		{
			key: "libs", value: d.strings(&t.Libs, requirement(libPattern, `write a library's soname, for example "libxml2.so.2"`)),
			about:    "Shared libraries by the name that programs ask for: the Debian package that has each is found, and its libraries and those they need are added.",
			examples: []any{[]string{"libxml2.so.2"}},
		},
		{key: "code", about: "Where the function's own files come from.", more: object{{"not", object{{"required", []string{"archive", "git"}}}}}, below: []field{
			{
				key: "path", value: d.codePath(&t.Code.Path),
				about: "A directory or file below the template's (the archive's, the repository's), which becomes /function. A .freignore file in it names what is left out.",
				def:   ".", examples: []any{"src"},
			},
			{
				key: "archive", value: d.codePath(&t.Code.Archive),
				about: "A zip or tar, packed with gzip, zstd, xz or not at all, beside the template; path is then below its top.", examples: []any{"code.zip"},
			},
			d.set("git", func() { t.Code.Git = git }, field{
				below:    d.git(git),
				about:    "A git repository; path is then below its top. fret.lock pins the commit.",
				examples: []any{object{{"url", "https://example.org/team/function.git"}, {"ref", "v1.2"}}},
			}),
			d.set("build", func() { t.Code.Build = build }, field{
				below:    d.buildStep(build),
				about:    "Makes the function's files out of the code: run in a sandbox, in a copy of it, without network.",
				examples: d.dialect.buildExamples(),
			}),
		}},
		{
			key: "handler", value: d.text(&t.Handler, handlerPattern, `a name such as "main.handle", or a path for native`),
			about: d.dialect.handlers(), examples: []any{"main.handle", "bin/clock"},
		},
		{key: "http", about: "With the runtime http: how the server is reached.", below: []field{
			{
				key: "listen", value: oneOf(d, &t.HTTP.Listen, ListenPort, ListenFD), def: ListenPort,
				about: "port: the server binds the port itself, which $PORT in its environment and its command line names. fd: FRE binds it, and the server finds the socket as file descriptor 3, as from systemd (LISTEN_FDS).",
			},
			{
				key: "port", value: integer(d, &t.HTTP.Port, 1, 65535), def: 8080,
				about: "Where the server listens, at 127.0.0.1 of its sandbox.",
			},
			{
				key: "ready", value: d.text(&t.HTTP.Ready, readyPattern, "the path of a request, such as /health"),
				about: "A path that is asked for until its status is below 500, before the first event; without it a server that accepts connections is ready.", examples: []any{"/health"},
			},
		}},
		{key: "lambda", about: "With the contract lambda: what the handler is called with.", below: []field{
			{
				key: "event", value: oneOf(d, &t.Lambda.Event, LambdaBody, LambdaHTTP), def: LambdaBody,
				about: "body: the request's body, which is JSON; what the handler returns is the answer's. http: all of the request, in payload format 2.0 of API Gateway and function URLs, and the answer too.",
			},
		}},
		{
			key: "env", value: d.env(&t.Env),
			about: "Environment variables of the function. Names beginning with FRE_ are reserved.", examples: []any{object{{"LOG_LEVEL", "info"}}},
		},
		{
			key: "tenant", value: d.text(&t.Tenant, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash"), def: DefaultTenant,
			about: "Who owns the function: tenants share /work among their own functions and with nobody else. In another tenant than default the function is called NAME.TENANT.",
		},
		{
			key: "secrets", value: d.strings(&t.Secrets, item{patternSchema(secretPattern), secretNamed}),
			about: "Secrets of the tenant's (fre secret ls) that instances find as files in /run/secrets. They are read when an instance starts.",
			more:  object{{"maxItems", maxSecrets}, {"uniqueItems", true}}, examples: []any{[]string{"stripe-key"}},
		},
		{
			key: "access", value: oneOf(d, &t.Access, AccessToken, AccessOpen), more: object{{"type", "string"}},
			about: "Who may call the function by the gateway. token: whoever has a token with the scope invoke. open: everybody, where the engine's configuration lets templates say so. Default: as that configuration says.",
		},
		d.set("cors", func() { t.CORS = cors }, field{
			below: d.corsFields(cors),
			about: "To which web pages of other origins browsers give the function's answers. The gateway answers their preflight requests itself.",
		}),
		{key: "instances", about: "How many sandboxes there are and how long they live.", below: d.instances(&t.Instances)},
		{key: "events", about: "How asynchronous events (/async-function/NAME, triggers) are treated.", below: d.eventFields(&t.Events)},
		{
			key: "triggers", value: d.triggers(&t.Triggers), below: d.triggerFields(&Trigger{}),
			about: "What makes events for the function beside requests.",
		},
		{key: "resources", about: "The limits of one sandbox.", below: d.resources(&t.Resources)},
		{
			key: "network", value: d.network(&t.Network), below: d.networkFields(&t.Network), def: NetworkNone,
			about:    "What the function can reach. none: its own loopback. egress: the public internet, or what allow names. host: the host's own network, where the engine's configuration allows it.",
			more:     object{{"dependentSchemas", object{{"allow", properties(object{{"mode", object{{"const", NetworkEgress}}}})}}}},
			examples: []any{NetworkEgress, object{{"mode", NetworkEgress}, {"allow", []string{"example.org", "*.example.org:443", "198.51.100.0/24"}}}},
		},
	}
}

// set is a mapping that calls there before reading the keys below.
func (d *decoder) set(key string, there func(), f field) field {
	below := f.below
	f.key, f.value.read = key, func(n ast.Node, path string) {
		there()
		d.field(n, path, field{below: below})
	}
	return f
}

func (d *decoder) git(c *GitCode) []field {
	return []field{
		{key: "url", required: true, value: d.gitURL(&c.URL), about: "https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH."},
		{key: "ref", value: d.text(&c.Ref, refPattern, "a branch, a tag or a whole commit id"), about: "A branch, a tag or a whole commit id; the repository's HEAD if not given."},
		{key: "auth", value: d.text(&c.Auth, namePattern, "the name of a credential in the engine's configuration"), about: "The name of a credential in the engine's configuration (packages.git)."},
		{key: "submodules", value: d.boolean(&c.Submodules), about: "Whether submodules are fetched.", def: false},
	}
}

func (d *decoder) buildStep(b *BuildStep) []field {
	b.Packages = Packages{}
	return []field{
		{key: "run", required: true, value: d.text(&b.Run, runPattern, "a command of the shell"), about: "A command of the shell."},
		{key: "packages", below: d.stepPackages(b.Packages), about: "There while it runs, beside the function's own packages.", more: d.dialect.scriptsNeed(true)},
		{key: "output", value: d.codePath(&b.Output), about: "The directory that becomes /function.", def: "."},
	}
}

func (d *decoder) instances(in *Instances) []field {
	return []field{
		{
			key: "isolation", value: oneOf(d, &in.Isolation, IsolationEvent, IsolationInstance),
			about: "event: a fresh sandbox for every event (native's default). instance: a sandbox is reused while it is warm (the others' default).",
		},
		{
			key: "fork", value: oneOf(d, &in.Fork, ForkAuto, ForkNever), def: ForkAuto,
			about: "auto: instances may be forked from a process that has imported the handler already (where the runtime can), each into a sandbox of its own. never: every instance imports the handler itself.",
		},
		{key: "concurrency", value: integer(d, &in.Concurrency, 1, maxConcurrency), about: "Events at once in one instance.", def: 1},
		{key: "min", value: integer(d, &in.Min, 0, maxInstances), about: "Instances kept warm.", def: 0},
		{key: "max", value: integer(d, &in.Max, 1, maxInstances), about: "The most instances at once; not less than min.", def: 64},
		{key: "idle", value: measure(d, &in.Idle, durations, 0, maxIdle), about: "An instance without events for this long is stopped. At most 24h.", def: "5m"},
	}
}

func (d *decoder) resources(r *Resources) []field {
	return []field{
		{key: "memory", value: measure(d, &r.MemoryBytes, sizes, minMemory, maxMemory), about: "Memory, swap included: at least 4MiB.", more: object{{"minimum", minMemory}}, def: "128MiB"},
		{key: "cpu", value: measure(d, &r.CPUMillis, cores, minCPU, maxCPU), about: "Cores, or thousandths of one with m: at least 10m.", def: "1", examples: []any{"500m", 1.5}},
		{
			key: "pids", value: integer(d, &r.Pids, 1, maxPids), def: 64,
			about: "Processes and threads. Default 64, or twice instances.concurrency where that is more. At least concurrency + 8 where isolation is instance.",
		},
		{key: "tmp", value: measure(d, &r.TmpBytes, sizes, minTmp, maxTmp), about: "Size of /tmp, which counts as memory while it is used: at least 64KiB.", more: object{{"minimum", minTmp}}, def: "64MiB"},
		{key: "files", value: integer(d, &r.Files, minFiles, maxFiles), about: "Open files of one process.", def: 1024},
		{key: "timeout", value: measure(d, &r.Timeout, durations, minTimeout, maxTimeout), about: "Wall-clock time of one event: at most 24h.", def: "30s"},
	}
}

func (d *decoder) networkFields(n *Network) []field {
	return []field{
		{key: "mode", required: true, value: oneOf(d, &n.Mode, NetworkNone, NetworkEgress, NetworkHost), about: "none, egress or host."},
		{
			key: "allow", value: d.destinations(&n.Allow),
			about: "With egress: nothing but these. A name, *.NAME for all names below it, an address or ADDRESS/BITS, each with :PORT behind it for one port; IPv6 stands in brackets before a port.",
		},
		{
			key: "lend_connection", value: d.boolean(&n.LendConnection), def: false,
			about: "Whether the function is lent its client's connection, a socket of the host's network, to write a long answer to: for functions that are trusted, where the engine's configuration allows it (network.lend_connections). It is " + d.dialect.connected() + ".",
		},
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

// setDependentDefaults sets defaults that depend on other fields.
func (t *Template) setDependentDefaults(dialect *Dialect) {
	if t.Resources.Pids == 0 {
		// A runtime has up to a thread for each event, and some of its own.
		t.Resources.Pids = max(64, 2*int64(t.Instances.Concurrency))
	}
	if len(t.Pipeline) > 0 {
		t.Instances.Isolation = IsolationInstance
		return
	}
	t.setContract(dialect)
	if t.Runtime == runtimeHTTP {
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
	if _, ok := d.at["http"]; ok && t.Runtime != runtimeHTTP {
		fail("http", "http is for the runtime http, but the template's runtime is %s", t.Runtime)
	}
	if r := d.dialect.runtime(t.Runtime); r != nil && r.Required != "" && t.Handler == "" {
		fail("", `missing key "handler" in template: the runtime %s needs %s`, r.Name, r.Required)
	}
	if _, ok := d.at["code.git"]; ok && t.Code.Archive != "" {
		fail("code.git", "code.archive and code.git exclude each other: remove either")
	}
	d.dialect.packagesRelations(t.Packages, "packages", fail)
	if t.Code.Build != nil {
		d.dialect.packagesRelations(t.Code.Build.Packages, "code.build.packages", fail)
	}
	if len(t.Network.Allow) > 0 && t.Network.Mode != NetworkEgress {
		fail("network.allow", "network.allow is for the mode egress, but the network's mode is %s", t.Network.Mode)
	}
	if r := d.dialect.runtime(t.Runtime); t.Network.LendConnection && (t.Contract != ContractFRE || r == nil || !r.Connection) {
		fail("network.lend_connection", "network.lend_connection is %s, but the template's runtime is %s", d.dialect.connected(), t.Runtime)
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

// base reads a base in the syntax of [ParseBase].
func (d *decoder) base(dst *string) value {
	return value{d.dialect.baseSchema(), func(n ast.Node, at string) {
		s, ok := d.str(n, at)
		if !ok {
			return
		}
		ref, err := parseBase(s, d.dialect.baseNames())
		if err != nil {
			d.errorf(n, "%s", err)
			return
		}
		*dst = ref.String()
	}}
}

func (d *decoder) codePath(dst *string) value {
	return value{fileSchema, func(n ast.Node, at string) {
		var s string
		d.text(&s, pathPattern, "a relative path below the template's directory").read(n, at)
		if s == "" {
			return
		}
		if s = path.Clean(s); s == ".." || strings.HasPrefix(s, "../") {
			d.errorf(n, "%s %q leaves the template's directory", at, s)
			return
		}
		*dst = s
	}}
}

func (d *decoder) gitURL(dst *string) value {
	return value{patternSchema(urlPattern), func(n ast.Node, at string) {
		var s string
		d.text(&s, urlPattern, "write https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH").read(n, at)
		if u, err := url.Parse(s); err == nil && u.User != nil && u.Scheme != "ssh" {
			// Do not repeat the user: it may be a password.
			d.errorf(n, "%s contains a user: put credentials into the engine's configuration (packages.git), and name the credential in code.git.auth", at)
			return
		}
		*dst = s
	}}
}

func (d *decoder) boolean(dst *bool) value {
	return value{object{{"type", "boolean"}}, func(n ast.Node, path string) {
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.errorf(n, "%s must be true or false, not %s", path, describe(n))
			return
		}
		*dst = b.Value
	}}
}

func (d *decoder) slim(dst *Slim) value {
	return value{object{{"type", "boolean"}}, func(n ast.Node, path string) {
		var slim bool
		if d.boolean(&slim).read(n, path); slim {
			*dst = SlimTrue
		} else {
			*dst = SlimFalse
		}
	}}
}

func (d *decoder) env(dst *map[string]string) value {
	return value{object{
		{"type", "object"},
		{"propertyNames", object{{"pattern", envPattern.String()}, {"not", object{{"pattern", "^FRE_"}}}}},
		{"additionalProperties", object{{"type", []string{"string", "number", "boolean"}}}},
	}, func(n ast.Node, path string) {
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
	}}
}

func formatCPU(millis int64) string { return fmt.Sprintf("%dm", millis) }

// The units of measures.
var (
	sizes     = unit[int64]{sizeSchema, ParseBytes, FormatBytes}
	durations = unit[time.Duration]{durationSchema, parseDuration, time.Duration.String}
	cores     = unit[int64]{object{{"anyOf", []object{
		{{"type", "number"}, {"minimum", 0.01}, {"maximum", 1024}, {"multipleOf", 0.001}},
		{{"type", "string"}, {"pattern", "^([0-9]{1,9}(\\.[0-9]{1,3})?|[0-9]{1,9}m)$"}},
	}}}, parseCPU, formatCPU}
)
