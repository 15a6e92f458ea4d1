package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// Images works on images: the list, builds, archives and registries.
type Images struct{ c *Client }

// Images returns the calls for images.
func (c *Client) Images() Images { return Images{c} }

// List returns the store's images, newest first.
func (g Images) List(ctx context.Context) ([]api.Image, error) {
	return get[[]api.Image](ctx, g.c, "/v1/images", nil)
}

// Changes returns the changes of the image list since a generation. For 0, the answer has
// the whole list and the generation to continue from.
func (g Images) Changes(ctx context.Context, since uint64) (api.ImageChanges, error) {
	return get[api.ImageChanges](ctx, g.c, "/v1/images", url.Values{"since": {strconv.FormatUint(since, 10)}})
}

// Get returns the image with the given name, name:version, digest or digest prefix.
func (g Images) Get(ctx context.Context, ref string) (api.ImageDetails, error) {
	return get[api.ImageDetails](ctx, g.c, "/v1/images/"+url.PathEscape(ref), nil)
}

// History returns the steps that made an image, last step first.
func (g Images) History(ctx context.Context, ref string) ([]api.HistoryStep, error) {
	return get[[]api.HistoryStep](ctx, g.c, "/v1/images/"+url.PathEscape(ref)+"/history", nil)
}

// SBOM returns an image's bill of materials, as CycloneDX JSON.
func (g Images) SBOM(ctx context.Context, ref string) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, g.c, "/v1/images/"+url.PathEscape(ref)+"/sbom", nil)
}

// Tag adds a name to an image: "name:version", or "name" for version "latest".
func (g Images) Tag(ctx context.Context, ref, name string) (api.Image, error) {
	return post[api.Image](ctx, g.c, "/v1/images/"+url.PathEscape(ref)+"/tag", api.TagRequest{Name: name})
}

// RemoveOptions adjust [Images.Remove] and [Containers.Remove].
type RemoveOptions struct {
	Force bool // remove an image with several names by digest, or a running container
}

// Remove removes a name. Remove also removes the image if the name was the last name,
// or if ref is a digest.
func (g Images) Remove(ctx context.Context, ref string, o RemoveOptions) (api.RemovedImage, error) {
	var out api.RemovedImage
	q := url.Values{"force": {strconv.FormatBool(o.Force)}}
	err := g.c.call(ctx, http.MethodDelete, "/v1/images/"+url.PathEscape(ref), q, "", nil, &out)
	return out, err
}

// Prune removes unused images by the rules of r.
func (g Images) Prune(ctx context.Context, r api.PruneRequest) (api.GCReport, error) {
	return post[api.GCReport](ctx, g.c, "/v1/images/prune", r)
}
