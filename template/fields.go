package template

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/fre-engine/fre/internal/glob"
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

func (d *decoder) baseExamples() []any {
	if len(d.dialect.Bases) == 0 {
		return nil
	}
	return []any{d.dialect.Bases[0], d.dialect.Bases[0] + ":trixie"}
}

func (d *decoder) corsFields(c *CORS) []field {
	return []field{
		{
			key: "origins", required: true, value: d.strings(&c.Origins, item{patternSchema(originPattern), corsOrigin}), more: object{{"minItems", 1}, {"maxItems", maxCORS}},
			about: "Origins such as https://app.example, or * alone for all.", examples: []any{[]string{"https://app.example"}},
		},
		{
			key: "methods", value: d.strings(&c.Methods, item{patternSchema(tokenPattern), corsToken}), more: object{{"maxItems", maxCORS}},
			about: "Methods of requests.", def: []string{"GET", "HEAD", "POST"},
		},
		{
			key: "headers", value: d.strings(&c.Headers, item{patternSchema(tokenPattern), corsToken}), more: object{{"maxItems", maxCORS}},
			about: "Header fields that requests may have.", examples: []any{[]string{"Content-Type", "Authorization"}},
		},
		{key: "credentials", value: d.boolean(&c.Credentials), about: "Whether cookies and the like go along; not with *.", def: false},
		{key: "max_age", value: measure(d, &c.MaxAge, durations, 0, maxCORSAge), about: "For how long a browser remembers the answer to a preflight request, at most 24h.", def: "5m"},
	}
}

func (d *decoder) eventFields(e *Events) []field {
	return []field{
		{
			key: "retries", value: integer(d, &e.Retries, 0, maxRetries), def: 3,
			about: "Attempts after the first that fails: an exception, a crash, a time-out, or an answer of 500 and above, or 429.",
		},
		{
			key: "backoff", value: measure(d, &e.Backoff, durations, minBackoff, maxBackoff), def: "1s",
			about: "Pause before the second attempt, doubled before each further one, up to ten minutes. 10ms to 1h.",
		},
		{
			key: "priority", value: oneOf(d, &e.Priority, "high", "normal", "low"), def: "normal",
			about: "Which part of the engine's turns its events get while others wait: 16, 4 or 1.",
		},
		{
			key: "max_queue", value: integer(d, &e.MaxQueue, 1, maxQueue), def: 10_000,
			about: "Events that wait at most; further ones are refused (429).",
		},
		{
			key: "results", value: measure(d, &e.Results, durations, 0, maxResults), def: "1h",
			about: "How long results are kept, 0s for not at all. At most 168h.",
		},
	}
}

// triggerFields is the table of one trigger's keys.
func (d *decoder) triggerFields(t *Trigger) []field {
	w, c, e := &Webhook{Tolerance: 5 * time.Minute}, &Cron{Zone: "UTC", Missed: "skip", Path: "/"}, &CloudEvents{}
	m, f := &NATS{}, &Files{}
	return []field{
		{key: "name", required: true, value: d.text(&t.Name, namePattern, "lower-case letters, digits and dashes, at most 63, not beginning with a dash"), about: "Unique in the template."},
		d.set("webhook", func() { t.Webhook = w }, field{below: d.webhookFields(w), about: "Requests to /hooks/FUNCTION/NAME that are signed.", more: object{
			{"if", properties(object{{"signature", object{{"const", "none"}}}})},
			{"then", object{{"not", required("secret")[0]}}},
			{"else", required("secret")[0]},
		}}),
		d.set("cron", func() { t.Cron = c }, field{below: d.cronFields(c), about: "An event at times of day."}),
		d.set("cloudevents", func() { t.CloudEvents = e }, field{below: d.cloudEventsFields(e), about: "CloudEvents by HTTP to /hooks/FUNCTION/NAME: binary, structured, batches."}),
		d.set("nats", func() { t.NATS = m }, field{
			below: d.natsFields(m),
			about: "Messages that others publish to subjects of NATS, below fre.in.TENANT or as the engine's configuration allows.",
			more:  object{{"not", object{{"required", []string{"stream", "queue"}}}}},
		}),
		d.set("files", func() { t.Files = f }, field{about: "Files that are put into /work, each once it is complete.", below: []field{
			{
				key: "path", required: true, value: d.text(&f.Path, filesPattern, "a pattern of paths below /work such as inbox/*.csv"), more: object{{"maxLength", maxFilesPath}},
				about: "A pattern of paths below /work, ** for any number of directories.", examples: []any{"inbox/*.csv"},
			},
		}}),
	}
}

func (d *decoder) webhookFields(w *Webhook) []field {
	return []field{
		{
			key: "signature", required: true, value: oneOf(d, &w.Signature, "github", "gitlab", "gitee", "stripe", "hmac", "none"),
			about: "Whose way of signing it is; hmac: HMAC-SHA256 of the body, in hexadecimal digits or base64.",
		},
		{key: "secret", value: d.text(&w.Secret, namePattern, "the name of a secret of the tenant's"), about: "Name of the tenant's secret."},
		{
			key: "header", value: d.text(&w.Header, fieldNamePattern, "the name of a header field"),
			about: "Of hmac: the field that holds the signature; X-Signature-256 unless it is given.",
		},
		{
			key: "timestamp", value: d.text(&w.Timestamp, fieldNamePattern, "the name of a header field"),
			about: "Of hmac: the field that holds the time in seconds, which is signed before the body, with a dot between.",
		},
		{key: "tolerance", value: measure(d, &w.Tolerance, durations, minTolerance, maxTolerance), about: "How far a signed time may be from the engine's. 1s to 24h.", def: "5m"},
		{
			key: "key", value: d.text(&w.Key, keyPattern, `the name of a header field such as X-GitHub-Delivery, or a JSON pointer into the body such as "/id"`),
			about: "What tells a sender's retries from other events: a header field, or a JSON pointer (RFC 6901) into the body.", examples: []any{"/id", "X-GitHub-Delivery"},
		},
		{key: "paths", value: d.strings(&w.Paths, globs()), about: "Patterns of what follows the name in the path; other requests are ignored."},
		{
			key: "headers", value: d.strings(&w.Headers, unbounded(requirement(headerPattern, `write a field and a pattern of its value, such as "X-GitHub-Event: push"`))),
			about: "Fields and patterns of their values, each name of which must match; other requests are ignored.", examples: []any{[]string{"X-GitHub-Event: push"}},
		},
	}
}

func (d *decoder) cronFields(c *Cron) []field {
	return []field{
		{
			key: "schedule", required: true, value: d.text(&c.Schedule, schedulePattern, `five fields (minute hour day month weekday) such as "30 4 * * 1-5", or @daily`),
			about: "Minute, hour, day of month, month, weekday, as crontab(5) of Debian has them; or @hourly, @daily, @weekly, @monthly, @yearly.",
			more:  object{{"pattern", `^[ \t]*(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[0-9A-Za-z*/,-]+([ \t]+[0-9A-Za-z*/,-]+){4})[ \t]*$`}}, examples: []any{"30 4 * * 1-5"},
		},
		{key: "zone", value: d.text(&c.Zone, zonePattern, "a time zone such as Europe/Berlin"), about: "A time zone of the IANA database.", def: "UTC"},
		{key: "missed", value: oneOf(d, &c.Missed, "skip", "once"), about: "Of times when no engine ran: skip them, or make up for the last of them once.", def: "skip"},
		{key: "path", value: d.text(&c.Path, readyPattern, "the path of an event, such as /nightly"), about: "The event's path.", def: "/"},
		{key: "body", value: d.text(&c.Body, bodyPattern, "text of at most 1,000 characters"), about: "The event's body."},
	}
}

func (d *decoder) cloudEventsFields(e *CloudEvents) []field {
	return []field{
		{key: "token", value: d.text(&e.Token, namePattern, "the name of a secret of the tenant's"), about: "Name of the tenant's secret that requests have as their bearer token."},
		{key: "types", value: d.strings(&e.Types, globs()), about: "Patterns of the types that are taken; others are ignored."},
		{key: "sources", value: d.strings(&e.Sources, globs()), about: "Patterns of the sources that are taken; others are ignored."},
	}
}

func (d *decoder) natsFields(m *NATS) []field {
	return []field{
		{
			key: "subject", required: true, value: d.text(&m.Subject, subjectPattern, "a subject, for example orders.> or orders.*.new, not beginning with a wildcard"),
			about: "* stands for one token but for the first, > for the rest.", examples: []any{"orders.>"},
		},
		{
			key: "stream", value: d.text(&m.Stream, streamPattern, "the name of a stream, such as ORDERS"),
			about: "The stream that has them: each message is an event once at least. Without it messages are taken as they pass.",
		},
		{key: "queue", value: d.text(&m.Queue, streamPattern, "the name of a queue group"), about: "The queue group whose members share the messages, without a stream."},
	}
}

// triggers reads the list.
func (d *decoder) triggers(dst *[]Trigger) value {
	schema := mappingSchema(d.triggerFields(&Trigger{})).with("oneOf", required("webhook", "cron", "cloudevents", "nats", "files"))
	return value{object{{"type", "array"}, {"maxItems", maxTriggers}, {"items", schema}}, func(n ast.Node, path string) {
		list, ok := n.(*ast.SequenceNode)
		switch {
		case !ok:
			d.errorf(n, "%s must be a list, not %s", path, describe(n))
			return
		case len(list.Values) > maxTriggers:
			d.errorf(n, "%s has %d entries: the limit is %d", path, len(list.Values), maxTriggers)
			return
		}
		names := map[string]bool{}
		for i, v := range list.Values {
			at := fmt.Sprintf("%s[%d]", path, i)
			d.at[at] = nodePosition(v)
			m, ok := v.(ast.MapNode)
			if !ok {
				d.errorf(v, "%s must be a mapping with keys such as name, webhook, cron, not %s", at, describe(v))
				continue
			}
			before := len(d.errs)
			var t Trigger
			d.mapping(m, at, d.triggerFields(&t))
			if len(d.errs) > before {
				continue
			}
			if names[t.Name] {
				d.errorf(v, "%s: a second trigger of the name %q", at, t.Name)
			}
			names[t.Name] = true
			if err := t.validate(); err != nil {
				d.errorf(v, "%s: %s", at, err)
				continue
			}
			*dst = append(*dst, t)
		}
	}}
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

// network reads a mode, or a mapping with a mode and an allow-list.
func (d *decoder) network(dst *Network) value {
	return value{object{
		{"type", []string{"string", "object"}},
		{"if", object{{"type", "string"}}},
		{"then", object{{"enum", []NetworkMode{NetworkNone, NetworkEgress, NetworkHost}}}},
	}, func(n ast.Node, path string) {
		if m, ok := n.(ast.MapNode); ok {
			d.mapping(m, path, d.networkFields(dst))
			return
		}
		oneOf(d, &dst.Mode, NetworkNone, NetworkEgress, NetworkHost).read(n, path)
	}}
}

// packages are the keys below packages.
func (d *decoder) packages(p Packages) []field {
	var keys []field
	for i := range d.dialect.Sites {
		s := &d.dialect.Sites[i]
		keys = append(keys, field{key: s.Name, value: d.requests(p.entry(s.Name), s), about: s.About, examples: s.Examples})
	}
	keys = append(keys, field{
		key: SiteDebian, value: d.strings(&p.entry(SiteDebian).List, requirement(debPattern, `write a Debian package such as "curl" or "ghostscript=10.*"`)),
		about:    "Debian packages of the base's release, with what they need: NAME or NAME=VERSION with * and ?.",
		examples: []any{[]string{"curl", "ghostscript=10.*"}},
	})
	for i := range d.dialect.Sites {
		s := &d.dialect.Sites[i]
		if n := s.Scripts; n != nil {
			keys = append(keys, field{key: n.Key, value: d.strings(&p.entry(s.Name).Scripts, requirement(n.Name.Pattern, n.Name.Want)), about: n.About, examples: n.Examples})
		}
		if n := s.Index; n != nil {
			keys = append(keys, field{key: n.Key, value: d.index(&p.entry(s.Name).Index, n, s.Name), about: n.About, examples: n.Examples})
		}
	}
	return keys
}

// stepPackages are the keys below code.build.packages.
func (d *decoder) stepPackages(p Packages) []field {
	var keys []field
	for i := range d.dialect.Sites {
		if s := &d.dialect.Sites[i]; s.Step != "" {
			keys = append(keys, field{key: s.Name, value: d.strings(&p.entry(s.Name).List, requirement(s.Request.Pattern, s.Step))})
		}
	}
	keys = append(keys, field{key: SiteDebian, value: d.strings(&p.entry(SiteDebian).List, requirement(namePackage, `write a Debian package such as "make"`))})
	for i := range d.dialect.Sites {
		if s := &d.dialect.Sites[i]; s.Step != "" && s.Scripts != nil {
			keys = append(keys, field{key: s.Scripts.Key, value: d.strings(&p.entry(s.Name).Scripts, requirement(s.Scripts.Name.Pattern, s.Scripts.Name.Want))})
		}
	}
	return keys
}
