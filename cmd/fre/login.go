package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

// login returns the user's login for the registry of a reference, from docker's configuration
// (docker login; auths, credHelpers, credsStore) or else podman's. Credential helpers run here, as
// the user. The result is never nil: without a login the user is anonymous at the registry, and
// does not get the login of the engine's user.
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

// baseLogin returns the login for the registry of the template's base image. It returns nil if the
// base comes from no registry, or without a login: then the engine's own user may have a login.
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
	return failure.Hint(
		fmt.Errorf("login for %s from docker's configuration: %w", r.Context().RegistryStr(), err),
		"correct config.json or its credentials helper; or give --username and --password-stdin to fre pull, fre push or fre image sign")
}

// authFlags are a registry's login.
type authFlags struct {
	user  string
	stdin bool
}

func (a *authFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.user, "username", "", "user `name` at the registry; needs --password-stdin")
	cmd.Flags().BoolVar(&a.stdin, "password-stdin", false, "read the password from standard input")
}

// read returns the login for the registry of a reference: from the flags, or docker's.
func (a *authFlags) read(cmd *cobra.Command, ref string) (*api.RegistryAuth, error) {
	if (a.user == "") == a.stdin {
		return nil, command.Usage(errors.New("--username and --password-stdin go together"))
	}
	if a.user == "" {
		return login(cmd.Context(), ref)
	}
	b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 64<<10))
	if err != nil {
		return nil, fmt.Errorf("read password: %w", err)
	}
	return &api.RegistryAuth{Username: a.user, Password: strings.TrimRight(string(b), "\r\n")}, nil
}
