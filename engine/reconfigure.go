package engine

import (
	"context"
	"fmt"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Reconfigure makes an image from a function's image with an edited configuration
// ([image.Builder.Reconfigure]). The new image counts against the tenant's quota. Errors: those
// of the builder, *[live.QuotaError], ErrNotReady.
func (e *Engine) Reconfigure(ctx context.Context, img *store.Image, name string, links map[string]string, edit func(*image.Config) error) (out *store.Image, err error) {
	err = e.life.While(ctx, func(ctx context.Context) error {
		out, err = e.cfg.Builder.Reconfigure(e.Admitting(ctx, ""), img, name, links, func(c *image.Config) error {
			if c.Protocol == image.ProtocolNone || len(c.Args) == 0 {
				return fmt.Errorf("%s: %w", name, ErrNotReady)
			}
			if err := edit(c); err != nil {
				return err
			}
			return e.CheckImages(c.Tenant)
		})
		return err
	})
	return out, err
}
