package server

import (
	"net/http"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
)

// diskUsage answers GET /v1/system/df.
func (s *server) diskUsage(w http.ResponseWriter, _ *http.Request) error {
	u, err := s.engine.DiskUsage()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.DiskUsage{
		Images: list(u.Images, imageUsageOf), ImageBytes: u.ImageBytes, ImageInodes: u.ImageInodes, ReclaimableBytes: u.ReclaimableBytes,
		Tenants: list(u.Tenants, tenantUsageOf),
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
	if !t.AsOf.IsZero() {
		asOf := t.AsOf.UTC()
		out.AsOf = &asOf
	}
	return out
}
