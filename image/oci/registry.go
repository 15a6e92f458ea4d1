package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/store"
)

// Auth is a login at a registry. The zero value is an anonymous login.
type Auth struct {
	Username, Password string
	IdentityToken      string // of an OAuth2 login
	RegistryToken      string // a bearer token, sent unchanged
}

// RegistryOptions say how to reach a registry.
type RegistryOptions struct {
	Options
	// Auth is sent to the registry, and to no other host; nil: the login in the docker
	// configuration of this process's user (docker login).
	Auth *Auth
	// Insecure names hosts, with port, that FRE may reach without TLS. Loopback addresses need no
	// entry.
	Insecure []string
	// Transport carries the requests; nil: a transport that reaches all hosts that this host
	// reaches.
	Transport http.RoundTripper
	// Cache is a directory for the bytes of interrupted downloads, from which the next pull
	// continues; "" for none.
	Cache string
	// Sites describe the packages in bills of materials.
	Sites []image.Site

	pause func(ctx context.Context, d time.Duration) error // for tests; nil means sleep
}

// Remote describes an image at a registry.
type Remote struct {
	Name   string       // the image's name in the store, "" after a pull by digest
	Digest store.Digest // of its manifest, or of its index
	Size   int64        // of the manifest, in bytes
}

// Host returns the registry of a reference, with its port: "index.docker.io" for a reference
// without a host. Errors: ErrReference.
func Host(ref string) (string, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrReference, err)
	}
	return r.Context().RegistryStr(), nil
}

// Login checks that the registry on a host accepts o.Auth, which must not be nil. A registry
// without logins accepts all.
//
// Errors: ErrReference for a malformed host; ErrRegistry (fs.ErrPermission if the registry
// refuses).
func Login(ctx context.Context, host string, o RegistryOptions) error {
	if err := login(ctx, host, o); err != nil {
		return fmt.Errorf("log in: %w", reason(ctx, err))
	}
	return nil
}

func login(ctx context.Context, host string, o RegistryOptions) error {
	var opts []name.Option
	if slices.Contains(o.Insecure, host) {
		opts = append(opts, name.Insecure)
	}
	r, err := name.NewRegistry(host, opts...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReference, err)
	}
	t, err := transport.NewWithContext(ctx, r, o.Auth.authenticator(), o.transport(r), nil)
	if err != nil {
		return registryError(r, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Scheme()+"://"+r.RegistryStr()+"/v2/", nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req) // by the scheme of the registry's challenge
	if err != nil {
		return registryError(r, err)
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return registryError(r, err)
	}
	return nil
}

func (a *Auth) authenticator() authn.Authenticator {
	if *a == (Auth{}) {
		return authn.Anonymous // ggcr recognises an anonymous login only by this value
	}
	return authn.FromConfig(authn.AuthConfig{
		Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	})
}

// open parses the reference and makes the client's options.
func (o RegistryOptions) open(ctx context.Context, ref string) (name.Reference, []remote.Option, error) {
	var opts []name.Option
	r, err := name.ParseReference(ref)
	if err == nil && slices.Contains(o.Insecure, r.Context().RegistryStr()) {
		opts = append(opts, name.Insecure)
		r, err = name.ParseReference(ref, opts...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	return r, o.options(ctx, r), nil
}

// options returns the client's options.
func (o RegistryOptions) options(ctx context.Context, r name.Reference) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithJobs(atOnce), remote.WithUserAgent("fre"),
		remote.WithTransport(o.transport(r.Context().Registry)), remote.WithAuthFromKeychain(o.keychain()),
		remote.WithRetryStatusCodes(), remote.WithRetryPredicate(func(error) bool { return false }), // retried decides instead
	}
}

// pushing returns the client's options for uploads.
func (o RegistryOptions) pushing(ctx context.Context, r name.Reference) []remote.Option {
	return append(o.options(ctx, r), remote.WithRetryPredicate(breaks), remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: 4}))
}

// keychain returns the given login, or docker's keychain.
func (o RegistryOptions) keychain() authn.Keychain {
	if o.Auth == nil {
		return authn.DefaultKeychain
	}
	return given{o.Auth}
}

type given struct{ auth *Auth }

// Resolve implements authn.Keychain. It ignores the resource: the login was given for this
// registry.
func (g given) Resolve(authn.Resource) (authn.Authenticator, error) {
	return g.auth.authenticator(), nil
}

// transport returns the transport for a registry.
func (o RegistryOptions) transport(r name.Registry) http.RoundTripper {
	return &retried{o.guard(r), o.pauser()}
}

// denied is a registry's refusal. errors.Is finds fs.ErrPermission, but the message leaves out that
// error's text.
type denied struct{ error }

func (d denied) Unwrap() error        { return d.error }
func (d denied) Is(target error) bool { return target == fs.ErrPermission }

// Code returns [failure.Forbidden].
func (d denied) Code() failure.Code { return failure.Forbidden }

// Next returns the next step.
func (d denied) Next() string {
	return "log in as yourself (docker login), or with --username and --password-stdin"
}

// registryError distinguishes a registry's answer from a network error, and names the next step.
func registryError(r interface{ RegistryStr() string }, err error) error {
	host := r.RegistryStr()
	var said *transport.Error
	var network net.Error
	var refused *outward.RefusedError
	switch {
	case errors.As(err, &refused): // drop ggcr's text about attempts with and without TLS
		return failure.Wrap(refused.Code(), fmt.Errorf("%w %s: %w", ErrRegistry, host, refused), refused.Next())
	case errors.As(err, &said):
		switch said.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return denied{fmt.Errorf("%w %s refuses the request: log in (docker login %s), or check the name: %w", ErrRegistry, host, host, said)}
		case http.StatusNotFound:
			return failure.Wrap(failure.NotFound, fmt.Errorf("%w %s: %w: %w", ErrRegistry, host, fs.ErrNotExist, said), "")
		}
		return fmt.Errorf("%w %s: %w", ErrRegistry, host, said)
	case errors.As(err, &network):
		return fmt.Errorf("%w %s cannot be reached: %w", ErrRegistry, host, err)
	}
	return fmt.Errorf("%w %s: %w", ErrRegistry, host, err)
}

func (o RegistryOptions) guard(r name.Registry) *guard {
	return &guard{o.Insecure, loopback(&url.URL{Host: r.RegistryStr()}), patience, o.Transport}
}

// again repeats f while it fails by a broken connection.
func (o RegistryOptions) again(ctx context.Context, f func() error) error {
	for n := 0; ; n++ {
		err := f()
		if err == nil || n == retries-1 || ctx.Err() != nil || !breaks(err) {
			return err
		}
		if err := o.pauser()(ctx, backoff(n)); err != nil {
			return err
		}
	}
}

// pauser returns the function that waits between attempts.
func (o RegistryOptions) pauser() func(context.Context, time.Duration) error {
	if o.pause != nil {
		return o.pause
	}
	return sleep
}

// Resolve asks the registry for the digest of a reference (the index's digest if the image has an
// index) and returns "name@sha256:…". Errors: ErrReference, ErrRegistry.
func Resolve(ctx context.Context, ref string, o RegistryOptions) (string, error) {
	r, options, err := o.open(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", ref, err)
	}
	d, err := remote.Head(r, options...)
	if err != nil { // HEAD answers of some registries are incomplete
		var got *remote.Descriptor
		if got, err = remote.Get(r, options...); err != nil {
			return "", fmt.Errorf("resolve %s: %w", ref, reason(ctx, registryError(r.Context(), err)))
		}
		d = &got.Descriptor
	}
	return signature.Repository(r.Context().Name()) + "@" + d.Digest.String(), nil
}
