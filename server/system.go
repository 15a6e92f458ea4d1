package server

import (
	"net/http"
	"time"

	"github.com/fre-engine/fre/api"
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

// asOf is when something was counted, nil for not yet.
func asOf(u volume.Usage) *time.Time {
	if u.AsOf.IsZero() {
		return nil
	}
	t := u.AsOf.UTC()
	return &t
}
