package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// login is what the docker configuration of whoever calls fre says for the registry
// of a reference (docker login; auths, credHelpers, credsStore; podman's file where
// there is none of docker's). Helpers run here, as that user. It is never nil: whoever
// has no login is nobody at the registry, and not the user that the engine runs as.
func login(ctx context.Context, ref string) (*api.RegistryAuth, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return &api.RegistryAuth{}, nil //nolint:nilerr // a digest, or what the engine refuses with better words
	}
	a, err := authn.Resolve(ctx, authn.DefaultKeychain, r.Context())
	if err != nil {
		return nil, loginError(r, err)
	}
	c, err := authn.Authorization(ctx, a)
	if err != nil {
		return nil, loginError(r, err)
	}
	return &api.RegistryAuth{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}, nil
}

// baseLogin is the login for the registry of the image that the template in dir
// stands on; nil where that is none of a registry's, or there is no login: the
// engine's own user may have one.
func baseLogin(ctx context.Context, cl *client.Client, dir string) (client.Logins, error) {
	src, err := os.ReadFile(filepath.Join(dir, api.TemplateFile))
	if err != nil || !bytes.Contains(src, []byte("oci:")) {
		return nil, err
	}
	t, err := cl.CheckTemplate(ctx, src)
	if err != nil {
		return nil, nil //nolint:nilerr // the build says what is wrong with it, and where
	}
	ref, ok := strings.CutPrefix(t.Base, "oci:")
	if !ok {
		return nil, nil
	}
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, nil //nolint:nilerr // an image of the store
	}
	auth, err := login(ctx, ref)
	if err != nil || *auth == (api.RegistryAuth{}) {
		return nil, err
	}
	return client.Logins{r.Context().RegistryStr(): *auth}, nil
}

func loginError(r name.Reference, err error) error {
	return &hintError{
		fmt.Errorf("login for %s from docker's configuration: %w", r.Context().RegistryStr(), err),
		"correct config.json, or the credentials helper that it names; pull, push and sign take --username and --password-stdin instead",
	}
}
