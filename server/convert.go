package server

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

func imageOf(img *store.Image) api.Image {
	var config struct {
		Base   string            `json:"base"`
		Labels map[string]string `json:"labels"`
	}
	_ = json.Unmarshal(img.Config, &config) // a foreign configuration has no base
	return api.Image{
		Digest: string(img.Digest), Name: img.Name, Version: img.Version, Names: img.Names, Base: config.Base, Kind: config.Labels[image.LabelKind],
		Created: img.Created.UTC(), Size: img.Size, Files: img.Files,
	}
}

func partOf(p store.Part) api.Part {
	return api.Part{Kind: p.Kind, Name: p.Name, Version: p.Version, Tree: string(p.Tree), Prefix: p.Prefix, Hash: p.Hash}
}

func functionOf(f *engine.Function) api.Function {
	return api.Function{
		Name: f.Name, Image: string(f.Image), ImageRef: f.ImageRef, Base: f.Config.Base, Pipeline: f.Config.Pipeline, Tenant: f.Config.Tenant,
		Deployed: f.Deployed.UTC(), Instances: f.Instances, Busy: f.Busy, Queued: f.Queued, Fork: f.Fork,
		Invocations: f.Invocations, Failures: f.Failures, Revision: f.Revision, Latest: f.Latest,
	}
}

func progressOf(e image.Progress) *api.Progress {
	return &api.Progress{Step: e.Step, Name: e.Name, Message: e.Message, Done: e.Done, Total: e.Total, Unit: e.Unit, End: e.End}
}

func sandboxOf(b *live.Sandbox) api.Sandbox {
	out := api.Sandbox{
		ID: b.ID, Function: b.Function, Revision: b.Revision, Name: b.Name, Image: b.Image, Tenant: b.Tenant, Command: b.Command,
		State: string(b.State), PID: b.PID, Created: b.Created.UTC(), Defences: b.Defences,
	}
	if !b.Ended.IsZero() {
		ended := b.Ended.UTC()
		out.Ended = &ended
	}
	if b.Exit != nil {
		exit := exitOf(*b.Exit)
		out.Exit = &exit
	}
	return out
}

func exitOf(s sandbox.ExitStatus) api.Exit {
	return api.Exit{Code: s.Code, Signal: s.Signal, OOMKilled: s.OOMKilled, CPUNanos: int64(s.CPU / time.Nanosecond), MaxMemoryBytes: s.MaxMemory}
}

func statsOf(s sandbox.Stats) *api.Stats {
	return &api.Stats{MemoryBytes: s.MemoryBytes, CPUNanos: int64(s.CPU), Processes: s.Processes, TmpBytes: s.TmpBytes, TmpFiles: s.TmpInodes}
}

func logLineOf(l live.LogLine) *api.LogLine {
	return &api.LogLine{Time: l.Time, Function: l.Function, Revision: l.Revision, Sandbox: l.Sandbox, Invocation: l.Invocation, Stream: l.Stream, Level: l.Level, Text: l.Text}
}

// Checks converts the engine's checks of the host, for programs that run without an engine.
func Checks(checks []engine.Check) []api.Check { return list(checks, checkOf) }

func checkOf(c engine.Check) api.Check {
	out := api.Check{
		ID: c.ID, Name: c.Name, OK: c.OK, Optional: c.Optional, Found: c.Found, Does: c.Does, Effect: c.Effect, Next: c.Next,
		CostNanos: c.Cost.Time.Nanoseconds(), CostOf: c.Cost.Of,
	}
	if c.Cost.Err != nil {
		out.CostOf = fmt.Sprintf("%s was not measured: %v", c.Cost.Of, c.Cost.Err)
	}
	return out
}

func imageUsageOf(i engine.ImageUsage) api.ImageUsage {
	return api.ImageUsage{
		Digest: string(i.Digest), Name: i.Name, Version: i.Version, InUse: i.InUse,
		Bytes: i.Bytes, Inodes: i.Inodes, UniqueBytes: i.UniqueBytes, UniqueInodes: i.UniqueInodes,
	}
}

func tenantUsageOf(t live.TenantUsage) api.TenantUsage {
	out := api.TenantUsage{Name: t.Name, Kind: string(t.Kind), Bytes: t.Bytes, Inodes: t.Inodes, LimitBytes: t.Limit}
	out.AsOf = asOf(t.Usage)
	return out
}

func containerUsageOf(c engine.ContainerUsage) api.ContainerUsage {
	return api.ContainerUsage{ID: c.ID, Name: c.Name, Running: c.Running, Bytes: c.Bytes, Inodes: c.Inodes, AsOf: asOf(c.Usage)}
}

// asOf returns the time of measurement, or nil if none.
func asOf(u volume.Usage) *time.Time {
	if u.AsOf.IsZero() {
		return nil
	}
	t := u.AsOf.UTC()
	return &t
}

func built(img *store.Image, lock *image.Lock) api.BuildLine {
	shown := imageOf(img)
	line := api.BuildLine{Image: &shown}
	if lock != nil {
		raw, err := json.Marshal(lock)
		if err != nil { // a malformed RawMessage is the only cause
			return api.BuildLine{Error: errorOf(fmt.Errorf("encode lock file: %w", err))}
		}
		line.Lock = raw
	}
	return line
}

func agentOf(a *engine.Agent) api.Agent {
	network := string(a.Network.Mode)
	if network == "" {
		network = string(template.NetworkNone)
	}
	return api.Agent{
		ID: a.ID, Tenant: a.Tenant, Image: a.Image, Snapshot: string(a.Snapshot), Network: network, Allow: a.Network.Allow,
		MemoryBytes: a.Resources.MemoryBytes, CPUMillis: a.Resources.CPUMillis, WorkBytes: a.WorkBytes,
		Created: a.Created, Used: a.Used, Expires: a.Expires, By: a.By, Busy: a.Busy, Running: a.Running, OOMKills: a.OOMKills,
	}
}

func snapshotOf(img *store.Image) api.Snapshot {
	return api.Snapshot{Name: img.Built, Digest: string(img.Digest), Tenant: build.ImageTenant(img), Created: img.Created, Bytes: img.Size, Files: img.Files}
}

// list converts every element. list never returns nil, because JSON must have [] instead of
// null.
func list[In, Out any](in []In, convert func(In) Out) []Out {
	out := make([]Out, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}
