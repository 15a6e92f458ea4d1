package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/fre-engine/fre/api"
)

func revisionsPath(function string) string {
	return "/v1/functions/" + url.PathEscape(function) + "/revisions"
}

// Revisions lists a function's revisions, the newest first.
func (g Functions) Revisions(ctx context.Context, function string) (api.Revisions, error) {
	return get[api.Revisions](ctx, g.c, revisionsPath(function), nil)
}

// RemoveRevision removes a stored revision. The engine refuses the newest revision, and a
// revision with traffic or an alias.
func (g Functions) RemoveRevision(ctx context.Context, function, revision string) error {
	return g.c.call(ctx, http.MethodDelete, revisionsPath(function)+"/"+url.PathEscape(revision), nil, "", nil, nil)
}

// Split splits a function's events among its revisions.
func (g Functions) Split(ctx context.Context, function string, r api.SplitRequest) (api.Revisions, error) {
	return post[api.Revisions](ctx, g.c, "/v1/functions/"+url.PathEscape(function)+"/split", r)
}

// Rollback sends all of a function's events to an earlier revision.
func (g Functions) Rollback(ctx context.Context, function string, r api.RollbackRequest) (api.Revisions, error) {
	return post[api.Revisions](ctx, g.c, "/v1/functions/"+url.PathEscape(function)+"/rollback", r)
}

// SetAliases adds and removes names of revisions.
func (g Functions) SetAliases(ctx context.Context, function string, r api.AliasRequest) (api.Revisions, error) {
	return post[api.Revisions](ctx, g.c, "/v1/functions/"+url.PathEscape(function)+"/aliases", r)
}
