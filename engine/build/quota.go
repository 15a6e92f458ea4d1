package build

import (
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// TenantUse returns the current use of a tenant.
func (l *Library) TenantUse(tenant string) live.Use {
	out := l.cfg.Tenants.Share(tenant).Now()
	out.Builds, out.WaitingBuilds = l.Builds(tenant)
	for _, img := range l.store.Images() {
		if ImageTenant(img) == tenant {
			out.Images++
			out.ImageBytes += img.Size
		}
	}
	return out
}

// ImageTenant returns the tenant whose function the image is, or "" for a base environment or a
// container's image.
func ImageTenant(img *store.Image) string {
	c, err := image.ConfigOf(img)
	if err != nil || c.Protocol == image.ProtocolNone || c.Protocol == "" {
		return ""
	}
	return c.Tenant
}

// CheckImages refuses a build early if the tenant has reached its quota of images. Admit
// decides finally.
func (l *Library) CheckImages(tenant string) error {
	q := l.cfg.Tenants.Quotas(tenant)
	if q.Images == 0 && q.ImageBytes == 0 {
		return nil
	}
	use := l.TenantUse(tenant)
	switch {
	case q.Images > 0 && use.Images >= q.Images:
		return &live.QuotaError{Tenant: tenant, What: "images", Limit: q.Images}
	case q.ImageBytes > 0 && use.ImageBytes >= q.ImageBytes:
		return &live.QuotaError{Tenant: tenant, What: "bytes of images", Limit: q.ImageBytes}
	}
	return nil
}
