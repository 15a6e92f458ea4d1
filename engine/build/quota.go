package build

import (
	"context"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
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

// ErrOthersImage says that an image pulled for one tenant is an image of another tenant's
// function. It would count against the other tenant's quota.
var ErrOthersImage = failure.New(failure.Template, "the image belongs to another tenant's function", "name an image to build functions on")

// Admitting returns a context under which the store calls Admit for each new image before
// any file of the image is written. by is the tenant of the build, "" for a change to an image.
func (l *Library) Admitting(ctx context.Context, by string) context.Context {
	return store.WithAdmission(ctx, func(img *store.Image) (done func(), err error) { return l.Admit(ctx, img, by) })
}

// Admit refuses an image that would exceed its tenant's quotas of images or bytes: a
// *QuotaError. The caller calls done when the image is in the lists or has failed. With such
// quotas the tenant's next image waits until done is called: two concurrent images cannot
// both take the rest of a quota.
func (l *Library) Admit(ctx context.Context, img *store.Image, by string) (done func(), err error) {
	none := func() {}
	tenant := ImageTenant(img)
	if tenant == "" {
		return none, l.admitBase(img, by)
	}
	if by != "" && tenant != by {
		return nil, ErrOthersImage
	}
	if q := l.cfg.Tenants.Quotas(tenant); q.Images == 0 && q.ImageBytes == 0 {
		return none, nil
	}
	u := l.buildsOf(tenant)
	select {
	case u.storing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	done = func() { <-u.storing }
	if _, err := l.store.Image(string(img.Digest)); err == nil { // another build has made the same image meanwhile
		return done, nil
	}
	q, use := l.cfg.Tenants.Quotas(tenant), l.TenantUse(tenant)
	switch {
	case q.Images > 0 && use.Images+1 > q.Images:
		err = &live.QuotaError{Tenant: tenant, What: "images", Limit: q.Images}
	case q.ImageBytes > 0 && use.ImageBytes+img.Size > q.ImageBytes:
		err = &live.QuotaError{Tenant: tenant, What: "bytes of images", Limit: q.ImageBytes}
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// admitBase refuses a base of a build, for example from a registry, that alone exceeds the rest
// of the tenant's quota: the build's image would hold all of the base's files. A stored base
// counts against no tenant, because tenants share it.
func (l *Library) admitBase(img *store.Image, by string) error {
	q := l.cfg.Tenants.Quotas(by)
	if by == "" || q.ImageBytes == 0 {
		return nil
	}
	if c, err := image.ConfigOf(img); err != nil || c.Labels[image.LabelKind] == image.KindTools {
		return err
	}
	if l.TenantUse(by).ImageBytes+img.Size > q.ImageBytes {
		return &live.QuotaError{Tenant: by, What: "bytes of images", Limit: q.ImageBytes}
	}
	return nil
}
