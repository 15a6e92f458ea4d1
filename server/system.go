package server

import (
	"net/http"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/volume"
)

// diskUsage answers GET /v1/system/df.
func (s *server) diskUsage(w http.ResponseWriter, _ *http.Request) error {
	u, err := s.engine.DiskUsage()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.DiskUsage{
		Images: list(u.Images, imageUsageOf), ImageBytes: u.ImageBytes, ImageInodes: u.ImageInodes, ReclaimableBytes: u.ReclaimableBytes,
		Tenants: list(u.Tenants, tenantUsageOf), Containers: list(u.Containers, containerUsageOf),
		Cache: api.CacheUsage{Bytes: u.Cache.Bytes, Inodes: u.Cache.Inodes, AsOf: asOf(u.Cache)},
	})
}

// status answers GET /v1/status.
func (s *server) status(w http.ResponseWriter, _ *http.Request) error {
	st, err := s.engine.Status()
	if err != nil {
		return err
	}
	state := st.State.String()
	if st.Stopping {
		state = "stopping"
	}
	var connections buffer.Stats
	if p := s.cfg.Connections; p != nil {
		connections = p.Stats()
	}
	return reply(w, http.StatusOK, api.Status{
		Version: s.cfg.Version, Started: st.Started, State: state, Reason: string(st.Reason), Since: st.Since,
		Events: api.EventStatus{Running: st.Events, Limit: st.MostEvents, Waiting: st.Waiting, Queued: st.Queued, Functions: st.Functions},
		Functions: list(st.Busiest, func(f engine.FunctionLoad) api.FunctionLoad {
			return api.FunctionLoad{Name: f.Name, Instances: f.Instances, Busy: f.Busy, Waiting: f.Waiting, Queued: f.Queued}
		}),
		Buffers: bufferStatusOf(st.Buffers), Connections: bufferStatusOf(connections),
		Sandboxes: api.SandboxStatus{Live: st.Sandboxes, Bare: st.Parked.Bare, Attached: st.Parked.Attached, Cgroups: st.Cgroups},
	})
}

func bufferStatusOf(b buffer.Stats) api.BufferStatus {
	return api.BufferStatus{Bytes: b.Bytes, Held: b.Held, Peak: b.Peak, High: b.High, Low: b.Low, Pressed: b.Pressed, Waiting: b.Waiting}
}

func imageUsageOf(i engine.ImageUsage) api.ImageUsage {
	return api.ImageUsage{
		Digest: string(i.Digest), Name: i.Name, Version: i.Version, InUse: i.InUse,
		Bytes: i.Bytes, Inodes: i.Inodes, UniqueBytes: i.UniqueBytes, UniqueInodes: i.UniqueInodes,
	}
}

func tenantUsageOf(t engine.TenantUsage) api.TenantUsage {
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
