package engine

import (
	"errors"
	"testing"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
)

// TestReconfigure: Reconfigure makes a function's image with another configuration, under the
// tenant's quota. An image without a function is refused.
func TestReconfigure(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{})
	of := r.image("f", nil)
	forAcme := func(c *image.Config) error {
		c.Tenant, c.Env = "acme", append(c.Env, "GREETING=hello")
		return nil
	}
	img, err := r.Reconfigure(t.Context(), of, "other", nil, forAcme)
	if err != nil {
		t.Fatal(err)
	}
	if build.ImageTenant(img) != "acme" || build.ImageTenant(of) != "default" {
		t.Errorf("they are of %s and %s, want acme and default", build.ImageTenant(img), build.ImageTenant(of))
	}
	if _, err := r.Deploy(t.Context(), "other.acme", img, DeployOptions{Within: "acme"}); err != nil {
		t.Fatal(err)
	}
	r.mustCall("other.acme", "/", "x", "x")

	images := len(r.store.Images())
	var full *live.QuotaError
	now.Store(&live.Quotas{Images: 1})
	if _, err := r.Reconfigure(t.Context(), of, "more", nil, func(c *image.Config) error { c.Instances.Max = 3; return forAcme(c) }); !errors.As(err, &full) || full.Tenant != "acme" {
		t.Errorf("a second image of one: %v, want a QuotaError", err)
	}
	now.Store(&live.Quotas{ImageBytes: r.TenantUse("acme").ImageBytes + 1})
	if _, err := r.Reconfigure(t.Context(), of, "more", nil, func(c *image.Config) error { c.Instances.Max = 4; return forAcme(c) }); !errors.As(err, &full) {
		t.Errorf("an image of more bytes than are left: %v, want a QuotaError", err)
	}
	now.Store(&live.Quotas{})
	refused := errors.New("refused")
	if _, err := r.Reconfigure(t.Context(), of, "more", nil, func(*image.Config) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("an edit that fails: %v", err)
	}
	if n := len(r.store.Images()); n != images {
		t.Errorf("what was refused has left %d images", n-images)
	}
	plain := r.image("plain", func(c *image.Config) { c.Protocol, c.Args = image.ProtocolNone, nil })
	if _, err := r.Reconfigure(t.Context(), plain, "more", nil, forAcme); !errors.Is(err, ErrNotReady) {
		t.Errorf("an image that is no function: %v, want %v", err, ErrNotReady)
	}
}
