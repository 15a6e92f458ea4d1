package template

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/glob"
)

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
	t.instanceRelations(fail)
	d.programRelations(t, fail)
	d.dialect.packagesRelations(t.Packages, "packages", fail)
	if t.Code.Build != nil {
		d.dialect.packagesRelations(t.Code.Build.Packages, "code.build.packages", fail)
	}
	d.networkRelations(t, fail)
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

func (t *Template) instanceRelations(fail func(path, format string, args ...any)) {
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
}

// programRelations checks the runtime, the handler and the source of the code.
func (d *decoder) programRelations(t *Template, fail func(path, format string, args ...any)) {
	if _, ok := d.at["http"]; ok && t.Runtime != runtimeHTTP {
		fail("http", "http is for the runtime http, but the template's runtime is %s", t.Runtime)
	}
	if r := d.dialect.runtime(t.Runtime); r != nil && r.Required != "" && t.Handler == "" {
		fail("", `missing key "handler" in template: the runtime %s needs %s`, r.Name, r.Required)
	}
	if _, ok := d.at["code.git"]; ok && t.Code.Archive != "" {
		fail("code.git", "code.archive and code.git exclude each other: remove either")
	}
}

func (d *decoder) networkRelations(t *Template, fail func(path, format string, args ...any)) {
	if len(t.Network.Allow) > 0 && t.Network.Mode != NetworkEgress {
		fail("network.allow", "network.allow is for the mode egress, but the network's mode is %s", t.Network.Mode)
	}
	if r := d.dialect.runtime(t.Runtime); t.Network.LendConnection && (t.Contract != ContractFRE || r == nil || !r.Connection) {
		fail("network.lend_connection", "network.lend_connection is %s, but the template's runtime is %s", d.dialect.connected(), t.Runtime)
	}
}

// setContract sets the fields that the contract implies, and the contract that other fields imply.
func (t *Template) setContract(dialect *Dialect) {
	if only := dialect.implied(t.Contract); t.Runtime == "" && only != nil && (only.Anywhere || t.ForeignBase()) {
		t.Runtime = only.Name
	}
	if t.Runtime == "" && !t.ForeignBase() {
		t.Runtime = BaseName(t.Base)
	}
	native := t.Runtime == runtimeNative
	if t.Instances.Isolation == "" {
		t.Instances.Isolation = IsolationInstance
		if native && (t.Contract == "" || t.Contract == ContractStdio) {
			t.Instances.Isolation = IsolationEvent
		}
	}
	switch {
	case t.Contract != "":
	case t.Runtime == runtimeHTTP:
		t.Contract = ContractHTTP
	case native && t.Instances.Isolation == IsolationEvent:
		t.Contract = ContractStdio
	default:
		t.Contract = ContractFRE
	}
	if t.Contract == ContractLambda {
		t.Lambda.Event = cmp.Or(t.Lambda.Event, LambdaBody)
	}
	runtime := dialect.runtime(t.Runtime)
	if runtime == nil {
		return
	}
	t.Handler = cmp.Or(t.Handler, runtime.Handlers[t.Contract])
	if runtime.Dotted != nil && t.Contract != ContractFRE {
		t.Handler = runtime.Dotted(t.Handler)
	}
}

// contractRelations checks the contract against other fields.
func (d *decoder) contractRelations(t *Template, fail func(path, format string, args ...any)) {
	in := t.Instances
	if _, ok := d.at["lambda"]; ok && t.Contract != ContractLambda {
		fail("lambda", "lambda is for the contract lambda, but the template's contract is %s", t.Contract)
	}
	if t.Contract == ContractStdio && in.Isolation != IsolationEvent {
		fail("instances.isolation", `the contract stdio starts a program for each sandbox: instances.isolation must be "event"; cgi starts a program for each event`)
	}
	if t.Contract == ContractFRE && t.Runtime == runtimeNative && in.Isolation == IsolationEvent {
		fail("contract", `a native program with the contract fre speaks the channel's protocol and is reused: set instances.isolation to "instance", or the contract to stdio`)
	}
	// Lambda's runtime interface clients handle one event at a time.
	if r := d.dialect.runtime(t.Runtime); t.Contract == ContractLambda && in.Concurrency > 1 && (r == nil || slices.Contains(r.Serial, t.Contract)) {
		fail("instances.concurrency", "instances.concurrency must be 1: a Lambda runtime interface client handles one event at a time")
	}
}

func (d *decoder) accessRelations(t *Template, fail func(path, format string, args ...any)) {
	slices.Sort(t.Secrets)
	if err := CheckAccess(t.Secrets, t.Access, t.CORS); err != nil {
		path, _, _ := strings.Cut(err.Error(), " ")
		fail(strings.TrimSuffix(path, ":"), "%v", err)
	}
}

// pipelineRelations refuses keys that only a program needs.
func (d *decoder) pipelineRelations(t *Template, fail func(path, format string, args ...any)) {
	for _, f := range d.fields(&Template{}) {
		if _, ok := d.at[f.key]; ok && !slices.Contains(ofPipelines, f.key) {
			fail(f.key, "%s is not for pipelines: a pipeline has steps only", f.key)
		}
		if f.key != "resources" {
			continue
		}
		for _, below := range f.below {
			path := join(f.key, below.key)
			if _, ok := d.at[path]; ok && below.key != "timeout" {
				fail(path, "%s is not for pipelines: set the field in the template of each step", path)
			}
		}
	}
	for i, step := range t.Pipeline {
		if name, _, _ := strings.Cut(step, "@"); name == t.ID {
			fail(fmt.Sprintf("pipeline[%d]", i), "pipeline[%d] is the pipeline itself: an endless cycle", i)
		}
	}
}

// packagesRelations checks the keys of sites against each other. at is the path of p.
func (dialect *Dialect) packagesRelations(p Packages, at string, fail func(path, format string, args ...any)) {
	for i := range dialect.Sites {
		s := &dialect.Sites[i]
		r := p.Of(s.Name)
		for _, n := range []struct {
			key  *Names
			used bool
		}{{s.Scripts, len(r.Scripts) > 0}, {s.Index, len(r.Index) > 0}} {
			if n.used && r.None() {
				fail(at+"."+n.key.Key, "%s.%s names packages, but %s.%s is empty", at, n.key.Key, at, s.Name)
			}
		}
	}
}

// check checks the fields of a trigger against each other.
func (t *Trigger) validate() error {
	kinds := 0
	for _, there := range []bool{t.Webhook != nil, t.Cron != nil, t.CloudEvents != nil, t.NATS != nil, t.Files != nil} {
		if there {
			kinds++
		}
	}
	if kinds != 1 {
		return errors.New("a trigger needs webhook, cron, cloudevents, nats or files, and only a single kind")
	}
	if w := t.Webhook; w != nil {
		switch {
		case w.Signature != "none" && w.Secret == "":
			return fmt.Errorf("the signature %s needs a secret", w.Signature)
		case w.Signature == "none" && w.Secret != "":
			return errors.New(`the signature "none" uses no secret`)
		case w.Signature != "hmac" && (w.Header != "" || w.Timestamp != ""):
			return errors.New("header and timestamp are for the signature hmac")
		}
		for _, h := range w.Headers {
			_, glob, _ := strings.Cut(h, ": ")
			if _, err := path.Match(glob, ""); err != nil {
				return fmt.Errorf("bad pattern %q: %w", glob, err)
			}
		}
		return checkGlobs(w.Paths)
	}
	if c := t.Cron; c != nil {
		_, err := ParseSchedule(c.Schedule, c.Zone)
		return err
	}
	if n := t.NATS; n != nil {
		if n.Stream != "" && n.Queue != "" {
			return errors.New("a stream's messages are shared without a queue")
		}
		return nil
	}
	if f := t.Files; f != nil {
		if len(f.Path) > maxFilesPath {
			return fmt.Errorf("the pattern of files has more than %d bytes", maxFilesPath)
		}
		if slices.ContainsFunc(strings.Split(f.Path, "/"), func(s string) bool { return s == "." || s == ".." }) {
			return fmt.Errorf("bad pattern %q: must stay below /work", f.Path)
		}
		_, err := glob.Parse(f.Path)
		return err
	}
	return errors.Join(checkGlobs(t.CloudEvents.Types), checkGlobs(t.CloudEvents.Sources))
}

func checkGlobs(globs []string) error {
	for _, g := range globs {
		if _, err := path.Match(g, ""); err != nil {
			return fmt.Errorf("bad pattern %q: %w", g, err)
		}
	}
	return nil
}
