package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/outward"
	embedded "github.com/fre-engine/fre/registry"
	"github.com/fre-engine/fre/store"
)

// TestTravel: the engine adds limits, references and cancellation at its end to package oci.
func TestTravel(t *testing.T) {
	r := open(t)
	r.stop()
	r.start(Config{ImageLimits: oci.Limits{Entries: 2}})
	archive := func(names ...string) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range names {
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	ctx := t.Context()
	if _, err := r.Import(ctx, archive("a", "b", "c"), oci.ImportOptions{}, nil); !errors.Is(err, oci.ErrLimit) {
		t.Errorf("Import over the limit: %v", err)
	}
	steps := 0
	img, err := r.Import(ctx, archive("a"), oci.ImportOptions{Name: "root:1", Message: "m"}, func(image.Progress) { steps++ })
	if err != nil {
		t.Fatal(err)
	}
	if steps == 0 {
		t.Error("nothing is reported")
	}
	var saved bytes.Buffer
	if err := r.Save(ctx, &saved, []string{"root"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, "root", build.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	images, err := r.Load(ctx, &saved, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"root:1"}, images[0].Names); diff != "" || images[0].Digest != img.Digest {
		t.Errorf("loaded %s, saved %s:\n%s", images[0].Digest, img.Digest, diff)
	}
	if history, err := r.History("root"); err != nil || len(history) != 1 || history[0].Comment != "m" {
		t.Errorf("History: %v, %v", history, err)
	}
	if _, err := r.Push(ctx, string(img.Digest), "", nil, oci.PushOptions{}, nil); !errors.Is(err, oci.ErrReference) {
		t.Errorf("Push by digest: %v", err)
	}
	if _, err := r.Push(ctx, "none", "", nil, oci.PushOptions{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Push of nothing: %v", err)
	}
	if _, _, err := r.Pull(ctx, "root:1", "linux/none", nil, nil); !errors.Is(err, oci.ErrPlatform) {
		t.Errorf("Pull for another platform: %v", err)
	}
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Load(ctx, archive("a"), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Load into an engine that stops: %v", err)
	}
}

// TestPulledFunction: a function that was pushed, removed and pulled again deploys and answers,
// from any kind of registry. A function pushed as an ordinary image comes back as an ordinary
// image, and a container runs it.
func TestPulledFunction(t *testing.T) {
	for kind, start := range map[string]func(testing.TB) string{"distribution": fretest.Registry, "own": ownRegistry} {
		t.Run(kind, func(t *testing.T) {
			r := open(t)
			host := start(t) // the registry ends first, with its connections
			ctx := t.Context()
			img := r.interpreted("shop", "1", nil)
			ref := host + "/team/shop:1"
			if _, err := r.Push(ctx, "shop:1", ref, nil, oci.PushOptions{}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Push(ctx, "shop:1", host+"/team/image:1", nil, oci.PushOptions{AsImage: true}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := r.RemoveImage(ctx, "shop:1", build.RemoveOptions{}); err != nil {
				t.Fatal(err)
			}
			if r.store.HasTree(img.Parts[0].Tree) {
				t.Error("its parts are still there")
			}
			pulled, _, err := r.Pull(ctx, ref, "", nil, nil)
			if err != nil || pulled.Digest != img.Digest {
				t.Fatalf("pulled %+v, %v; want %s", pulled, err, img.Digest)
			}
			if _, err := r.Deploy(ctx, "shop", pulled, DeployOptions{}); err != nil {
				t.Fatal(err)
			}
			if got, _, err := r.look("shop", "file=name"); err != nil || got != "shop" {
				t.Errorf("it answers %q, %v", got, err)
			}

			ordinary, _, err := r.Pull(ctx, host+"/team/image:1", "", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Deploy(ctx, "image", ordinary, DeployOptions{}); !errors.Is(err, ErrNotReady) {
				t.Errorf("deploying an ordinary image: %v, want %v", err, ErrNotReady)
			}
			c, err := image.ConfigOf(ordinary)
			if err != nil || c.Container == nil || c.Container.User != "1000:1000" && c.Container.User != "1000" || len(c.Args) == 0 || c.Args[0] != "/bin/fn" {
				t.Errorf("configuration %+v, %v", c, err)
			}

			// A build refuses a base that a pull would refuse.
			if _, err := r.RemoveImage(ctx, host+"/team/image:1", build.RemoveOptions{}); err != nil {
				t.Fatal(err)
			}
			r.stop()
			r.start(Config{Signatures: signature.Policy{{Repository: "**", Accept: signature.AcceptNone}}})
			if _, _, err := r.cfg.Builder.Images.Pull(ctx, host+"/team/image:1", "", func(image.Progress) {}); !errors.Is(err, oci.ErrSignature) {
				t.Errorf("a base that the policy refuses: error %v, want %v", err, oci.ErrSignature)
			}
		})
	}
}

// TestBaseLogin: the engine fetches a template's base image with the login of the build's user for
// this registry only. The image is then hidden from other users.
func TestBaseLogin(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir()) // the engine itself has no login
	r := open(t)
	behind, err := embedded.Open(embedded.Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if name, word, _ := req.BasicAuth(); name != "ann" || word != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		behind.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		server.Close()
		if err := behind.Close(); err != nil {
			t.Error(err)
		}
	})
	host := strings.TrimPrefix(server.URL, "http://")
	ctx, ref := t.Context(), host+"/team/root:1"
	auth := &oci.Auth{Username: "ann", Password: "secret"}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644}), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Import(ctx, &b, oci.ImportOptions{Name: "root:1"}, nil); err != nil {
		t.Fatal(err)
	}
	pushed, err := r.Push(ctx, "root:1", ref, auth, oci.PushOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, "root:1", build.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}

	images := r.cfg.Builder.Images
	// Builds derive images from such bases. The names of these images cannot be pulled.
	for _, own := range []string{"base/oci/team-root", "base/oci/team-root:1", "docker.io/base/oci/team-root", "tools/python-0123456789ab"} {
		if _, _, err := images.Pull(ctx, own, "", nil); !errors.Is(err, oci.ErrReference) {
			t.Errorf("%s: %v", own, err)
		}
	}
	ann := build.WithLogins(ctx, map[string]*oci.Auth{host: auth, "elsewhere.example": {Username: "other"}})
	for name, ctx := range map[string]context.Context{"without a login": ctx, "with another registry's": build.WithLogins(ctx, map[string]*oci.Auth{"elsewhere.example": auth})} {
		if got, err := images.Resolve(ctx, ref, ""); got != "" || err != nil {
			t.Errorf("%s: resolved %q, %v", name, got, err)
		}
		if _, _, err := images.Pull(ctx, ref, "", nil); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: pulled, %v", name, err)
		}
	}
	eve := build.WithLogins(ctx, map[string]*oci.Auth{host: {Username: "eve", Password: "secret"}})
	if got, err := images.Resolve(eve, ref, ""); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("with a login that it refuses: resolved %q, %v", got, err)
	}
	want := host + "/team/root@" + string(pushed.Digest)
	for _, pinned := range []store.Digest{"", pushed.Digest} {
		if got, err := images.Resolve(ann, ref, pinned); got != want || err != nil {
			t.Errorf("pinned to %q: resolved %q, %v, want %s", pinned, got, err, want)
		}
	}
	if got, err := images.Resolve(ann, ref, store.Digest("sha256:"+strings.Repeat("0", 64))); err == nil {
		t.Errorf("pinned to what it does not have: resolved %q", got)
	}
	img, err := images.Take(ann, want, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(img.Names)+len(img.Remotes) > 0 {
		t.Errorf("it has the names %q, %q", img.Names, img.Remotes)
	}
	if _, _, err := images.Pull(ctx, ref, pushed.Digest, nil); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("now that it is in the store, without a login: %v", err)
	}

	// A base that a user has pulled by name serves every tenant.
	if _, _, err := r.Pull(ctx, ref, "", auth, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := images.Resolve(ann, ref, ""); got != "" || err != nil {
		t.Errorf("resolved %q, %v, where the store has it", got, err)
	}
	if got, digest, err := images.Pull(ctx, ref, "", nil); err != nil || got.Digest != img.Digest || digest != pushed.Digest {
		t.Errorf("got %v %s, %v", got, digest, err)
	}
}

// TestBaseOfTakenName: a tenant's image has a name that other tenants know from a registry. The
// image is not a base of the other tenants' builds, and keeps the name.
func TestBaseOfTakenName(t *testing.T) {
	r := open(t)
	host, ctx := ownRegistry(t), t.Context()
	ref := host + "/team/root:1"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644}), w.Close()); err != nil {
		t.Fatal(err)
	}
	root, err := r.Import(ctx, &b, oci.ImportOptions{Name: ref}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := r.Push(ctx, ref, "", nil, oci.PushOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := r.image("theirs", func(c *image.Config) { c.Tenant = "acme" })
	if _, err := r.TagImage(ctx, string(theirs.Digest), ref); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, string(root.Digest), build.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	images := r.cfg.Builder.Images
	login := build.WithLogins(ctx, map[string]*oci.Auth{host: {Username: "ann", Password: "secret"}})
	if got, err := images.Resolve(login, ref, ""); got != host+"/team/root@"+string(pushed.Digest) || err != nil {
		t.Errorf("with a login: resolved %q, %v", got, err)
	}
	for range 2 {
		got, digest, err := images.Pull(ctx, ref, "", func(image.Progress) {})
		if err != nil || got.Digest != root.Digest || digest != pushed.Digest {
			t.Errorf("got %v %s, %v; want %s", got, digest, err, root.Digest)
		}
	}
	if got, err := r.Image(ref); err != nil || got.Digest != theirs.Digest {
		t.Errorf("the name is %v's, %v", got, err)
	}
}

// TestPullFor: a pull for a tenant or for a build takes a build's turn, is checked against the
// quota before the image is stored, and counts for this tenant only. A dropped image goes, unless
// it is used or was stored before.
func TestPullFor(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{})
	host, ctx := ownRegistry(t), t.Context()
	root, theirs := host+"/team/root:1", host+"/team/theirs:1"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 1<<20)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	ordinary, err := r.Import(ctx, &b, oci.ImportOptions{Name: root}, nil)
	if err != nil {
		t.Fatal(err)
	}
	function := r.image("theirs", func(c *image.Config) { c.Tenant = "other" })
	for ref, img := range map[string]*store.Image{root: ordinary, theirs: function} {
		if _, err := r.Push(ctx, string(img.Digest), ref, nil, oci.PushOptions{}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := r.RemoveImage(ctx, string(img.Digest), build.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	toBuild := func(ref string) error {
		_, _, err := r.cfg.Builder.Images.Pull(r.Admitting(ctx, "acme"), ref, "", func(image.Progress) {})
		return err
	}
	toRun := func(ref string) error {
		_, _, err := r.PullFor(ctx, "acme", ref)
		return err
	}
	for what, pull := range map[string]func(string) error{"for a build": toBuild, "to run": toRun} {
		now.Store(&live.Quotas{ImageBytes: 1<<20 - 1})
		if full, ok := errors.AsType[*live.QuotaError](pull(root)); !ok || full.What != "bytes of images" {
			t.Errorf("%s: above the quota: no QuotaError of bytes", what)
		}
		now.Store(&live.Quotas{})
		if err := pull(theirs); !errors.Is(err, build.ErrOthersImage) {
			t.Errorf("%s: another tenant's function: %v", what, err)
		}
		if all := r.store.Images(); len(all) != 0 {
			t.Errorf("%s: what was refused has left %v", what, all)
		}
	}

	pulled := func() (*store.Image, func(context.Context) error) {
		t.Helper()
		img, drop, err := r.PullFor(ctx, "acme", root)
		if err != nil || img.Digest != ordinary.Digest {
			t.Fatal(img, err)
		}
		return img, drop
	}
	for name, c := range map[string]struct {
		used, before bool
		left         int
	}{"unused": {}, "used since": {used: true, left: 1}, "there before": {before: true, left: 1}} {
		if c.before {
			pulled()
		}
		img, drop := pulled()
		if c.used && !r.store.Use(img.Digest) {
			t.Fatal("it cannot be used")
		}
		if err := drop(ctx); err != nil || len(r.store.Images()) != c.left {
			t.Errorf("%s: %v, %d images are left, want %d", name, err, len(r.store.Images()), c.left)
		}
		if c.left > 0 {
			if _, err := r.RemoveImage(ctx, root, build.RemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}

	now.Store(&live.Quotas{Builds: 1})
	done := r.turn("acme")
	ended := make(chan error, 1)
	go func() { ended <- toRun(root) }()
	eventually(t, "a pull that waits", func() bool { return r.TenantUse("acme").WaitingBuilds == 1 })
	done()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// ownRegistry serves FRE's own registry until the test ends.
func ownRegistry(t testing.TB) string {
	t.Helper()
	own, err := embedded.Open(embedded.Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(own)
	t.Cleanup(func() {
		server.Close()
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	return strings.TrimPrefix(server.URL, "http://")
}

// TestOutward: for a tenant the engine connects to no registry on this host, unless the
// configuration names the registry. An open port and a closed port give the same answer.
func TestOutward(t *testing.T) {
	r := open(t)
	asked := 0
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(inside.Close)
	closed := httptest.NewServer(nil)
	closed.Close()
	told := map[string]string{}
	for _, url := range []string{inside.URL, closed.URL} {
		host := strings.TrimPrefix(url, "http://")
		_, err := r.Resolve(r.ForTenant(t.Context()), host+"/x:1", nil)
		var refused *outward.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s for a tenant: %v, want a *outward.RefusedError", host, err)
		}
		told[url] = strings.ReplaceAll(fmt.Sprint(err), host, "HOST")
	}
	if asked != 0 {
		t.Errorf("%d requests were made for a tenant", asked)
	}
	if told[inside.URL] != told[closed.URL] {
		t.Errorf("an open port: %s\na closed one: %s", told[inside.URL], told[closed.URL])
	}
	if _, err := r.Resolve(t.Context(), strings.TrimPrefix(inside.URL, "http://")+"/x:1", nil); err == nil || asked == 0 {
		t.Errorf("for the operator: %v after %d requests, want those", err, asked)
	}
}
