package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Auth is what a registry may ask for. The zero value is nobody.
type Auth struct {
	Username, Password string
	IdentityToken      string // of an OAuth2 login
	RegistryToken      string // a bearer token as it is
}

// RegistryOptions say how to reach a registry.
type RegistryOptions struct {
	Options
	// Auth is given to the registry; nil: what the docker configuration of the
	// user that the engine runs as says (docker login).
	Auth *Auth
	// Insecure names hosts, with their port, that may be spoken to without TLS.
	// Loopback addresses may always.
	Insecure []string
}

// PullOptions adjust Pull.
type PullOptions struct {
	RegistryOptions
	Platform string // "linux/amd64"; "" is the engine's, and so is every other that works
}

// Remote is what is known of an image at a registry.
type Remote struct {
	Name   string       // the image's name in the store, "" for a pull by digest
	Digest store.Digest // of its manifest, or of its index
	Size   int64        // of the manifest, in bytes
}

// Pull gets the image of a reference from its registry ("busybox", docker.io's
// library; "host:5000/team/app:1.2"; "name@sha256:…"). Layers come beside each
// other, unpacked as they arrive; those the store has are not fetched. It is
// named as the reference says, without docker.io/library. A pull by digest
// gives it no name. Either way it is known as "name@sha256:…" from then on.
//
// Errors: ErrReference, ErrRegistry (fs.ErrNotExist, fs.ErrPermission where the
// registry says so), ErrPlatform, ErrLayer, ErrLimit, ErrArchive.
func Pull(ctx context.Context, s *store.Store, ref string, o PullOptions) (*store.Image, Remote, error) {
	img, remote, err := pull(ctx, s, ref, o)
	if err != nil {
		return nil, Remote{}, fmt.Errorf("pull %s: %w", ref, reason(ctx, err))
	}
	return img, remote, nil
}

func pull(ctx context.Context, s *store.Store, ref string, o PullOptions) (*store.Image, Remote, error) {
	defer s.Hold()()
	j := newJob(s, o.Options)
	src, r, found, err := j.find(ctx, ref, o)
	if err != nil {
		return nil, Remote{}, err
	}
	names := []string{remoteName(r, found.Digest)}
	if tag, ok := r.(name.Tag); ok {
		found.Name = Familiar(tag.Context().Name() + ":" + tag.TagStr())
		names = append(names, found.Name)
	}
	out, err := j.bring(ctx, src, names)
	return out, found, err
}

// find asks the registry for the image of a reference. ctx is that of its layers,
// too.
func (j *job) find(ctx context.Context, ref string, o PullOptions) (source, name.Reference, Remote, error) {
	r, options, err := o.open(ctx, ref)
	if err != nil {
		return source{}, nil, Remote{}, err
	}
	p, err := parsePlatform(o.Platform)
	if err != nil {
		return source{}, nil, Remote{}, err
	}
	puller, err := remote.NewPuller(append(options, remote.WithPlatform(p))...)
	if err != nil {
		return source{}, nil, Remote{}, err
	}
	desc, err := puller.Get(ctx, r)
	if err != nil {
		return source{}, nil, Remote{}, registryError(r.Context(), err)
	}
	img, err := desc.Image()
	if err != nil {
		if desc.MediaType.IsIndex() && strings.Contains(err.Error(), "no child with platform") {
			return source{}, nil, Remote{}, fmt.Errorf("%w: it is not there for %s", ErrPlatform, p)
		}
		return source{}, nil, Remote{}, registryError(r.Context(), err)
	}
	src, err := j.remote(puller, r, img)
	return src, r, Remote{Digest: store.Digest(desc.Digest.String()), Size: desc.Size}, err
}

// remoteName is what a registry calls an image: "name@sha256:…".
func remoteName(r name.Reference, d store.Digest) string {
	return Familiar(r.Context().Name()) + "@" + string(d)
}

// remote finds out where the image's pieces are.
func (j *job) remote(puller *remote.Puller, r name.Reference, img v1.Image) (source, error) {
	m, err := img.Manifest()
	if err != nil {
		return source{}, registryError(r.Context(), err)
	}
	if !m.Config.MediaType.IsConfig() {
		return source{}, fmt.Errorf("%w: its configuration is of the type %q: it is no image", ErrArchive, m.Config.MediaType)
	}
	if m.Config.Size < 0 || m.Config.Size > maxJSON || len(m.Layers) > maxLayers { // ggcr takes -1 for any
		return source{}, fmt.Errorf("%w: a configuration of %d bytes, %d layers", ErrLimit, m.Config.Size, len(m.Layers))
	}
	var src source
	if p, ok := j.store.Part(configKey(store.Digest(m.Config.Digest.String()))); ok {
		src.config, err = readConfig(j.store, p.Tree)
	} else if src.config, err = img.RawConfigFile(); err != nil { // checked against its digest
		err = registryError(r.Context(), err)
	}
	if err != nil {
		return source{}, err
	}
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > j.limits.Bytes {
			return source{}, fmt.Errorf("%w of %d bytes: layer %s has %d packed ones", ErrLimit, j.limits.Bytes, l.Digest, l.Size)
		}
		src.layers = append(src.layers, blob{size: l.Size, packed: &l, open: func(ctx context.Context) (io.ReadCloser, error) {
			layer, err := puller.Layer(ctx, r.Context().Digest(l.Digest.String()))
			var body io.ReadCloser
			if err == nil {
				body, err = layer.Compressed() // ends with an error where the digest is another
			}
			if err != nil {
				return nil, registryError(r.Context(), err)
			}
			return &download{body, r.Context(), l.Size}, nil
		}})
	}
	return src, nil
}

// download is a layer on its way from a registry, of as many bytes as its manifest
// says.
type download struct {
	io.ReadCloser
	from name.Repository
	left int64
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if d.left -= int64(n); d.left < 0 || err == io.EOF && d.left > 0 { //nolint:errorlint // a Reader's end is io.EOF itself
		return 0, fmt.Errorf("%w %s: a layer has another size than its manifest says", ErrRegistry, d.from.RegistryStr())
	}
	if err != nil && err != io.EOF { //nolint:errorlint // as above
		err = registryError(d.from, err)
	}
	return n, err
}

func parsePlatform(s string) (v1.Platform, error) {
	if s == "" {
		s = platform()
	}
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS != "linux" || p.Architecture != runtime.GOARCH {
		return v1.Platform{}, fmt.Errorf("%w: %q: this engine runs %s", ErrPlatform, s, platform())
	}
	return *p, nil
}

// Push sends an image of the store to the registry that ref names. Only OCI
// media types are sent: not every registry takes docker's own. What the
// registry has already is not sent. An image that has a name of that repository
// is known as "name@sha256:…" from then on.
//
// Errors: ErrReference, ErrRegistry, fs.ErrNotExist for an image that is not in
// the store.
func Push(ctx context.Context, s *store.Store, img *store.Image, ref string, o RegistryOptions) (Remote, error) {
	sent, err := push(ctx, s, img, ref, o)
	if err != nil {
		return Remote{}, fmt.Errorf("push %s: %w", ref, reason(ctx, err))
	}
	return sent, nil
}

func push(ctx context.Context, s *store.Store, img *store.Image, ref string, o RegistryOptions) (Remote, error) {
	defer s.Hold()()
	j := newJob(s, o.Options)
	r, options, err := o.open(ctx, ref)
	if err != nil {
		return Remote{}, err
	}
	out, err := j.outgoing(ctx, img)
	if err != nil {
		return Remote{}, err
	}
	dir, err := s.MkdirScratch()
	if err != nil {
		return Remote{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what stays the store's next Open removes
	puller, err := remote.NewPuller(options...)
	if err != nil {
		return Remote{}, err
	}
	there := func(ctx context.Context, d v1.Descriptor) bool {
		l, err := puller.Layer(ctx, r.Context().Digest(d.Digest.String()))
		if err != nil {
			return false // sending it finds out why
		}
		size, err := l.Size()
		return err == nil && size == d.Size
	}
	sent, err := j.pushable(ctx, out, dir, there)
	if err != nil {
		return Remote{}, err
	}
	final, err := partial.CompressedToImage(sent)
	if err != nil {
		return Remote{}, err
	}
	j.event(image.Event{Step: "push", Name: r.Name()})
	if err := remote.Write(r, final, options...); err != nil {
		return Remote{}, registryError(r.Context(), err)
	}
	for i, l := range out.layers {
		if err := j.remember(ctx, l.diff, l.tree, sent.order[i].Descriptor); err != nil {
			return Remote{}, err
		}
	}
	d, err := final.Digest()
	if err != nil {
		return Remote{}, err
	}
	known := Remote{Digest: store.Digest(d.String()), Size: int64(len(sent.manifest))}
	repository := Familiar(r.Context().Name())
	if !slices.ContainsFunc(img.Names, func(n string) bool { return strings.HasPrefix(n, repository+":") }) {
		return known, nil // the name was for this call only
	}
	// One that was removed meanwhile need not be known by it.
	if _, err := s.TagRemote(ctx, img.Digest, remoteName(r, known.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Remote{}, err
	}
	return known, nil
}

// pushable is an image as ggcr wants it: its layers packed in files.
type pushable struct {
	config, manifest []byte
	order            []*packedLayer
	layers           map[v1.Hash]*packedLayer // the same
}

// RawConfigFile is of partial.CompressedImageCore.
func (p *pushable) RawConfigFile() ([]byte, error) { return p.config, nil }

// RawManifest is of partial.CompressedImageCore.
func (p *pushable) RawManifest() ([]byte, error) { return p.manifest, nil }

// MediaType is of partial.CompressedImageCore.
func (p *pushable) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest is of partial.CompressedImageCore.
func (p *pushable) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if l := p.layers[h]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("layer %s: %w", h, fs.ErrNotExist)
}

type packedLayer struct {
	v1.Descriptor
	path string // "" where the registry has it
}

// Digest is of partial.CompressedLayer.
func (l *packedLayer) Digest() (v1.Hash, error) { return l.Descriptor.Digest, nil }

// Size is of partial.CompressedLayer: bytes.
func (l *packedLayer) Size() (int64, error) { return l.Descriptor.Size, nil }

// MediaType is of partial.CompressedLayer.
func (l *packedLayer) MediaType() (types.MediaType, error) { return l.Descriptor.MediaType, nil }

// Compressed is of partial.CompressedLayer.
func (l *packedLayer) Compressed() (io.ReadCloser, error) {
	if l.path == "" {
		return nil, fmt.Errorf("%w: it has lost layer %s just now: push again", ErrRegistry, l.Descriptor.Digest)
	}
	return os.Open(l.path)
}

// packedKey is under what the store remembers how a layer was packed last.
func packedKey(diff store.Digest) string { return "packed:" + string(diff) }

// remember keeps how a registry names a layer, as long as the layer's tree.
func (j *job) remember(ctx context.Context, diff, tree store.Digest, d v1.Descriptor) error {
	if tree == "" {
		return nil
	}
	return j.store.PutPart(ctx, packedKey(diff), store.Part{
		Kind: "packed", Name: d.Digest.String(), Version: strconv.FormatInt(d.Size, 10) + " " + string(d.MediaType), Tree: tree,
	})
}

// recall is the inverse of remember. Docker's media types say the same as OCI's.
func (j *job) recall(diff store.Digest) (d v1.Descriptor, ok bool) {
	p, ok := j.store.Part(packedKey(diff))
	if !ok {
		return d, false
	}
	size, media, _ := strings.Cut(p.Version, " ")
	var err error
	if d.Digest, err = v1.NewHash(p.Name); err != nil {
		return d, false
	}
	if d.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
		return d, false
	}
	if d.MediaType = types.MediaType(media); d.MediaType == types.DockerLayer {
		d.MediaType = types.OCILayer
	}
	return d, slices.Contains([]types.MediaType{types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer}, d.MediaType)
}

// pushable packs the layers into files below dir, the same bytes each time.
// Those that are there need no packing: a layer is packed once for a registry.
func (j *job) pushable(ctx context.Context, out *outgoing, dir string, there func(context.Context, v1.Descriptor) bool) (*pushable, error) {
	layers := make([]*packedLayer, len(out.layers))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, l := range out.layers {
		g.Go(func() error {
			if d, ok := j.recall(l.diff); ok && there(gctx, d) {
				layers[i] = &packedLayer{Descriptor: d}
				j.event(image.Event{Step: "layer", Name: short(l.diff), Message: "already there"})
				return nil
			}
			j.event(image.Event{Step: "layer", Name: short(l.diff), Message: "pack", Total: l.size})
			var err error
			layers[i], err = packLayer(gctx, l, filepath.Join(dir, strconv.Itoa(i)))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	p := &pushable{config: out.config, order: layers, layers: map[v1.Hash]*packedLayer{}}
	config, err := descriptor(types.OCIConfigJSON, digestOf(out.config), int64(len(out.config)))
	if err != nil {
		return nil, err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.Descriptor)
		p.layers[l.Descriptor.Digest] = l
	}
	p.manifest, err = json.Marshal(m)
	return p, err
}

func packLayer(ctx context.Context, l packing, path string) (*packedLayer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	hash := sha256.New()
	n := &countingWriter{w: io.MultiWriter(f, hash)}
	z := gzip.NewWriter(n)
	if err := l.write(ctx, z); err != nil {
		return nil, err
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		return nil, err
	}
	d, err := descriptor(types.OCILayer, store.Digest("sha256:"+hex.EncodeToString(hash.Sum(nil))), n.n)
	return &packedLayer{d, path}, err
}

// Login asks the registry on a host whether it takes o.Auth, which must be there.
// One that asks nobody for a login takes all.
//
// Errors: ErrReference for what is no host; ErrRegistry (fs.ErrPermission where
// it refuses).
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
	t, err := transport.NewWithContext(ctx, r, o.Auth.authenticator(), o.guard(r), nil)
	if err != nil {
		return registryError(r, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Scheme()+"://"+r.RegistryStr()+"/v2/", nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req) // by the scheme that the registry answers
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
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithJobs(atOnce), remote.WithUserAgent("fre"),
		remote.WithTransport(o.guard(r.Context().Registry)),
	}
	if o.Auth != nil {
		options = append(options, remote.WithAuth(o.Auth.authenticator()))
	} else {
		options = append(options, remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	return r, options, nil
}

// guard stands between ggcr and the network. It lets nothing leave without TLS
// but to where it may: ggcr falls back to plain HTTP for every private address.
// What is on this host a registry elsewhere cannot send the engine to. It bounds
// manifests, which ggcr reads and decodes whole, and gives up what does not
// answer.
type guard struct {
	insecure []string
	local    bool          // the registry itself is on this host
	patience time.Duration // for an answer's next byte
}

// maxManifest is what the OCI distribution-spec has every registry take.
const maxManifest = 4 << 20

// patience is longer than registries take to find a blob in a cold storage.
const patience = 2 * time.Minute

func (o RegistryOptions) guard(r name.Registry) *guard {
	return &guard{o.Insecure, loopback(&url.URL{Host: r.RegistryStr()}), patience}
}

// RoundTrip is of http.RoundTripper.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if near := loopback(r.URL); near && !g.local {
		return nil, fmt.Errorf("a registry elsewhere names %s, which is on this host", r.URL.Host)
	} else if r.URL.Scheme != "https" && !near && !slices.Contains(g.insecure, r.URL.Host) {
		return nil, fmt.Errorf("%s speaks no TLS: name it under registry.insecure in the engine's configuration to speak to it without", r.URL.Host)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	a := &answer{ctx: ctx, cancel: cancel, left: math.MaxInt64, patience: g.patience}
	a.timer = time.AfterFunc(g.patience, func() {
		cancel(fmt.Errorf("%s has been silent for %v: %w", r.URL.Host, g.patience, os.ErrDeadlineExceeded))
	})
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		a.timer.Stop() // what is sent, and stored there, takes as long as it takes
	}
	resp, err := remote.DefaultTransport.RoundTrip(r.WithContext(ctx))
	a.timer.Stop()
	if err != nil {
		err = reason(ctx, err)
		cancel(nil)
		return nil, err
	}
	asked := r
	for asked.Response != nil { // it is where that one led to
		asked = asked.Response.Request
	}
	if strings.Contains(asked.URL.Path, "/manifests/") {
		a.left = maxManifest
	}
	a.ReadCloser, resp.Body = resp.Body, a
	return resp, nil
}

// answer is the body of an answer.
type answer struct {
	io.ReadCloser
	ctx      context.Context //nolint:containedctx // the request's
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	patience time.Duration
	left     int64
}

func (a *answer) Read(p []byte) (int, error) {
	a.timer.Reset(a.patience) // not while the reader is busy elsewhere
	n, err := a.ReadCloser.Read(p)
	a.timer.Stop()
	if a.left -= int64(n); a.left < 0 {
		return 0, fmt.Errorf("%w of %d bytes of a manifest", ErrLimit, maxManifest)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // a Reader's end is io.EOF itself
		err = reason(a.ctx, err)
	}
	return n, err
}

func (a *answer) Close() error {
	a.timer.Stop()
	defer a.cancel(nil)
	return a.ReadCloser.Close()
}

func loopback(u *url.URL) bool {
	host := u.Hostname()
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// registryError tells what the registry said from what went wrong on the way,
// and names the next step.
func registryError(r interface{ RegistryStr() string }, err error) error {
	host := r.RegistryStr()
	var said *transport.Error
	var network net.Error
	switch {
	case errors.As(err, &said):
		switch said.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("%w %s: %w: log in (docker login %s as the engine's user), or check the name: %w", ErrRegistry, host, fs.ErrPermission, host, said)
		case http.StatusNotFound:
			return fmt.Errorf("%w %s: %w: %w", ErrRegistry, host, fs.ErrNotExist, said)
		}
		return fmt.Errorf("%w %s: %w", ErrRegistry, host, said)
	case errors.As(err, &network):
		return fmt.Errorf("%w %s cannot be reached: %w", ErrRegistry, host, err)
	}
	return fmt.Errorf("%w %s: %w", ErrRegistry, host, err)
}
